"""Strict reading of CSV tables: each complaint names file, line, column, value and what
is allowed.
"""

from collections.abc import Callable
from pathlib import Path

import pytest

from coadapt.model import InputError
from coadapt.sim.traces.table import Row, head, read_rows


def write(folder: Path, text: str) -> Path:
    path = folder / "t.csv"
    path.write_text(text, encoding="utf-8")
    return path


def test_reads_columns_in_any_order_and_skips_blank_lines(tmp_path: Path) -> None:
    rows = list(read_rows(write(tmp_path, "b, a\r\n 2.5,x\r\n\r\n0,y\r\n"), ("a", "b")))
    assert [(row.line, row.text("a"), row.number("b")) for row in rows] == [
        (2, "x", 2.5),
        (4, "y", 0.0),
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "got 'an empty file'; allowed: a header line and rows"),
        ("a,b\n", "got 'no rows'; allowed: at least one row below the header"),
        ("a,c\n1,2\n", " line 1, columns: got 'a,c'; allowed: a column 'b' among them"),
        ("a,b\n1\n", " line 2: got '1'; allowed: 2 values, one per column"),
        ("a,b\n\n1,2,3\n", " line 3: got '1,2,3'; allowed: 2 values, one per column"),
    ],
)
def test_refuses_what_is_no_table(tmp_path: Path, text: str, message: str) -> None:
    path = write(tmp_path, text)
    with pytest.raises(InputError) as error:
        list(read_rows(path, ("a", "b")))
    assert str(error.value).startswith(str(path))
    assert str(error.value).endswith(message)


@pytest.mark.parametrize(
    ("read", "value", "allowed"),
    [
        (lambda row: row.integer("a", at_least=0), "-1", "an integer >= 0"),
        (lambda row: row.integer("a", at_least=0), "1.5", "an integer >= 0"),
        (lambda row: row.integer("a", at_least=0), "", "an integer >= 0"),
        (lambda row: row.integer("a", at_least=1), "0", "an integer >= 1"),
        (lambda row: row.number("a"), "nan", "a finite number >= 0"),
        (lambda row: row.number("a"), "inf", "a finite number >= 0"),
        (lambda row: row.number("a"), "-0.1", "a finite number >= 0"),
        (lambda row: row.number("a"), "x", "a finite number >= 0"),
        (lambda row: row.text("a"), "", "a name"),
    ],
)
def test_refuses_what_is_no_such_value(
    read: Callable[[Row], object], value: str, allowed: str
) -> None:
    row = Row(Path("f.csv"), 7, {"a": value})
    with pytest.raises(InputError) as error:
        read(row)
    assert str(error.value) == f"f.csv line 7, a: got {value!r}; allowed: {allowed}"


def test_refuses_what_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="a readable text file"):
        list(read_rows(tmp_path / "none.csv", ()))
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="a readable text file"):
        head(tmp_path / "binary")
    with pytest.raises(InputError, match="a readable text file"):
        head(tmp_path)


def test_head_is_as_long_as_the_file(tmp_path: Path) -> None:
    assert head(write(tmp_path, "a\r\nb\n"), 3) == ["a", "b"]
