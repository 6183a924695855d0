"""The traces of the Pollux artifact (OSDI'21): workload files, and measured profiles of six models.

Format and semantics: petuum/adaptdl, branch osdi21-artifact, directory simulator. Step times are
interpolated, never extrapolated; gradient statistics and iterations are linear between measured batch sizes.
"""

import re
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from coadapt.model import BatchLimits, GradStats, InputError, JobSpec, ReplicaLimits, RescaleContract
from coadapt.sim.applications import UnmeasuredError
from coadapt.sim.traces.table import Row, read_rows
from coadapt.sim.workload import TraceJob, Workload

if TYPE_CHECKING:
    from scipy.interpolate import LinearNDInterpolator

COLUMNS = ("name", "time", "application", "num_replicas", "batch_size")

# The artifact's own exceptions: yolov3 was profiled up to 16 samples per GPU, of which 8 are used; ncf keeps
# one batch size and one GPU.
MAX_ATOMIC = {"yolov3": 8}
FIXED_TOTAL = {"ncf": 32768}
NUM_REPLICAS_MAX = 64  # the artifact's cap on GPUs per job
NUM_NODES_MAX = 16  # the largest measured cluster; more nodes are timed as 16

_VALIDATION_FILE = re.compile(r"validation-(\d+)\.csv")

Times = tuple[float, float]  # seconds of a step, and of its synchronisation


class MeasuredApplication:
    """One model of the artifact, as measured; see sim.applications.Application for the methods."""

    def __init__(self, directory: Path) -> None:
        self.name = directory.name
        self._steps = _StepTimes(directory)
        self._totals, runs = _read_validation(directory)
        self.num_epochs = min(len(run) for run in runs)
        # (measured batch size, epoch, column), columns as in _VALIDATION_COLUMNS.
        self._runs = [run[: self.num_epochs] for run in runs]
        self._targets = (0.0, *(min(run[e][0] for run in runs) for e in range(self.num_epochs)))
        self._grad_stats: dict[tuple[int, int], GradStats] = {}
        smallest, largest = self._steps.atomic_range
        self.limits = BatchLimits(
            initial=self._totals[0],
            max_total=self._totals[-1],
            min_atomic=smallest,
            max_atomic=MAX_ATOMIC.get(self.name, largest),
        )

    def step_time(self, placement: tuple[int, ...], atomic: int) -> Times:
        return self._steps(placement, atomic)

    def grad_stats(self, total: int, epoch: int) -> GradStats:
        stats = self._grad_stats.get((total, epoch))
        if stats is None:
            sqr, var = self._between(total, epoch, 2), self._between(total, epoch, 3)
            stats = self._grad_stats[total, epoch] = GradStats(sqr=sqr, var=var)
        return stats

    def progress_at(self, epoch: int) -> float:
        return self._targets[epoch]

    def steps(self, total: int, epoch: int) -> float:
        return self._between(total, epoch - 1, 1) if epoch else 0.0

    def _between(self, total: int, row: int, column: int) -> float:
        totals = self._totals
        if not totals[0] <= total <= totals[-1]:
            allowed = f"measured are {totals[0]}..{totals[-1]}"
            raise UnmeasuredError(f"{self.name}: total batch {total} was not measured; {allowed}")
        right = bisect_left(totals, total)
        high = self._runs[right][row][column]
        if totals[right] == total:
            return high
        low = self._runs[right - 1][row][column]
        return _line(total, totals[right - 1], totals[right], low, high)


