"""What all logs of real clusters have in common: who came when, with how many GPUs, and for how long it ran.

A log says nothing of batches or other numbers of GPUs: its jobs are rigid, and run as long as they ran there.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from coadapt.model import InputError
from coadapt.sim.traces.curve import CurveApplication, curve_spec
from coadapt.sim.traces.table import Row
from coadapt.sim.workload import TraceJob, Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedJob:
    """One job that got GPUs. at: submission, s since 1970 by the log's own clock. run_s: how long it ran."""

    name: str
    at: float
    run_s: float
    num_gpus: int
    tenant: str = ""

    @property
    def gpu_s(self) -> float:
        """GPU-seconds."""
        return self.run_s * self.num_gpus


def seconds(text: str) -> float:
    """Return an instant such as 2017-10-07 01:11:39, with or without a time zone, by the clock of its place.

    Raises ValueError for anything else.
    """
    return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()


def instant(row: Row, column: str) -> float:
    """Return the cell as `seconds` does. Raises InputError unless it is an instant."""
    text = row.cells[column]
    try:
        return seconds(text)
    except ValueError:
        raise row.error(
            column, text, "an instant such as 2017-10-07 01:11:39"
        ) from None


def rigid_workload(
    path: Path, jobs: Iterable[LoggedJob]
) -> tuple[Workload, dict[str, CurveApplication]]:
    """Return the jobs of a log in order of arrival, the first at 0 s, and what each of them trains.

    Jobs with the same GPUs and time train the same. Raises InputError if there are none.
    """
    ordered = in_order(path, jobs)
    applications: dict[str, CurveApplication] = {}
    width, first_at = len(str(len(ordered) - 1)), ordered[0].at
    traced = []
    for index, job in enumerate(ordered):
        what = f"{job.num_gpus}-gpus-{job.run_s:g}-s"
        if what not in applications:
            rates = {job.num_gpus: float(job.num_gpus)}
            applications[what] = CurveApplication(
                what, rates, gpus=job.num_gpus, length_s=job.run_s
            )
        spec = curve_spec(applications[what], name=job.name, tenant=job.tenant)
        job_id = f"{index:0{width}d}-{job.name}"
        traced.append(
            TraceJob(id=job_id, at=job.at - first_at, application=what, spec=spec)
        )
    return Workload(name=path.stem, jobs=tuple(traced)), applications


def in_order(path: Path, jobs: Iterable[LoggedJob]) -> Sequence[LoggedJob]:
    """Return the jobs by (submission, place in the log). Raises InputError if there are none."""
    ordered = sorted(jobs, key=lambda job: job.at)
    if not ordered:
        raise InputError(f"{path}", "no job that ran on a GPU", "at least one")
    return ordered
