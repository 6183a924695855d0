"""What all logs of real clusters have in common: each job's arrival, its number of
GPUs, and how long it ran.

A log has no batches and no speeds on other numbers of GPUs. So its jobs are rigid, and
run as long as in the log.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

from coadapt.model import InputError
from coadapt.sim.traces.curve import CurveApplication, curve_spec
from coadapt.sim.traces.table import Row, trace_name
from coadapt.sim.traces.tally import BAD_SHARE_MAX, ReadOptions, Tally, tally_text
from coadapt.sim.workload import TraceJob, Workload

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedJob:
    """One job that got GPUs. at: submission, s since 1970 by the log's own clock.
    run_s: how long it ran.

    load: the part of each of its GPUs that the job requested, in (0, 1].
    """

    name: str
    at: float
    run_s: float
    num_gpus: int
    tenant: str = ""
    load: float = 1.0

    @property
    def gpu_s(self) -> float:
        """GPU-seconds."""
        return self.run_s * self.num_gpus


def seconds(text: str) -> float:
    """Return the seconds of an instant such as 2017-10-07 01:11:39, with or without a
    time zone, by its local clock.

    Raises ValueError for anything else.
    """
    return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()


def elapsed(start: str, end: str) -> float:
    """Return the seconds from `start` to `end`. If both have a time zone, a change to
    or from summer time between them is taken into account.

    Raises ValueError for a text that is not an instant.
    """
    first = datetime.fromisoformat(start)
    last = datetime.fromisoformat(end)
    if first.tzinfo is None or last.tzinfo is None:
        first = first.replace(tzinfo=UTC)
        last = last.replace(tzinfo=UTC)
    return (last - first).total_seconds()


def instant(row: Row, column: str) -> float:
    """Return the cell as `seconds` does. Raises InputError unless it is an instant."""
    text = row.cells[column]
    try:
        return seconds(text)
    except ValueError:
        raise row.error(
            column, text, "an instant such as 2017-10-07 01:11:39"
        ) from None


def log_tally(options: ReadOptions) -> Tally:
    """Return the tally for the rows of a log, of which a few may be bad."""
    return Tally(options=options, bad_share_max=BAD_SHARE_MAX)


def jobs_of_rows(
    rows: Iterable[T], job_of: Callable[[T], LoggedJob | str], tally: Tally
) -> Iterator[LoggedJob]:
    """Yield one job for each row that is a job. job_of: returns the job, or the reason
    to leave the row out; raises InputError for a row that cannot be read. Raises
    InputError as `Tally.close` does.
    """
    for row in rows:
        try:
            job = job_of(row)
        except InputError as error:
            tally.bad(what_of(error), error)
            continue
        if isinstance(job, str):
            tally.leave_out(job)
        else:
            tally.keep()
            yield job
    tally.close()


def what_of(error: InputError) -> str:
    """Return the column or field that a row's error names."""
    _, comma, column = error.field.rpartition(", ")
    return column if comma else "the whole of it"


def rigid_workload(
    path: Path, jobs: Iterable[LoggedJob], tally: Tally
) -> tuple[Workload, dict[str, CurveApplication]]:
    """Return the jobs of a log in order of arrival, the first at 0 s, and their
    applications.

    Jobs with the same GPUs, run time and load have the same application. tally: counts
    the rows from which `jobs` come. Raises InputError if there are no jobs.
    """
    ordered = in_order(path, jobs, tally)
    applications: dict[str, CurveApplication] = {}
    width = len(str(len(ordered) - 1))
    first_at = ordered[0].at
    traced = []
    for index, job in enumerate(ordered):
        what = f"{job.num_gpus}-gpus-{job.run_s:g}-s"
        if job.load < 1.0:
            what += f"-load-{job.load:g}"
        if what not in applications:
            rates = {job.num_gpus: float(job.num_gpus)}
            applications[what] = CurveApplication(
                what, rates, gpus=job.num_gpus, length_s=job.run_s, load=job.load
            )
        spec = curve_spec(applications[what], name=job.name, tenant=job.tenant)
        job_id = f"{index:0{width}d}-{job.name}"
        traced.append(
            TraceJob(id=job_id, at=job.at - first_at, application=what, spec=spec)
        )
    return of_rows(path, traced, tally), applications


def of_rows(path: Path, jobs: Iterable[TraceJob], tally: Tally) -> Workload:
    """Return the workload of a file, with the counts of its rows."""
    return Workload(
        name=trace_name(path),
        jobs=tuple(jobs),
        num_rows=tally.num_rows,
        left_out=dict(tally.left_out),
        mended=dict(tally.mended),
    )


def in_order(
    path: Path, jobs: Iterable[LoggedJob], tally: Tally
) -> Sequence[LoggedJob]:
    """Return the jobs by (submission, place in the log). Raises InputError if there are
    none.
    """
    ordered = sorted(jobs, key=lambda job: job.at)
    if not ordered:
        counts = tally_text(0, tally.num_rows, tally.left_out, tally.mended)
        found = "no job that ran on a GPU" + (f" ({counts})" if counts else "")
        raise InputError(f"{path}", found, "at least one")
    return ordered