class _StepTimes:
    """Step times of one model: per measured placement, else by nodes, replicas and batch on 6 to 16 nodes."""

    def __init__(self, directory: Path) -> None:
        self._name = directory.name
        self._measured = _read_placements(directory / "placements.csv")
        self._large = _read_scalability(directory / "scalability.csv")
        self._memo: dict[tuple[tuple[int, ...], int], Times] = {}
        self._memo_large: dict[tuple[int, int, int], Times] = {}
        self._interpolator: LinearNDInterpolator | None = None

    @property
    def atomic_range(self) -> tuple[int, int]:
        atomics = [atomic for rows in self._measured.values() for atomic in rows]
        return min(atomics), max(atomics)

    def __call__(self, placement: tuple[int, ...], atomic: int) -> Times:
        times = self._memo.get((placement, atomic))
        if times is None:
            rows = self._measured.get(_canonical(placement))
            times = self._large_scale(placement, atomic) if rows is None else self._along(rows, atomic)
            if times is None:
                raise UnmeasuredError(
                    f"{self._name}: {atomic} samples per GPU on placement {placement} not measured"
                )
            self._memo[placement, atomic] = times
        return times

    def _along(self, rows: dict[int, Times], atomic: int) -> Times | None:
        measured = list(rows)
        if not measured[0] <= atomic <= measured[-1]:
            return None
        if atomic in rows:
            return rows[atomic]
        right = bisect_left(measured, atomic)
        low, high = measured[right - 1], measured[right]
        return (
            _line(atomic, low, high, rows[low][0], rows[high][0]),
            _line(atomic, low, high, rows[low][1], rows[high][1]),
        )

    def _large_scale(self, placement: tuple[int, ...], atomic: int) -> Times | None:
        key = (min(len(placement), NUM_NODES_MAX), sum(placement), atomic)
        times = self._memo_large.get(key)
        if times is None:
            if self._interpolator is None:
                self._interpolator = _interpolator(self._measured, self._large)
            step_s, sync_s = self._interpolator([key])[0]
            if np.isnan(step_s):
                return None
            times = self._memo_large[key] = (float(step_s), float(sync_s))
        return times


def recognises(lines: Sequence[str]) -> bool:
    """Return whether a file with these first lines is a workload of this format."""
    return bool(lines) and {"application", "num_replicas", "batch_size"} <= {
        cell.strip() for cell in lines[0].split(",")
    }


def load(path: Path, profiles: Path) -> tuple[Workload, dict[str, MeasuredApplication]]:
    """Return the workload of `path`, and the applications that it uses from the directory `profiles`.

    Raises InputError for anything that the format does not allow, in either.
    """
    if not profiles.is_dir():
        raise InputError("--profiles", str(profiles), "a directory with one directory per application")
    known = sorted(entry.name for entry in profiles.iterdir() if (entry / "placements.csv").is_file())
    if not known:
        raise InputError("--profiles", str(profiles), "a directory with APPLICATION/placements.csv in it")
    rows = list(read_rows(path, COLUMNS))
    applications: dict[str, MeasuredApplication] = {}
    for row in rows:
        name = row.text("application")
        if name not in known:
            raise row.error("application", name, f"one of {', '.join(known)}")
        applications[name] = _application((profiles / name).resolve())
    width = len(str(len(rows) - 1))
    names: set[str] = set()
    jobs = []
    for index, row in enumerate(rows):
        name = row.text("name")
        if name in names:
            raise row.error("name", name, "a name that no earlier line has")
        names.add(name)
        # Ids sort in file order: it breaks ties between arrivals of the same second.
        job_id = f"{index:0{width}d}-{name}"
        application = applications[row.text("application")]
        at = float(row.integer("time", at_least=0))
        jobs.append(TraceJob(id=job_id, at=at, application=application.name, spec=_spec(row, application)))
    return Workload(name=path.stem, jobs=tuple(jobs)), applications


