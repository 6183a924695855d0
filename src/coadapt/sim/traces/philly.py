"""The log of Microsoft's Philly clusters (ATC'19): its JSON, and the reduced CSV in the
Pollux artifact.

Formats: msr-fiddle/philly-traces, cluster_job_log; petuum/adaptdl,
simulator/traces/philly.csv.
"""

import json
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import TypeVar

from coadapt.model import InputError
from coadapt.sim.traces.cluster_log import (
    LoggedJob,
    elapsed,
    instant,
    jobs_of_rows,
    log_tally,
    rigid_workload,
    seconds,
)
from coadapt.sim.traces.curve import CurveApplication
from coadapt.sim.traces.table import (
    Row,
    head,
    header_of,
    is_missing,
    read_rows,
    read_text,
)
from coadapt.sim.traces.tally import ReadOptions, Tally
from coadapt.sim.workload import Workload

T = TypeVar("T")

COLUMNS = ("timestamp", "duration", "num_gpus", "gpu_time", "cluster")


NO_GPU = "no GPU"
NEVER_RAN = "never ran"
NOT_LOGGED = "a time was not logged, or it had not ended"
RAN_0_S = "ran for 0 s"


def recognises(lines: Sequence[str], profiles: Path | None) -> bool:  # noqa: ARG001  # the signature is that of Importer
    """Return whether a file with these first lines is of this format."""
    if not lines:
        return False
    return {"timestamp", "duration", "gpu_time"} <= header_of(lines) or lines[
        0
    ].lstrip().startswith("[")


def load(
    path: Path,
    profiles: Path | None,  # noqa: ARG001  # as above
    options: ReadOptions,
) -> tuple[Workload, dict[str, CurveApplication]]:
    """Return the jobs of `path`, rigid. Raises InputError for anything that the format
    does not allow.
    """
    tally = log_tally(options)
    return rigid_workload(path, read_log(path, tally), tally)


def read_log(path: Path, tally: Tally) -> Iterator[LoggedJob]:
    """Yield the jobs of `path` that ran on GPUs. Raises InputError for what the format
    does not allow.
    """
    if "".join(head(path)).lstrip().startswith("["):
        return jobs_of_rows(_entries(path), _job_of_entry, tally)
    rows = enumerate(read_rows(path, COLUMNS, tally))
    return jobs_of_rows(rows, _job_of_row, tally)


def _job_of_row(numbered: tuple[int, Row]) -> LoggedJob | str:
    index, row = numbered
    if is_missing(row.cells["timestamp"]) or is_missing(row.cells["duration"]):
        return NOT_LOGGED
    run_s = row.number("duration")
    num_gpus = row.integer("num_gpus", at_least=0)
    at = instant(row, "timestamp")
    tenant = row.text("cluster")
    if not num_gpus:
        return NO_GPU
    if not run_s:
        return RAN_0_S
    return LoggedJob(
        name=f"job-{index}", at=at, run_s=run_s, num_gpus=num_gpus, tenant=tenant
    )


def _entries(path: Path) -> list[tuple[str, object]]:
    """Return the jobs of the JSON file, each with its place in it."""
    try:
        entries = json.loads(read_text(path))
    except json.JSONDecodeError as error:
        place = f"{path} line {error.lineno} column {error.colno}"
        raise InputError(place, error.msg, "a JSON list of jobs") from None
    found = entries if isinstance(entries, list) else [entries]
    return [(f"{path} job {number}", each) for number, each in enumerate(found, 1)]


def _job_of_entry(placed: tuple[str, object]) -> LoggedJob | str:
    """Return a job whose attempts have ended. It runs for the time of all attempts
    together, on the GPUs of the last one.
    """
    place, entry = placed
    if not isinstance(entry, dict):
        raise InputError(place, entry, "an object")
    attempts = _field(place, entry, "attempts", list)
    for each in attempts:
        if not isinstance(each, dict):
            raise InputError(f"{place}, attempts", each, "objects")
    spans = [(each.get("start_time"), each.get("end_time")) for each in attempts]
    if not spans:
        return NEVER_RAN
    submitted = entry.get("submitted_time")
    if is_missing(submitted) or any(map(is_missing, chain.from_iterable(spans))):
        return NOT_LOGGED
    try:
        run_s = sum(elapsed(str(start), str(end)) for start, end in spans)
        at = seconds(_field(place, entry, "submitted_time", str))
    except ValueError as error:
        if isinstance(error, InputError):
            raise
        raise InputError(
            place, str(error), "instants such as 2017-10-07 01:11:39"
        ) from None
    nodes = attempts[-1].get("detail") or []
    if not isinstance(nodes, list):
        raise InputError(f"{place}, detail", nodes, "a list of nodes")
    num_gpus = sum(_num_gpus(place, each) for each in nodes)
    name, vc = (_field(place, entry, each, str) for each in ("jobid", "vc"))
    if not num_gpus:
        return NO_GPU
    if run_s < 0.0:
        raise InputError(
            f"{place}, end_time", run_s, "attempts that end after they start"
        )
    if not run_s:
        return RAN_0_S
    return LoggedJob(name=name, at=at, run_s=run_s, num_gpus=num_gpus, tenant=vc)


def _num_gpus(place: str, node: object) -> int:
    """Return how many GPUs an attempt had on one node."""
    gpus = node.get("gpus") if isinstance(node, dict) else None
    if not isinstance(gpus, list):
        raise InputError(f"{place}, detail", node, "nodes with a list of gpus")
    return len(gpus)


def _field(place: str, entry: dict[str, object], name: str, kind: type[T]) -> T:
    value = entry.get(name)
    if not isinstance(value, kind):
        raise InputError(f"{place}, {name}", value, f"a {kind.__name__}")
    return value
