"""Expected arrivals: the jobs of the last two hours once more, at their rate, for an hour or EXPECTED_MAX."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

import numpy as np

from coadapt.model import JobId, JobView
from coadapt.policies.castor.arrays import FloatArray
from coadapt.policies.castor.fluid.crowd import Curves, joined, picked

MEMORY_S = 7_200.0
AHEAD_S = 3_600.0
SPAN_MIN_S = 600.0  # a rate is not told from less
EXPECTED_MAX = 100  # so that thousands of arrivals do not slow every play (1)
APART_MAX = 8  # rounds whose gone jobs' curves stand apart: putting many together is slow (1)

Place = tuple[Curves, int]  # some jobs' curves, and the row of one of them


@dataclass(frozen=True, slots=True)
class Expected:
    """Jobs to come: curves one after the other, their lengths in progress, seconds until they come."""

    curves: Curves
    left_J: FloatArray
    arrives_J: FloatArray


@dataclass(slots=True)
class Arrivals:
    """came: who came lately, when, and of which length in progress. curves: of the last round; rows: who of
    them was in it, and its row.

    gone: for each of the others, curves that its own are among, and its row: of those alone that are gone, as
    all of a round need room. apart: how many such there are.
    """

    began_at: float | None = None
    came: dict[JobId, tuple[float, float]] = field(default_factory=dict)
    curves: Curves | None = None
    rows: dict[JobId, int] = field(default_factory=dict)
    gone: dict[JobId, Place] = field(default_factory=dict)
    apart: int = 0

    def observe(self, at: float, jobs: Sequence[JobView], curves: Curves, whole_J: FloatArray) -> None:
        """Take in jobs whose length `whole_J` (progress) is known (> 0); forget those of long ago."""
        if self.began_at is None:
            self.began_at = min([at, *(job.submitted_at for job in jobs)])
        came, since = self.came, at - MEMORY_S
        known = enumerate(zip(jobs, whole_J.tolist(), strict=True))
        rows = {job.id: row for row, (job, whole) in known if whole > 0.0 and job.submitted_at > since}
        for job_id in [job_id for job_id in rows if job_id not in came]:
            came[job_id] = jobs[rows[job_id]].submitted_at, float(whole_J[rows[job_id]])
        for job_id in [job_id for job_id, (came_at, _) in came.items() if came_at <= since]:
            del came[job_id]
            self.gone.pop(job_id, None)
        gone = {job_id: row for job_id, row in self.rows.items() if job_id not in rows and job_id in came}
        if gone and self.curves is not None:
            alone = picked(self.curves, list(gone.values()))
            self.gone.update({job_id: (alone, row) for row, job_id in enumerate(gone)})
            self.apart += 1
            if self.apart > APART_MAX:
                alone = _together(self.gone.values())
                self.gone = {job_id: (alone, row) for row, job_id in enumerate(self.gone)}
                self.apart = 1
        self.curves, self.rows = curves, rows

    def expected(self, at: float) -> Expected | None:
        """Return who is expected in the next hour, EXPECTED_MAX at most, None if nobody."""
        past = sorted(self.came.items(), key=lambda each: each[1][0])
        if not past or self.began_at is None or self.curves is None:
            return None
        span_s = min(MEMORY_S, max(at - self.began_at, SPAN_MIN_S))
        in_time = round(len(past) * AHEAD_S / span_s)
        count = min(in_time, EXPECTED_MAX)
        if not count:
            return None
        again = [
            past[number * len(past) // count] if count <= len(past) else past[number % len(past)]
            for number in range(count)
        ]
        rows, gone, curves = self.rows, self.gone, self.curves
        places = [(curves, rows[job_id]) if job_id in rows else gone[job_id] for job_id, _ in again]
        return Expected(
            _together(places),
            np.array([whole for _, (_, whole) in again]),
            (np.arange(count) + 0.5) * AHEAD_S / in_time,
        )


def _together(places: Collection[Place]) -> Curves:
    """Return the curves at these places, in their order."""
    several = {id(curves): curves for curves, _ in places}
    begins = accumulate((len(each.first_J) - 1 for each in several.values()), initial=0)
    begin = dict(zip(several, begins, strict=False))
    return picked(joined(list(several.values())), [begin[id(curves)] + row for curves, row in places])