def _spec(row: Row, application: MeasuredApplication) -> JobSpec:
    limits = application.limits
    replicas = row.integer("num_replicas", at_least=1)
    total = row.integer("batch_size", at_least=1)
    if not limits.initial <= total <= limits.max_total:
        raise row.error("batch_size", total, f"{limits.initial}..{limits.max_total}, as measured")
    # No local batch below the smallest measured one; rounding up allows a remainder.
    if replicas > NUM_REPLICAS_MAX or -(-total // replicas) < limits.min_atomic:
        most = min(NUM_REPLICAS_MAX, total // limits.min_atomic)
        raise row.error("num_replicas", replicas, f"1..{most} for a total batch of {total}")
    if application.name in FIXED_TOTAL:
        return JobSpec(
            name=row.text("name"),
            application=application.name,
            batch=replace(limits, requested=FIXED_TOTAL[application.name]),
            replicas=ReplicaLimits(),
            contract=RescaleContract.FIXED,
        )
    most = max(replicas, min(NUM_REPLICAS_MAX, limits.max_total // limits.min_atomic))
    return JobSpec(
        name=row.text("name"),
        application=application.name,
        batch=replace(limits, requested=total),
        replicas=ReplicaLimits(min=1, max=most, requested=replicas),
        contract=RescaleContract.ADAPTIVE,
    )


@cache
def _application(directory: Path) -> MeasuredApplication:
    # Shared by all workloads of a process, with all that it has interpolated so far.
    return MeasuredApplication(directory)


_VALIDATION_COLUMNS = ("progress", "iteration", "grad_sqr", "grad_var")


def _read_validation(directory: Path) -> tuple[list[int], list[list[tuple[float, ...]]]]:
    """Return the measured batch sizes, ascending, and per size its rows: one per epoch."""
    paths = {
        int(match[1]): path
        for path in sorted(directory.iterdir())
        if (match := _VALIDATION_FILE.fullmatch(path.name)) and int(match[1]) > 0
    }
    if not paths:
        raise InputError(f"{directory}", "no validation-B.csv", "one per measured total batch size B")
    totals = sorted(paths)
    runs = [
        [
            tuple(row.number(column) for column in _VALIDATION_COLUMNS)
            for row in read_rows(paths[total], _VALIDATION_COLUMNS)
        ]
        for total in totals
    ]
    return totals, runs


def _read_placements(path: Path) -> dict[tuple[int, ...], dict[int, Times]]:
    """Return per placement its rows {atomic batch: times}, ascending."""
    measured: dict[tuple[int, ...], dict[int, Times]] = {}
    for row in read_rows(path, ("placement", "local_bsz", "step_time", "sync_time")):
        placement = tuple(int(digit) for digit in str(row.integer("placement", at_least=1)))
        if placement != _canonical(placement):
            raise row.error("placement", row.text("placement"), "no digit 0, and the smallest rotation")
        atomic = row.integer("local_bsz", at_least=1)
        measured.setdefault(placement, {})[atomic] = _times(row)
    return {placement: dict(sorted(rows.items())) for placement, rows in measured.items()}


def _read_scalability(path: Path) -> dict[tuple[int, int, int], Times]:
    """Return {(nodes, replicas, atomic batch): times}."""
    large = {}
    for row in read_rows(path, ("num_nodes", "num_replicas", "local_bsz", "step_time", "sync_time")):
        columns = ("num_nodes", "num_replicas", "local_bsz")
        nodes, replicas, atomic = (row.integer(column, at_least=1) for column in columns)
        large[nodes, replicas, atomic] = _times(row)
    return large


def _times(row: Row) -> Times:
    step_s, sync_s = row.number("step_time"), row.number("sync_time")
    if not sync_s < step_s:
        raise row.error("sync_time", sync_s, f"less than step_time, {step_s}")
    return step_s, sync_s


def _interpolator(
    measured: dict[tuple[int, ...], dict[int, Times]], large: dict[tuple[int, int, int], Times]
) -> "LinearNDInterpolator":
    """Return (nodes, replicas, atomic) -> times: linear between all points, like placements averaged."""
    from scipy.interpolate import LinearNDInterpolator  # 0.4 s of CPU: only where a placement needs it

    alike: dict[tuple[int, int, int], list[Times]] = {}
    for placement, rows in measured.items():
        for atomic, times in rows.items():
            alike.setdefault((len(placement), sum(placement), atomic), []).append(times)
    # Points on a grid have several triangulations; their order, which is the artifact's, decides which it is.
    points = [*sorted(alike), *large]
    values = [np.mean(alike[key], axis=0) for key in sorted(alike)] + [
        np.array(times) for times in large.values()
    ]
    return LinearNDInterpolator(np.array(points, dtype=float), np.array(values))


@cache
def _canonical(placement: tuple[int, ...]) -> tuple[int, ...]:
    """Return the smallest rotation: replicas form a ring, so rotations are alike (mirror images are not)."""
    return min(placement[i:] + placement[:i] for i in range(len(placement)))


def _line(x: float, x0: float, x1: float, y0: float, y1: float) -> float:
    return y0 + (y1 - y0) / (x1 - x0) * (x - x0)
