"""Reading CSV tables strictly: every complaint names file, line, column, value and what is allowed."""

import csv
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from coadapt.model import InputError
from coadapt.model.quick_init import quick_init


@quick_init
@dataclass(frozen=True, slots=True)
class Row:
    """One line of a table, cells stripped; `line` counts from 1, the header included."""

    path: Path
    line: int
    cells: dict[str, str]

    def text(self, column: str) -> str:
        """Return the cell. Raises InputError if it is empty."""
        value = self.cells[column]
        if not value:
            raise self.error(column, value, "a name")
        return value

    def integer(self, column: str, at_least: int) -> int:
        """Return the cell as an integer, 20.0 too. Raises InputError unless it is one, and >= `at_least`."""
        value = self.cells[column]
        try:
            number = float(value)
        except ValueError:
            number = math.nan
        if not (number.is_integer() and number >= at_least):
            raise self.error(column, value, f"an integer >= {at_least}")
        return int(number)

    def number(self, column: str) -> float:
        """Return the cell as a finite number >= 0. Raises InputError if it is none."""
        value = self.cells[column]
        try:
            number = float(value)
        except ValueError:
            number = math.nan
        if not 0.0 <= number < math.inf:
            raise self.error(column, value, "a finite number >= 0")
        return number

    def error(self, column: str, value: object, allowed: str) -> InputError:
        """Return the error that blames this cell."""
        return InputError(f"{self.path} line {self.line}, {column}", value, allowed)


def read_rows(path: Path, columns: Sequence[str]) -> Iterator[Row]:
    """Yield the rows of a CSV file with a header.

    Raises InputError if the file cannot be read, is empty, lacks one of `columns`, or has a short row.
    """
    (_, header), *records = _records(path)
    for column in columns:
        if column not in header:
            raise InputError(
                f"{path} line 1, columns",
                ",".join(header),
                f"a column {column!r} among them",
            )
    if not records:
        raise InputError(f"{path}", "no rows", "at least one row below the header")
    for line, record in records:
        if len(record) != len(header):
            allowed = f"{len(header)} values, one per column"
            raise InputError(f"{path} line {line}", ",".join(record), allowed)
        yield Row(path, line, dict(zip(header, record, strict=True)))


def read_headless_rows(
    path: Path, columns: Sequence[str], delimiter: str = "\t"
) -> Iterator[Row]:
    """Yield the rows of a file without a header, cells parted by `delimiter`; `columns` names them.

    Raises InputError if the file cannot be read, is empty, or has a row of another length.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise _unreadable(path, error) from None
    filled = [
        (number, line) for number, line in enumerate(lines, start=1) if line.strip()
    ]
    if not filled:
        raise InputError(f"{path}", "an empty file", f"lines of {len(columns)} values")
    for number, line in filled:
        cells = [cell.strip() for cell in line.split(delimiter)]
        if len(cells) != len(columns):
            parted = "tabs" if delimiter == "\t" else f"{delimiter!r}"
            allowed = f"{len(columns)} values parted by {parted}: {', '.join(columns)}"
            raise InputError(f"{path} line {number}", line, allowed)
        yield Row(path, number, dict(zip(columns, cells, strict=True)))


def head(path: Path, num_lines: int = 1) -> list[str]:
    """Return the first lines of a file, without line ends. Raises InputError if it cannot be read."""
    try:
        with path.open(encoding="utf-8") as file:
            return [
                line.rstrip("\r\n")
                for _, line in zip(range(num_lines), file, strict=False)
            ]
    except (OSError, UnicodeDecodeError) as error:
        raise _unreadable(path, error) from None


def _records(path: Path) -> list[tuple[int, list[str]]]:
    """Return the records with the line on which each ends, the header first, blank lines left out."""
    try:
        with path.open(encoding="utf-8", newline="") as file:
            reader = csv.reader(file)
            records = [
                (reader.line_num, [cell.strip() for cell in record])
                for record in reader
                if record
            ]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise _unreadable(path, error) from None
    if not records:
        raise InputError(f"{path}", "an empty file", "a header line and rows")
    return records


def _unreadable(path: Path, error: Exception) -> InputError:
    reason = error.strerror if isinstance(error, OSError) else str(error)
    return InputError(f"{path}", reason, "a readable text file")
