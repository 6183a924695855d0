"""The log of Microsoft's Philly clusters (ATC'19): its JSON, and the reduced CSV in the Pollux artifact.

Formats: msr-fiddle/philly-traces, cluster_job_log; petuum/adaptdl, simulator/traces/philly.csv.
"""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TypeVar

from coadapt.model import InputError
from coadapt.sim.traces.cluster_log import LoggedJob, instant, rigid_workload, seconds
from coadapt.sim.traces.curve import CurveApplication
from coadapt.sim.traces.table import head, read_rows
from coadapt.sim.workload import Workload

T = TypeVar("T")

COLUMNS = ("timestamp", "duration", "num_gpus", "gpu_time", "cluster")


def recognises(lines: Sequence[str], profiles: Path | None) -> bool:  # noqa: ARG001  # the signature is that of Importer
    """Return whether a file with these first lines is of this format."""
    if not lines:
        return False
    return {"timestamp", "duration", "gpu_time"} <= _cells(lines[0]) or lines[
        0
    ].lstrip().startswith("[")


def load(
    path: Path,
    profiles: Path | None,  # noqa: ARG001  # as above
) -> tuple[Workload, dict[str, CurveApplication]]:
    """Return the jobs of `path`, rigid. Raises InputError for anything that the format does not allow."""
    return rigid_workload(path, read_log(path))


def read_log(path: Path) -> Iterator[LoggedJob]:
    """Yield the jobs of `path` that ran on GPUs. Raises InputError for what the format does not allow."""
    yield from (
        _read_json(path)
        if "".join(head(path)).lstrip().startswith("[")
        else _read_csv(path)
    )


def _cells(line: str) -> set[str]:
    return {cell.strip() for cell in line.split(",")}


def _read_csv(path: Path) -> Iterator[LoggedJob]:
    for index, row in enumerate(read_rows(path, COLUMNS)):
        run_s, num_gpus = row.number("duration"), row.integer("num_gpus", at_least=0)
        if run_s and num_gpus:
            yield LoggedJob(
                name=f"job-{index}",
                at=instant(row, "timestamp"),
                run_s=run_s,
                num_gpus=num_gpus,
                tenant=row.text("cluster"),
            )


def _read_json(path: Path) -> Iterator[LoggedJob]:
    """Yield jobs whose last attempt has ended: the time of all attempts, on the GPUs of the last one."""
    try:
        entries = json.loads(path.read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        place = f"{path} line {error.lineno} column {error.colno}"
        raise InputError(place, error.msg, "a JSON list of jobs") from None
    for number, entry in enumerate(
        entries if isinstance(entries, list) else [entries], start=1
    ):
        place = f"{path} job {number}"
        if not isinstance(entry, dict):
            raise InputError(place, entry, "an object")
        attempts = [dict(each) for each in _field(place, entry, "attempts", list)]
        spans = [(each.get("start_time"), each.get("end_time")) for each in attempts]
        if not spans or not all(start and end for start, end in spans):
            continue  # never ran, is still running, or a time was not logged
        try:
            run_s = sum(seconds(str(end)) - seconds(str(start)) for start, end in spans)
            at = seconds(_field(place, entry, "submitted_time", str))
        except ValueError as error:
            raise InputError(
                place, str(error), "instants such as 2017-10-07 01:11:39"
            ) from None
        num_gpus = sum(len(each["gpus"]) for each in attempts[-1].get("detail", ()))
        if num_gpus and run_s > 0.0:
            name = _field(place, entry, "jobid", str)
            vc = _field(place, entry, "vc", str)
            yield LoggedJob(name=name, at=at, run_s=run_s, num_gpus=num_gpus, tenant=vc)


def _field(place: str, entry: dict[str, object], name: str, kind: type[T]) -> T:
    value = entry.get(name)
    if not isinstance(value, kind):
        raise InputError(f"{place}, {name}", value, f"a {kind.__name__}")
    return value
