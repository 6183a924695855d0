"""Expected arrivals: the jobs of the last two hours once more, at their mean rate, for one hour."""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from coadapt.model import JobId, JobView
from coadapt.policies.castor.arrays import FloatArray
from coadapt.policies.castor.fluid.crowd import Curves

MEMORY_S = 7_200.0
AHEAD_S = 3_600.0
SPAN_MIN_S = 600.0  # a rate is not told from less
EXPECTED_MAX = 200  # so that thousands of arrivals do not slow every play (1)


@dataclass(frozen=True, slots=True)
class _Seen:
    at: float
    gpus: FloatArray
    goodput: FloatArray
    whole: float


@dataclass(frozen=True, slots=True)
class Expected:
    """Jobs to come: curves one after the other, their lengths in progress, seconds until they come."""

    curves: Curves
    left_J: FloatArray
    arrives_J: FloatArray


@dataclass(slots=True)
class Arrivals:
    """Who came lately, with the curves that were learned of them."""

    began_at: float | None = None
    seen: "OrderedDict[JobId, _Seen]" = field(default_factory=OrderedDict)

    def observe(self, at: float, jobs: Sequence[JobView], curves: Curves, whole_J: FloatArray) -> None:
        """Take in jobs whose length `whole_J` (progress) is known (> 0); forget those of long ago."""
        if self.began_at is None:
            self.began_at = min([at, *(job.submitted_at for job in jobs)])
        for row, job in enumerate(jobs):
            if whole_J[row] <= 0.0 or job.submitted_at <= at - MEMORY_S:
                continue
            begin, end = curves.first_J[row], curves.first_J[row + 1]
            whole = self.seen[job.id].whole if job.id in self.seen else float(whole_J[row])
            goodput = curves.goodput_V[begin:end].copy()
            self.seen[job.id] = _Seen(job.submitted_at, curves.gpus_V[begin:end].copy(), goodput, whole)
        for old in [job for job, each in self.seen.items() if each.at <= at - MEMORY_S]:
            del self.seen[old]

    def expected(self, at: float) -> Expected | None:
        """Return who is expected in the next hour, None if nobody."""
        past = sorted(self.seen.values(), key=lambda each: each.at)
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
        sizes = [len(each.gpus) for each in again]
        curves = Curves(
            np.concatenate(([0], np.cumsum(sizes))),
            np.concatenate([each.gpus for each in again]),
            np.concatenate([each.goodput for each in again]),
        )
        return Expected(
            curves, np.array([each.whole for each in again]), (np.arange(count) + 0.5) * AHEAD_S / count
        )
