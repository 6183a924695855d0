"""The log of Alibaba's PAI (NSDI'22): pai_task_table.csv, ten columns without a header.

Format: alibaba/clusterdata, cluster-trace-gpu-v2020. A job is its tasks; the users are
in another table.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from coadapt.model import InputError
from coadapt.sim.traces.cluster_log import (
    LoggedJob,
    log_tally,
    rigid_workload,
    what_of,
)
from coadapt.sim.traces.curve import CurveApplication
from coadapt.sim.traces.table import Row, is_missing, read_headless_rows
from coadapt.sim.traces.tally import ReadOptions, Tally
from coadapt.sim.workload import ARRIVAL_MAX_S, Workload

COLUMNS = (
    "job_name",
    "task_name",
    "inst_num",
    "status",
    "start_time",
    "end_time",
    "plan_cpu",
    "plan_mem",
    "plan_gpu",
    "gpu_type",
)
STATUSES = ("Terminated", "Failed", "Running", "Waiting", "Ready", "Interrupted")
PERCENT = 100.0  # of a GPU, the unit of plan_gpu, per instance


NO_GPU = "no GPU"
NOT_ENDED = "a task that had not ended, or never ran"
OF_SUCH_A_JOB = "a task of a job with another task that is left out"
RAN_0_S = "ran for 0 s"


@dataclass(slots=True)
class _Job:
    start: float
    end: float
    gpus: float
    num_parts: int = 0


def recognises(lines: Sequence[str], profiles: Path | None) -> bool:  # noqa: ARG001  # the signature is that of Importer
    """Return whether a file with these first lines is of this format."""
    cells = [cell.strip() for cell in lines[0].split(",")] if lines else []
    if cells == list(COLUMNS):
        return True
    return len(cells) == len(COLUMNS) and cells[3] in STATUSES


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
    """Yield the jobs of `path` whose tasks with GPUs have all ended. Raises InputError
    for bad rows.

    The table has no submissions, so a job's arrival is the start of its first task. The
    job runs until its last task ends, on the GPUs of all its tasks together. If the
    tasks requested parts of GPUs, the job gets the smallest number of whole GPUs that
    has room for them, and keeps each of these busy in part.
    """
    jobs: dict[str, _Job] = {}
    unfinished: set[str] = set()
    for row in read_headless_rows(path, COLUMNS, delimiter=",", tally=tally):
        name = row.cells["job_name"]
        try:
            part = _part(row)
        except InputError as error:
            tally.bad(what_of(error), error)
            unfinished.add(name)
            continue
        if part is None:
            tally.leave_out(NOT_ENDED)
            unfinished.add(name)
        elif not part.gpus:
            tally.leave_out(NO_GPU)
        else:
            tally.keep()
            job = jobs.setdefault(name, _Job(part.start, part.end, 0.0))
            job.start = min(job.start, part.start)
            job.end = max(job.end, part.end)
            job.gpus += part.gpus
            job.num_parts += 1
    tally.close()
    for name, job in jobs.items():
        if name in unfinished:
            tally.left_out[OF_SUCH_A_JOB] += job.num_parts
        elif job.end <= job.start:
            tally.left_out[RAN_0_S] += job.num_parts
        else:
            yield _logged(name, job, tally)


def _part(row: Row) -> _Job | None:
    """Return the GPUs of a task with its start and end. A task without GPUs has 0 of
    them. None: the task had not ended.
    """
    row.text("job_name")
    if row.cells["status"] not in STATUSES:
        raise row.error("status", row.cells["status"], ", ".join(STATUSES))
    gpus = _number(row, "plan_gpu") / PERCENT * _number(row, "inst_num")
    if not gpus:
        return _Job(0.0, 0.0, 0.0)
    if is_missing(row.cells["start_time"]) or is_missing(row.cells["end_time"]):
        return None
    start = row.number("start_time", ARRIVAL_MAX_S)
    end = row.number("end_time", ARRIVAL_MAX_S)
    if end < start:
        raise row.error(
            "end_time", row.cells["end_time"], f"no less than start_time, {start:g}"
        )
    return _Job(start, end, gpus)


def _logged(name: str, job: _Job, tally: Tally) -> LoggedJob:
    num_gpus = max(math.ceil(job.gpus - 1e-9), 1)
    load = min(job.gpus / num_gpus, 1.0)
    if tally.options.whole_gpus:
        load = 1.0
    return LoggedJob(
        name=name,
        at=job.start,
        run_s=job.end - job.start,
        num_gpus=num_gpus,
        load=load,
    )


def _number(row: Row, column: str) -> float:
    return 0.0 if is_missing(row.cells[column]) else row.number(column)
