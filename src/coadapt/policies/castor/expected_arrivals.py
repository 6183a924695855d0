"""Expected arrivals: the jobs of the last two hours once more, at their rate, for an
hour.
"""

# Half of the jobs of two hours come in one, so every second one is expected: whole, or
# all of them in part, half as fast on half the GPUs, with half a chance to be the last.
# Which jobs are expected whole changes with each arrival. On GPUs of one type
# little depends on that. On several, the last end weighs more, and whether a long job
# is among those expected changed the value of a long one that is here by four times.
#
# A stream of jobs ends one day. The longer no job comes, against the rate before, the
# likelier it is that the last arrival was the last of all.

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from coadapt.model import JobId, JobView
from coadapt.policies.solvers.arrays import FloatArray
from coadapt.policies.solvers.concave_envelope import (
    NO_CURVES,
    Curves,
    concatenated,
)

MEMORY_S = 7_200.0  # arrivals of so long are expected again (1)
AHEAD_S = 3_600.0  # for so long (1)
SPAN_MIN_S = 600.0  # a rate over less says nothing (1)
END_CHANCE = 1e-3  # that a job is the last to come, a priori (tried: 0.003 and 0.01)
EXPECTED_MAX = 100  # so that thousands of arrivals do not slow every decision (1)


class Expected(NamedTuple):
    """Jobs to come: their curves, their work in progress, seconds until they come.

    part: how much of a job each of them is, and how likely it is to come.
    """

    curves: Curves
    left_J: FloatArray
    arrives_J: FloatArray
    part: float


NONE_EXPECTED = Expected(NO_CURVES, np.empty(0), np.empty(0), 1.0)


@dataclass(slots=True)
class _Arrival:
    """When a job came, its whole work in progress, and its curves once it has gone."""

    at: float
    whole: float
    curves: Curves | None = None


@dataclass(slots=True)
class Arrivals:
    """Recent arrivals in order. curves, row_of: of the jobs of the last round."""

    began_at: float = math.inf
    recent: dict[JobId, _Arrival] = field(default_factory=dict)
    curves: Curves = NO_CURVES
    row_of: dict[JobId, int] = field(default_factory=dict)
    gpu_types: tuple[str, ...] = ()

    def observe(
        self,
        at: float,
        jobs: Sequence[JobView],
        whole_J: FloatArray,
        curves: Curves,
        gpu_types: tuple[str, ...],
    ) -> None:
        """Take in the jobs of a round. whole_J: their work in progress, 0 where
        unknown.
        """
        known = [row for row, whole in enumerate(whole_J.tolist()) if whole > 0.0]
        row_of = {jobs[row].id: row for row in known}
        if gpu_types != self.gpu_types:
            # Curves that are kept are of other types now.
            self.recent = {
                job: self.recent[job] for job in self.recent if job in row_of
            }
        for gone, row in self.row_of.items():
            if gone not in row_of and gone in self.recent:
                self.recent[gone].curves = self.curves.one(row)
        self.began_at = min([self.began_at, at, *(job.submitted_at for job in jobs)])
        for name, row in row_of.items():
            came = _Arrival(jobs[row].submitted_at, float(whole_J[row]))
            self.recent.setdefault(name, came).curves = None
        ordered = sorted(self.recent.items(), key=lambda item: item[1].at)
        self.recent = dict(item for item in ordered if item[1].at > at - MEMORY_S)
        self.curves = curves
        self.row_of = row_of
        self.gpu_types = gpu_types

    def expected(self, at: float, *, in_part: bool, over: float) -> Expected:
        """Return the jobs expected in the next hour.

        in_part: whether all of the last two hours are, each in part. over: the chance
        that no job comes any more.
        """
        recent = list(self.recent.items())
        span_s = min(MEMORY_S, max(at - self.began_at, SPAN_MIN_S))
        coming = len(recent) * AHEAD_S / span_s * (1.0 - over)
        whole = round(coming)
        if not whole:
            return NONE_EXPECTED
        count = min(max(whole, len(recent)) if in_part else whole, EXPECTED_MAX)
        part = min(coming / count, 1.0) if in_part else 1.0
        in_time = coming / part if in_part else whole
        if count <= len(recent):
            numbers = [number * len(recent) // count for number in range(count)]
        else:
            numbers = [number % len(recent) for number in range(count)]
        again = [recent[number] for number in numbers]
        curves = concatenated(
            [
                self.curves.one(self.row_of[job])
                if each.curves is None
                else each.curves
                for job, each in again
            ]
        )
        curves = curves._replace(
            gpus_V=part * curves.gpus_V, goodput_V=part * curves.goodput_V
        )
        left_J: FloatArray = part * np.array([each.whole for _, each in again])
        numbers_J = np.arange(count, dtype=np.float64)
        arrives_J = (numbers_J + 0.5) * AHEAD_S / in_time
        return Expected(curves, left_J, arrives_J, part)


@dataclass(slots=True)
class Silence:
    """How long no job has come. came: instants of recent arrivals; first_at: of the
    first.
    """

    came: dict[JobId, float] = field(default_factory=dict)
    first_at: float = math.inf

    def over(self, at: float, jobs: Sequence[JobView]) -> float:
        """Return how likely it is that no job comes any more."""
        came = self.came | {job.id: job.submitted_at for job in jobs}
        latest_at = max(came.values())
        since = latest_at - MEMORY_S
        self.came = {job: came_at for job, came_at in came.items() if came_at > since}
        self.first_at = min(self.first_at, *self.came.values())
        span_s = min(MEMORY_S, max(latest_at - self.first_at, SPAN_MIN_S))
        missed = max(at - latest_at, 0.0) * len(self.came) / span_s
        return END_CHANCE / (END_CHANCE + (1.0 - END_CHANCE) * math.exp(-missed))
