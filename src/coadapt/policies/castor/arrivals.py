"""Expected arrivals: the jobs of the last two hours once more, at their mean rate, for one hour."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import NamedTuple

import numpy as np

from coadapt.model import JobId, JobView
from coadapt.policies.castor.arrays import FloatArray
from coadapt.policies.castor.fluid.crowd import Curves

MEMORY_S = 7_200.0
AHEAD_S = 3_600.0
SPAN_MIN_S = 600.0  # a rate is not told from less
EXPECTED_MAX = 200  # so that thousands of arrivals do not slow every play (1)


class _Seen(NamedTuple):
    """A job that came lately: when, its length in progress, its curve as of the last round that it was in."""

    at: float
    whole: float
    curves: Curves
    row: int

    def corners(self) -> tuple[FloatArray, FloatArray]:
        begin, end = self.curves.first_J[self.row], self.curves.first_J[self.row + 1]
        return self.curves.gpus_V[begin:end], self.curves.goodput_V[begin:end]

    def alone(self) -> "_Seen":
        """Return the same without the other jobs of that round, which need room."""
        gpus_V, goodput_V = self.corners()
        first_J = np.array([0, len(gpus_V)])
        return _Seen(self.at, self.whole, Curves(first_J, gpus_V.copy(), goodput_V.copy()), 0)


@dataclass(frozen=True, slots=True)
class Expected:
    """Jobs to come: curves one after the other, their lengths in progress, seconds until they come."""

    curves: Curves
    left_J: FloatArray
    arrives_J: FloatArray


@dataclass(slots=True)
class Arrivals:
    """Who came lately, with the curves that were learned of them. curves: of the last round."""

    began_at: float | None = None
    seen: dict[JobId, _Seen] = field(default_factory=dict)
    curves: Curves | None = None

    def observe(self, at: float, jobs: Sequence[JobView], curves: Curves, whole_J: FloatArray) -> None:
        """Take in jobs whose length `whole_J` (progress) is known (> 0); forget those of long ago."""
        if self.began_at is None:
            self.began_at = min([at, *(job.submitted_at for job in jobs)])
        seen, since = self.seen, at - MEMORY_S
        for row, (job, whole) in enumerate(zip(jobs, whole_J.tolist(), strict=True)):
            if whole > 0.0 and job.submitted_at > since:
                known = seen.get(job.id)
                seen[job.id] = _Seen(job.submitted_at, known.whole if known else whole, curves, row)
        for job_id, each in list(seen.items()):
            if each.at <= since:
                del seen[job_id]
            elif each.curves is self.curves:  # it has gone
                seen[job_id] = each.alone()
        self.curves = curves

    def expected(self, at: float) -> Expected | None:
        """Return who is expected in the next hour, None if nobody."""
        past = sorted(self.seen.values(), key=attrgetter("at"))
        if not past or self.began_at is None:
            return None
        span_s = min(MEMORY_S, max(at - self.began_at, SPAN_MIN_S))
        count = min(round(len(past) * AHEAD_S / span_s), EXPECTED_MAX)
        if not count:
            return None
        again = [
            past[number * len(past) // count] if count <= len(past) else past[number % len(past)]
            for number in range(count)
        ]
        corners = [each.corners() for each in again]
        curves = Curves(
            np.cumsum([0, *(len(gpus_V) for gpus_V, _ in corners)]),
            np.concatenate([gpus_V for gpus_V, _ in corners]),
            np.concatenate([goodput_V for _, goodput_V in corners]),
        )
        return Expected(
            curves, np.array([each.whole for each in again]), (np.arange(count) + 0.5) * AHEAD_S / count
        )
