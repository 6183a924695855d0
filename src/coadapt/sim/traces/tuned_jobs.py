"""Workload files of tuned jobs, which the artifacts of Pollux (OSDI'21) and Sia
(SOSP'23) have in common.

Each line is one job: its arrival, its application, and the GPUs and total batch that
its user would choose by hand.
"""

import csv
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple, TypeVar

from coadapt.model import (
    BatchLimits,
    InputError,
    JobSpec,
    ReplicaLimits,
    RescaleContract,
)
from coadapt.sim.applications import Application
from coadapt.sim.traces.table import Row, header_of, read_rows, trace_name
from coadapt.sim.workload import ARRIVAL_MAX_S, TraceJob, Workload

COLUMNS = ("name", "time", "application", "num_replicas", "batch_size")
# A column of Sia's files: what may change about a job. Without it a job is adaptive.
CATEGORY = "category"
ADAPTIVE = "adaptive"
SCALE_GPUS = "scale-gpus"
RIGID = "rigid"
CATEGORIES = (ADAPTIVE, SCALE_GPUS, RIGID)
NUM_REPLICAS_MAX = 64  # both artifacts' cap on GPUs per job

A = TypeVar("A", bound=Application)


class TunedJob(NamedTuple):
    """One line of such a file, in the order of COLUMNS. time: s."""

    name: str
    time: int
    application: str
    num_replicas: int
    batch_size: int


def write_jobs(path: Path, jobs: Iterable[TunedJob]) -> None:
    """Write a file that `read_jobs` reads. An existing file of that name is
    replaced.
    """
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows([COLUMNS, *jobs])


def has_columns(lines: Sequence[str]) -> bool:
    """Return whether these are the first lines of a workload of tuned jobs, valid or
    not.
    """
    return set(COLUMNS[2:]) <= header_of(lines)


def application_folders(profiles: Path | None, needs: str) -> dict[str, Path]:
    """Return the folders in `profiles` with a file that matches `needs`, by name.
    InputError if none has.
    """
    allowed = f"a directory with APPLICATION/{needs} in it"
    if profiles is None or not profiles.is_dir():
        raise InputError(
            "--profiles", "nothing" if profiles is None else str(profiles), allowed
        )
    folders = {
        each.name: each.resolve()
        for each in sorted(profiles.iterdir())
        if any(each.glob(needs))
    }
    if not folders:
        raise InputError("--profiles", str(profiles), allowed)
    return folders


def read_jobs(
    path: Path, known: Mapping[str, Callable[[], A]], spec: Callable[[Row, A], JobSpec]
) -> tuple[Workload, dict[str, A]]:
    """Return the jobs of `path` with the applications that they train, of those that
    are `known`.

    Raises InputError for an unknown application and for a name that occurs twice, and
    whatever `spec` raises.
    """
    rows = list(read_rows(path, COLUMNS, known=(CATEGORY,)))
    applications: dict[str, A] = {}
    width = len(str(len(rows) - 1))
    names: set[str] = set()
    jobs = []
    for index, row in enumerate(rows):
        wanted = row.text("application")
        name = row.text("name")
        if wanted not in known:
            raise row.error("application", wanted, f"one of {', '.join(known)}")
        if wanted not in applications:
            applications[wanted] = known[wanted]()
        if name in names:
            raise row.error("name", name, "a name that no earlier line has")
        names.add(name)
        # Ids sort in file order, which breaks ties between arrivals in the same second.
        job_id = f"{index:0{width}d}-{name}"
        at = row.number("time", ARRIVAL_MAX_S)
        jobs.append(
            TraceJob(
                id=job_id,
                at=at,
                application=wanted,
                spec=spec(row, applications[wanted]),
            )
        )
    return Workload(name=trace_name(path), jobs=tuple(jobs)), applications


def tuned_spec(row: Row, limits: BatchLimits) -> JobSpec:
    """Return the spec of a job. It requests the GPUs and the batch of its line. It is
    adaptive unless its category is another one.

    Raises InputError for a batch outside of `limits`, or for more GPUs than the batch
    fills.
    """
    replicas = row.integer("num_replicas", at_least=1)
    total = row.integer("batch_size", at_least=1)
    if not limits.initial <= total <= limits.max_total:
        raise row.error(
            "batch_size", total, f"{limits.initial}..{limits.max_total}, as measured"
        )
    # No local batch below the smallest measured one; rounding up allows a remainder.
    if replicas > NUM_REPLICAS_MAX or -(-total // replicas) < limits.min_atomic:
        most = min(NUM_REPLICAS_MAX, total // limits.min_atomic)
        raise row.error(
            "num_replicas", replicas, f"1..{most} for a total batch of {total}"
        )
    category = row.cells.get(CATEGORY) or ADAPTIVE
    if category not in CATEGORIES:
        raise row.error(CATEGORY, category, ", ".join(CATEGORIES))
    fills = limits.max_total if category == ADAPTIVE else total
    most = max(replicas, min(NUM_REPLICAS_MAX, fills // limits.min_atomic))
    may = ReplicaLimits(min=1, max=most, requested=replicas)
    if category == RIGID:
        may = ReplicaLimits(min=replicas, max=replicas)
    adaptive = category == ADAPTIVE
    return JobSpec(
        name=row.text("name"),
        application=row.text("application"),
        batch=replace(limits, requested=total),
        replicas=may,
        contract=RescaleContract.ADAPTIVE if adaptive else RescaleContract.FIXED,
    )
