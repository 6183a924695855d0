"""The log of Alibaba's PAI (NSDI'22): pai_task_table.csv, ten columns without a header.

Format: alibaba/clusterdata, cluster-trace-gpu-v2020. A job is its tasks; the users are in another table.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from coadapt.sim.traces.cluster_log import LoggedJob, rigid_workload
from coadapt.sim.traces.curve import CurveApplication
from coadapt.sim.traces.table import Row, read_headless_rows
from coadapt.sim.workload import Workload

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


@dataclass(slots=True)
class _Job:
    start: float
    end: float
    gpus: float


def recognises(lines: Sequence[str], profiles: Path | None) -> bool:  # noqa: ARG001  # the signature is that of Importer
    """Return whether a file with these first lines is of this format."""
    cells = lines[0].split(",") if lines else []
    return len(cells) == len(COLUMNS) and cells[3].strip() in STATUSES


def load(
    path: Path,
    profiles: Path | None,  # noqa: ARG001  # as above
) -> tuple[Workload, dict[str, CurveApplication]]:
    """Return the jobs of `path`, rigid. Raises InputError for anything that the format does not allow."""
    return rigid_workload(path, read_log(path))


def read_log(path: Path) -> Iterator[LoggedJob]:
    """Yield the jobs of `path` whose tasks with GPUs have all ended. Raises InputError for bad rows.

    A job comes when its first task starts (the table has no submissions) and runs until the last one ends,
    on the GPUs of all its tasks together, rounded up: it may have asked for parts of them.
    """
    jobs: dict[str, _Job] = {}
    unfinished: set[str] = set()
    for row in read_headless_rows(path, COLUMNS, delimiter=","):
        name = row.text("job_name")
        if row.cells["status"] not in STATUSES:
            raise row.error("status", row.cells["status"], ", ".join(STATUSES))
        gpus = _number(row, "plan_gpu") / PERCENT * _number(row, "inst_num")
        if not gpus:
            continue
        if not (row.cells["start_time"] and row.cells["end_time"]):
            unfinished.add(name)
            continue
        start, end = row.number("start_time"), row.number("end_time")
        if end < start:
            raise row.error(
                "end_time", row.cells["end_time"], f"no less than start_time, {start:g}"
            )
        job = jobs.setdefault(name, _Job(start, end, 0.0))
        job.start, job.end, job.gpus = (
            min(job.start, start),
            max(job.end, end),
            job.gpus + gpus,
        )
    for name, job in jobs.items():
        if name not in unfinished and job.end > job.start:
            yield LoggedJob(
                name=name,
                at=job.start,
                run_s=job.end - job.start,
                num_gpus=math.ceil(job.gpus - 1e-9),
            )


def _number(row: Row, column: str) -> float:
    return row.number(column) if row.cells[column] else 0.0
