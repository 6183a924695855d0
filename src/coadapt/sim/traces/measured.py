"""Measurements of a model in the files of the artifacts of Pollux (OSDI'21) and Sia
(SOSP'23).

Step times are interpolated, never extrapolated; gradient statistics and iterations are
linear between measured batch sizes.
"""

import math
import re
from bisect import bisect_left
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from coadapt.model import GradStats, InputError
from coadapt.model.errors import require
from coadapt.sim.applications import UnmeasuredError
from coadapt.sim.traces.table import Row, read_rows

if TYPE_CHECKING:
    from scipy.interpolate import LinearNDInterpolator

_VALIDATION_FILE = re.compile(r"validation-(\d+)\.csv")

Times = tuple[float, float]  # seconds of a step, and of its synchronisation


class StepTimes:
    """Step times of one model on one GPU type. A measured placement has its own times;
    other times are interpolated over nodes, replicas and batch.

    num_nodes_max: the nodes of the largest measured cluster. More nodes are timed as
    this number.
    """

    def __init__(
        self, name: str, placements: Path, scalability: Path, num_nodes_max: int
    ) -> None:
        require("interpolating measured step times", "scipy", "solvers")
        self._name = name
        self._num_nodes_max = num_nodes_max
        self._measured = _read_placements(placements)
        self._large = _read_scalability(scalability)
        self._memo: dict[tuple[tuple[int, ...], int], Times] = {}
        self._memo_large: dict[tuple[int, int, int], Times] = {}
        self._memo_most: dict[tuple[int, ...], int] = {}
        self._interpolator: LinearNDInterpolator | None = None

    @property
    def atomic_range(self) -> tuple[int, int]:
        """The smallest and the largest pass, in samples, that were measured on any
        placement.
        """
        atomics = [atomic for rows in self._measured.values() for atomic in rows]
        return min(atomics), max(atomics)

    def most_on(self, placement: tuple[int, ...]) -> int:
        """Return the largest pass, in samples, with a known time on `placement`, 0 if
        there is none.
        """
        most = self._memo_most.get(placement)
        if most is None:
            rows = self._measured.get(_canonical(placement))
            if rows is not None:
                most = max(rows)
            else:
                sizes = sorted({atomic for _, _, atomic in self._large}, reverse=True)
                most = next(
                    (each for each in sizes if self._large_scale(placement, each)), 0
                )
            self._memo_most[placement] = most
        return most

    def __call__(self, placement: tuple[int, ...], atomic: int) -> Times:
        """Return the times of one step. Raises UnmeasuredError outside of the measured
        range.
        """
        times = self._memo.get((placement, atomic))
        if times is None:
            rows = self._measured.get(_canonical(placement))
            times = (
                self._large_scale(placement, atomic)
                if rows is None
                else self._along(rows, atomic)
            )
            if times is None:
                raise UnmeasuredError(
                    f"{self._name}: {atomic} samples per GPU on placement "
                    f"{placement} not measured"
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
        low = measured[right - 1]
        high = measured[right]
        return (
            _line(atomic, low, high, rows[low][0], rows[high][0]),
            _line(atomic, low, high, rows[low][1], rows[high][1]),
        )

    def _large_scale(self, placement: tuple[int, ...], atomic: int) -> Times | None:
        key = (min(len(placement), self._num_nodes_max), sum(placement), atomic)
        times = self._memo_large.get(key)
        if times is None:
            if self._interpolator is None:
                self._interpolator = _interpolator(self._measured, self._large)
            step_s, sync_s = self._interpolator([key])[0]
            if np.isnan(step_s):
                return None
            times = self._memo_large[key] = (float(step_s), float(sync_s))
        return times


class Validation:
    """The whole training runs of one model, one for each measured total batch, and
    interpolation between them.
    """

    def __init__(self, directory: Path) -> None:
        self.name = directory.name
        self.totals, runs = _read_validation(directory)
        self.num_epochs = min(len(run) for run in runs)
        # (measured batch size, epoch, column), columns as in _VALIDATION_COLUMNS.
        self._runs = [run[: self.num_epochs] for run in runs]
        self._targets = (
            0.0,
            *(min(run[e][0] for run in runs) for e in range(self.num_epochs)),
        )
        self._grad_stats: dict[tuple[int, int], GradStats] = {}
        self._metrics: dict[tuple[int, int], dict[str, float]] = {}

    def grad_stats(self, total: int, epoch: int) -> GradStats:
        """Return the gradient statistics at `total` in `epoch`; UnmeasuredError for an
        unmeasured total.
        """
        stats = self._grad_stats.get((total, epoch))
        if stats is None:
            sqr = self._between(total, epoch, 2)
            var = self._between(total, epoch, 3)
            stats = self._grad_stats[total, epoch] = GradStats(sqr=sqr, var=var)
        return stats

    def progress_at(self, epoch: int) -> float:
        """Return the progress after `epoch` epochs, in steps at the smallest total."""
        return self._targets[epoch]

    def steps(self, total: int, epoch: int) -> float:
        """Return the steps that `epoch` epochs take at `total`."""
        return self._between(total, epoch - 1, 1) if epoch else 0.0

    def metrics(self, total: int, epoch: int) -> dict[str, float]:
        """Return the model's own measure of quality after `epoch` epochs at `total`,
        empty if the files have none.

        This is accuracy, F1, error rate or loss, depending on the model. The column
        says neither which of them it is, nor whether more is better.
        """
        metrics = self._metrics.get((total, epoch))
        if metrics is None:
            value = self._between(total, epoch - 1, 4)
            metrics = self._metrics[total, epoch] = (
                {} if math.isnan(value) else {METRIC: value}
            )
        return metrics

    def _between(self, total: int, row: int, column: int) -> float:
        totals = self.totals
        if not totals[0] <= total <= totals[-1]:
            allowed = f"measured are {totals[0]}..{totals[-1]}"
            raise UnmeasuredError(
                f"{self.name}: total batch {total} was not measured; {allowed}"
            )
        right = bisect_left(totals, total)
        high = self._runs[right][row][column]
        if totals[right] == total:
            return high
        low = self._runs[right - 1][row][column]
        return _line(total, totals[right - 1], totals[right], low, high)


_VALIDATION_COLUMNS = ("progress", "iteration", "grad_sqr", "grad_var")
# The metric that simulated jobs log from the column `metric`. Files may lack this
# column.
METRIC = "validation_metric"


def _read_validation(
    directory: Path,
) -> tuple[list[int], list[list[tuple[float, ...]]]]:
    """Return the measured batch sizes, ascending, and per size its rows: one per
    epoch.
    """
    paths = {
        int(match[1]): path
        for path in sorted(directory.iterdir())
        if (match := _VALIDATION_FILE.fullmatch(path.name)) and int(match[1]) > 0
    }
    if not paths:
        raise InputError(
            f"{directory}", "no validation-B.csv", "one per measured total batch size B"
        )
    totals = sorted(paths)
    runs = [
        [
            (*(row.number(column) for column in _VALIDATION_COLUMNS), _metric(row))
            for row in read_rows(paths[total], _VALIDATION_COLUMNS)
        ]
        for total in totals
    ]
    return totals, runs


def _metric(row: Row) -> float:
    """Return the measure of quality in `row`, NaN if there is none. Raises InputError
    for text.
    """
    value = row.cells.get("metric", "")
    try:
        number = float(value or math.nan)
    except ValueError:
        raise row.error("metric", value, "a number, or nothing") from None
    return number if math.isfinite(number) else math.nan


def _read_placements(path: Path) -> dict[tuple[int, ...], dict[int, Times]]:
    """Return per placement its rows {atomic batch: times}, ascending."""
    measured: dict[tuple[int, ...], dict[int, Times]] = {}
    known: dict[
        str, dict[int, Times]
    ] = {}  # the rows of each placement by its text: most have many
    for row in read_rows(path, ("placement", "local_bsz", "step_time", "sync_time")):
        written = row.cells["placement"]
        if written not in known:
            known[written] = measured.setdefault(_placement(row), {})
        known[written][row.integer("local_bsz", at_least=1)] = _times(row)
    return {
        placement: dict(sorted(rows.items())) for placement, rows in measured.items()
    }


def _placement(row: Row) -> tuple[int, ...]:
    placement = tuple(int(digit) for digit in str(row.integer("placement", at_least=1)))
    if placement != _canonical(placement):
        raise row.error(
            "placement", row.text("placement"), "no digit 0, and the smallest rotation"
        )
    return placement


def _read_scalability(path: Path) -> dict[tuple[int, int, int], Times]:
    """Return {(nodes, replicas, atomic batch): times}."""
    large = {}
    for row in read_rows(
        path, ("num_nodes", "num_replicas", "local_bsz", "step_time", "sync_time")
    ):
        columns = ("num_nodes", "num_replicas", "local_bsz")
        nodes, replicas, atomic = (
            row.integer(column, at_least=1) for column in columns
        )
        large[nodes, replicas, atomic] = _times(row)
    return large


def _times(row: Row) -> Times:
    step_s = row.number("step_time")
    sync_s = row.number("sync_time")
    if not sync_s < step_s:
        raise row.error("sync_time", sync_s, f"less than step_time, {step_s}")
    return step_s, sync_s


def _interpolator(
    measured: dict[tuple[int, ...], dict[int, Times]],
    large: dict[tuple[int, int, int], Times],
) -> "LinearNDInterpolator":
    """Return a function of (nodes, replicas, atomic) that gives the times, linear
    between all points. Placements with equal nodes and replicas are averaged.
    """
    from scipy.interpolate import (
        LinearNDInterpolator,
    )  # 0.4 s of CPU: only where a placement needs it

    times = {
        (len(placement), sum(placement), atomic, placement): times
        for placement, rows in measured.items()
        for atomic, times in rows.items()
    }
    # Points on a grid have several triangulations. The order of the points decides
    # between them, so it is the artifact's order.
    alike = sorted({key[:3] for key in times})
    place = {key: index for index, key in enumerate(alike)}
    of_T = [place[key[:3]] for key in times]
    sum_A = np.zeros((len(alike), 2))
    np.add.at(sum_A, of_T, list(times.values()))
    points = np.array([*alike, *large], dtype=float)
    mean_A = sum_A / np.bincount(of_T)[:, None]
    return LinearNDInterpolator(
        points, np.concatenate([mean_A, np.array([*large.values()])])
    )


@cache
def _canonical(placement: tuple[int, ...]) -> tuple[int, ...]:
    """Return the smallest rotation. Replicas form a ring, so all rotations are the same
    placement. Mirror images are not.
    """
    return min(placement[i:] + placement[:i] for i in range(len(placement)))


def _line(x: float, x0: float, x1: float, y0: float, y1: float) -> float:
    return y0 + (y1 - y0) / (x1 - x0) * (x - x0)
