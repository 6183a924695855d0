"""Strict reading of CSV tables: every error names file, line, column, value and what is
allowed.
"""

import bz2
import codecs
import csv
import gzip
import io
import lzma
import math
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import IO, TextIO, cast

from coadapt.model import InputError
from coadapt.model.errors import reason_of
from coadapt.sim.traces.tally import Tally


def _open_gzip(path: Path) -> IO[bytes]:
    return cast("IO[bytes]", gzip.open(path, "rb"))


# Compressed files, by their first bytes and by the endings of their names.
_OPENS: dict[bytes, Callable[[Path], IO[bytes]]] = {
    b"\x1f\x8b": _open_gzip,
    b"BZh": bz2.open,
    b"\xfd7zXZ\x00": lzma.open,
}
# A spreadsheet's "Unicode text" begins with one of these.
_UTF_16_MARKS = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
COMPRESSED = (".gz", ".bz2", ".xz")
DELIMITERS = (",", ";", "\t", "|")
_UNREADABLE = (
    OSError,
    EOFError,
    UnicodeDecodeError,
    csv.Error,
    zlib.error,
    lzma.LZMAError,
)
# Texts that mean "nothing was logged", in lower case.
_MISSING = ("", "none", "null", "nan", "nat", "na", "n/a", "\\n")


@dataclass(frozen=True, slots=True)
class Row:
    """One line of a table, with stripped cells. line: counts from 1, with the
    header.
    """

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
        """Return the cell as an integer, 20.0 too. Raises InputError unless it is one,
        and >= `at_least`.
        """
        value = self.cells[column]
        try:
            number = float(value)
        except ValueError:
            number = math.nan
        if not (number.is_integer() and number >= at_least):
            raise self.error(column, value, f"an integer >= {at_least}")
        return int(number)

    def number(self, column: str, at_most: float = math.inf) -> float:
        """Return the cell as a finite number from 0 to `at_most`.

        Raises InputError for any other text.
        """
        value = self.cells[column]
        try:
            number = float(value)
        except ValueError:
            number = math.nan
        if not (0.0 <= number < math.inf and number <= at_most):
            allowed = "a finite number >= 0"
            if at_most < math.inf:
                allowed = f"a number from 0 to {at_most:.0f}"
            raise self.error(column, value, allowed)
        return number

    def error(self, column: str, value: object, allowed: str) -> InputError:
        """Return the error that blames this cell."""
        return InputError(f"{self.path} line {self.line}, {column}", value, allowed)


def read_rows(
    path: Path,
    columns: Sequence[str],
    tally: Tally | None = None,
    known: Sequence[str] = (),
) -> Iterator[Row]:
    """Yield the rows of a CSV file with a header. Cells are separated by commas,
    semicolons or tabs.

    tally: counts rows of a wrong length; None: the first such row is an error. known:
    further columns that the file may have; if it is empty, any. Raises InputError if
    the file cannot be read, is empty, lacks one of `columns`, names a column twice, or
    has one that is not known.
    """
    (_, header), *records = _records(path)
    while (
        header
        and not header[-1]
        and all(
            len(record) < len(header) or not record[len(header) - 1]
            for _, record in records
        )
    ):
        # A spreadsheet writes this for a column in which all cells are empty.
        header.pop()
        for _, record in records:
            del record[len(header) :]
    place = f"{path} line 1, columns"
    shown = ",".join(header)
    for column in columns:
        if column not in header:
            raise InputError(place, shown, f"a column {column!r} among them")
    for column, times in Counter(header).items():
        if times > 1:
            raise InputError(place, column, "each column once")
    if known:
        _check_known(place, header, [*dict.fromkeys((*columns, *known))])
    if not records:
        raise InputError(f"{path}", "no rows", "at least one row below the header")
    for line, record in records:
        if len(record) != len(header):
            allowed = f"{len(header)} values, one per column"
            error = InputError(f"{path} line {line}", ",".join(record), allowed)
            if tally is None:
                raise error
            tally.bad("a row of another length", error)
            continue
        yield Row(path, line, dict(zip(header, record, strict=True)))


def _check_known(place: str, header: Sequence[str], known: Sequence[str]) -> None:
    """Raise InputError for an unknown column, because its values would be ignored."""
    for column in header:
        if column not in known:
            near = get_close_matches(column.lower(), known, n=1, cutoff=0.5)
            nearest = f"{near[0]!r} is the nearest; " if near else ""
            raise InputError(place, column, f"{nearest}known are {', '.join(known)}")


