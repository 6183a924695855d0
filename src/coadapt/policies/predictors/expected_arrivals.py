"""Expected arrivals: the jobs that a policy expects in the next hour, drawn from those
of the last two hours.
"""

# In the next hour as many jobs are expected as came per hour in the last two, evenly
# spaced: n = arrivals x AHEAD_S / MEMORY_S x P(jobs still come). They are copies of
# recent jobs, in one of two ways:
#
#   whole     round(n) copies of recent jobs, evenly chosen. Used on one GPU type.
#   in part   a copy of each recent job, scaled by part = n / number of copies. GPUs,
#             goodput, work, weight and the chance to be the last job are all multiplied
#             by `part`, so its training time stays the same. Used on several types.
#
# There are at most EXPECTED_MAX copies. If more jobs are expected, each copy represents
# several jobs: `part` is larger than 1, and the copies still arrive over the whole
# hour.
#
# Which jobs are copied whole changes with each arrival. On one GPU type that matters
# little. On several types the makespan weighs more, and whether a long job was among
# the copies changed the value of a present long job by a factor of four.
#
# A stream of jobs ends one day. With a prior chance e = END_CHANCE that a given job is
# the last, and Poisson arrivals, the chance after a silence in which m jobs were due at
# the earlier rate is e / (e + (1 - e) exp(-m)).

import math
from collections.abc import Mapping, Sequence
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

# Chosen by hand, not measured, except for END_CHANCE.
MEMORY_S = 7_200.0  # age up to which arrivals count as recent, s
AHEAD_S = 3_600.0  # time for which arrivals are expected, s
SPAN_MIN_S = 600.0  # shortest time over which an arrival rate is computed, s
END_CHANCE = 1e-3  # prior chance that a job is the last (tried: 0.003 and 0.01)
EXPECTED_MAX = 100  # most expected jobs, which bounds the time of a decision


class Expected(NamedTuple):
    """Expected jobs; without arguments: none.

    curves: their goodput curves. left_J: their work, samples. arrives_J: seconds until
    they come. part: the factor by which each is scaled: 1 for whole jobs, more than 1
    if each represents several jobs.
    """

    curves: Curves = NO_CURVES
    left_J: FloatArray = np.empty(0)
    arrives_J: FloatArray = np.empty(0)
    part: float = 1.0


class _Arrival(NamedTuple):
    """A recent arrival.

    at: instant. whole: its whole work, samples. curves: its goodput curves if it has
    gone, None while it is here.
    """

    at: float
    whole: float
    curves: Curves | None = None


@dataclass(frozen=True, slots=True)
class Arrivals:
    """Recent arrivals, in order of their instants; a value.

    began_at: the first instant of which anything is known. curves, row_of, gpu_types:
    goodput curves of the last round, the row of each of its jobs, and its GPU types.
    """

    began_at: float = math.inf
    recent: Mapping[JobId, _Arrival] = field(default_factory=dict)
    curves: Curves = NO_CURVES
    row_of: Mapping[JobId, int] = field(default_factory=dict)
    gpu_types: tuple[str, ...] = ()

    def observed(
        self,
        at: float,
        jobs: Sequence[JobView],
        whole_J: FloatArray,
        curves: Curves,
        gpu_types: tuple[str, ...],
    ) -> "Arrivals":
        """Return the arrivals after a round. whole_J: the whole work of its jobs,
        samples, 0: unknown.
        """
        known = [row for row, whole in enumerate(whole_J.tolist()) if whole > 0.0]
        row_of = {jobs[row].id: row for row in known}
        # Kept curves of other GPU types are forgotten, with the jobs that have gone.
        recent = {
            job: came
            for job, came in self.recent.items()
            if gpu_types == self.gpu_types or job in row_of
        }
        for gone, row in self.row_of.items():
            if gone not in row_of and gone in recent:
                recent[gone] = recent[gone]._replace(curves=self.curves.one(row))
        for name, row in row_of.items():
            came = _Arrival(jobs[row].submitted_at, float(whole_J[row]))
            recent[name] = recent.get(name, came)._replace(curves=None)
        ordered = sorted(recent.items(), key=lambda item: item[1].at)
        return Arrivals(
            began_at=min([self.began_at, at, *(job.submitted_at for job in jobs)]),
            recent=dict(item for item in ordered if item[1].at > at - MEMORY_S),
            curves=curves,
            row_of=row_of,
            gpu_types=gpu_types,
        )

    def expected(self, at: float, *, in_part: bool, over: float) -> Expected:
        """Return the jobs expected in the next hour.

        in_part: scale a copy of every recent job instead of choosing some. over: the
        chance that no job comes any more.
        """
        span_s = min(MEMORY_S, max(at - self.began_at, SPAN_MIN_S))
        num_expected = len(self.recent) * AHEAD_S / span_s * (1.0 - over)
        num_whole = round(num_expected)
        if not num_whole:
            return Expected()
        num_copies = max(num_whole, len(self.recent)) if in_part else num_whole
        part = min(num_expected / num_copies, 1.0) if in_part else 1.0
        num_in_time = num_expected / part if in_part else float(num_whole)
        count = min(num_copies, EXPECTED_MAX)
        part *= num_copies / count
        num_in_time *= count / num_copies
        curves, whole_J = self._copies(count)
        scaled = curves._replace(
            gpus_V=part * curves.gpus_V, goodput_V=part * curves.goodput_V
        )
        numbers_J = np.arange(count, dtype=np.float64)
        arrives_J = (numbers_J + 0.5) * AHEAD_S / num_in_time
        return Expected(scaled, part * whole_J, arrives_J, part)

    def _copies(self, count: int) -> tuple[Curves, FloatArray]:
        """Return goodput curves and whole work of `count` copies of recent jobs, evenly
        chosen.
        """
        recent = list(self.recent.items())
        if count <= len(recent):
            numbers = [number * len(recent) // count for number in range(count)]
        else:
            numbers = [number % len(recent) for number in range(count)]
        copied = [recent[number] for number in numbers]
        curves = [
            self.curves.one(self.row_of[job]) if came.curves is None else came.curves
            for job, came in copied
        ]
        return concatenated(curves), np.array([came.whole for _, came in copied])


@dataclass(frozen=True, slots=True)
class Silence:
    """How long no job has come, against the rate of arrivals before; a value.

    came: instants of recent arrivals. first_at: instant of the first arrival of all.
    """

    came: Mapping[JobId, float] = field(default_factory=dict)
    first_at: float = math.inf

    def over(self, at: float, jobs: Sequence[JobView]) -> tuple[float, "Silence"]:
        """Return the chance that no job comes any more, and the silence after a round
        with these jobs.
        """
        known = {**self.came, **{job.id: job.submitted_at for job in jobs}}
        latest_at = max(known.values())
        since = latest_at - MEMORY_S
        came = {job: came_at for job, came_at in known.items() if came_at > since}
        first_at = min(self.first_at, *came.values())
        span_s = min(MEMORY_S, max(latest_at - first_at, SPAN_MIN_S))
        missed = max(at - latest_at, 0.0) * len(came) / span_s
        over = END_CHANCE / (END_CHANCE + (1.0 - END_CHANCE) * math.exp(-missed))
        return over, Silence(came, first_at)
