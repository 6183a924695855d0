"""Tables of a comparison as files: CSV, JSON or Parquet, each tidy, one row per run or
per job and run.
"""

import csv
import io
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path

from coadapt.durable import write_whole
from coadapt.model import InputError
from coadapt.sim.metrics import JobOutcome

Row = dict[str, str | int | float | None]

FORMATS = ("csv", "json", "parquet")
# First characters of texts that spreadsheets compute as formulas when they open a CSV
# file.
FORMULA = ("=", "+", "-", "@")


def check_writable(format_name: str) -> None:
    """Raise InputError unless tables of this format and the page can be written here.

    Call this before the runs start, because they may take hours.
    """
    check_format(format_name)
    if find_spec("plotly") is None:
        raise InputError(
            "report", "plotly is not installed", "pip install 'coadapt[report]'"
        )


def check_format(format_name: str) -> None:
    """Raise InputError unless tables of this format can be written here."""
    if format_name not in FORMATS:
        raise InputError("--table", format_name, ", ".join(FORMATS))
    if format_name == "parquet" and find_spec("pyarrow") is None:
        raise InputError(
            "--table",
            "parquet",
            "csv, json; with pip install 'coadapt[parquet]' this too",
        )


def job_row(job: JobOutcome) -> Row:
    """Return the outcome of a job as a row. Its id comes first, in the column `job`."""
    row = asdict(job)
    return {"job": row.pop("id"), **row}


def write_table(folder: Path, name: str, rows: Sequence[Row], format_name: str) -> Path:
    """Write `rows`, which have the same columns, to folder/name.format; return its
    path.

    The format must be one that `check_writable` accepts.
    """
    path = folder / f"{name}.{format_name}"
    writers: dict[str, Callable[[Sequence[Row]], str | bytes]] = {
        "csv": _csv,
        "json": _json,
        "parquet": _parquet,
    }
    write_whole(path, writers[format_name](rows))
    return path


def _csv(rows: Sequence[Row]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]) if rows else [], lineterminator="\n")
    writer.writeheader()
    writer.writerows(
        {name: _plain(value) for name, value in row.items()} for row in rows
    )
    return text.getvalue()


def _plain(value: object) -> object:
    """Return a cell that no spreadsheet reads as a formula. Names need this, because
    they come from traces that others wrote.
    """
    return (
        f"'{value}" if isinstance(value, str) and value.startswith(FORMULA) else value
    )


def _json(rows: Sequence[Row]) -> str:
    return json.dumps(rows, indent=1) + "\n"


def _parquet(rows: Sequence[Row]) -> bytes:
    import pyarrow as pa  # an extra, and slow to load
    import pyarrow.parquet as pq

    sink = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(list(rows)), sink)
    return sink.getvalue()