def read_headless_rows(
    path: Path,
    columns: Sequence[str],
    delimiter: str = "\t",
    tally: Tally | None = None,
) -> Iterator[Row]:
    """Yield the rows of a file without a header. Cells are separated by `delimiter`,
    and `columns` has their names.

    A first line that consists of these names is skipped. tally: counts rows of a wrong
    length; None: the first such row is an error. Raises InputError if the file cannot
    be read, or is empty.
    """
    filled = [
        (number, line)
        for number, line in enumerate(read_text(path).splitlines(), start=1)
        if line.strip()
    ]
    if filled and _stripped(filled[0][1], delimiter) == list(columns):
        del filled[0]
    if not filled:
        raise InputError(f"{path}", "an empty file", f"lines of {len(columns)} values")
    for number, line in filled:
        cells = _stripped(line, delimiter)
        if len(cells) != len(columns):
            parted = "tabs" if delimiter == "\t" else f"{delimiter!r}"
            allowed = f"{len(columns)} values parted by {parted}: {', '.join(columns)}"
            error = InputError(f"{path} line {number}", line, allowed)
            if tally is None:
                raise error
            tally.bad("a row of another length", error)
            continue
        yield Row(path, number, dict(zip(columns, cells, strict=True)))


def _stripped(line: str, delimiter: str) -> list[str]:
    return [cell.strip() for cell in line.split(delimiter)]


def is_missing(text: object) -> bool:
    """Return whether a cell of a log has no value: it is empty, None, NULL, NaN and the
    like.
    """
    return text is None or str(text).strip().lower() in _MISSING


def header_of(lines: Sequence[str]) -> set[str]:
    """Return the names of the columns from a file's first lines, none if there is no
    line.
    """
    if not lines:
        return set()
    record = next(csv.reader([lines[0]], delimiter=_delimiter(lines[0])), [])
    return {cell.strip() for cell in record}


def _delimiter(header: str) -> str:
    """Return the separator of this header's cells: the comma, if there is one."""
    return next((each for each in DELIMITERS if each in header), DELIMITERS[0])


def head(path: Path, num_lines: int = 1) -> list[str]:
    """Return the first lines of a file, without line ends. Raises InputError if it
    cannot be read.
    """
    try:
        with _opened(path) as file:
            return [
                line.rstrip("\r\n")
                for _, line in zip(range(num_lines), file, strict=False)
            ]
    except _UNREADABLE as error:
        raise _unreadable(path, error) from None


def read_text(path: Path) -> str:
    """Return all text of a file, compressed or not. Raises InputError if it cannot be
    read.
    """
    try:
        with _opened(path) as file:
            return file.read()
    except _UNREADABLE as error:
        raise _unreadable(path, error) from None


def trace_name(path: Path) -> str:
    """Return the name of the workload in a file: the file's name without endings."""
    return Path(path.stem).stem if path.suffix in COMPRESSED else path.stem


def _opened(path: Path) -> TextIO:
    """Open a text file in UTF-8, as it is or compressed, with a byte order mark or
    without.
    """
    with path.open("rb") as file:
        magic = file.read(6)
    opens = next(
        (each for start, each in _OPENS.items() if magic.startswith(start)), None
    )
    if opens is None:
        encoding = "utf-16" if magic.startswith(_UTF_16_MARKS) else "utf-8-sig"
        return path.open(encoding=encoding, newline="")
    return io.TextIOWrapper(opens(path), encoding="utf-8-sig", newline="")


def _records(path: Path) -> list[tuple[int, list[str]]]:
    """Return the records with the line on which each ends, the header first, blank
    lines left out.
    """
    try:
        with _opened(path) as file:
            first = file.readline()
            while first and not first.strip():
                first = file.readline()
            file.seek(0)
            reader = csv.reader(file, delimiter=_delimiter(first))
            records = [
                (reader.line_num, [cell.strip() for cell in record])
                for record in reader
                if any(map(str.strip, record))
            ]
    except _UNREADABLE as error:
        raise _unreadable(path, error) from None
    if not records:
        raise InputError(f"{path}", "an empty file", "a header line and rows")
    return records


def _unreadable(path: Path, error: Exception) -> InputError:
    allowed = "a readable text file in UTF-8, as it is or as .gz, .bz2 or .xz"
    return InputError("file", str(path), f"{allowed} ({reason_of(error)})")
