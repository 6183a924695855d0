"""Expected arrivals: the jobs of the last two hours once more, at their rate, for an hour or EXPECTED_MAX."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from coadapt.model import JobId, JobView
from coadapt.policies.castor.arrays import FloatArray
from coadapt.policies.castor.fluid.crowd import NO_CURVES, Curves, picked

MEMORY_S = 7_200.0
AHEAD_S = 3_600.0
SPAN_MIN_S = 600.0  # a rate is not told from less
EXPECTED_MAX = 100  # so that thousands of arrivals do not slow every play (1)


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

    gone: for each of the others, the row of its curve in `past`, which has theirs alone.
    """

    began_at: float | None = None
    came: dict[JobId, tuple[float, float]] = field(default_factory=dict)
    curves: Curves | None = None
    rows: dict[JobId, int] = field(default_factory=dict)
    gone: dict[JobId, int] = field(default_factory=dict)
    past: Curves = NO_CURVES

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
            begin = len(self.past.first_J) - 1
            rows_of_all = [*self.gone.values(), *[begin + row for row in gone.values()]]
            self.past = picked(self.past, self.curves, rows_of_all)
            self.gone = {job_id: row for row, job_id in enumerate((*self.gone, *gone))}
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
        rows, gone, begin = self.rows, self.gone, len(self.past.first_J) - 1
        places = [begin + rows[job_id] if job_id in rows else gone[job_id] for job_id, _ in again]
        return Expected(
            picked(self.past, self.curves, places),
            np.array([whole for _, (_, whole) in again]),
            (np.arange(count) + 0.5) * AHEAD_S / in_time,
        )
