"""Expected arrivals: the jobs of the last two hours once more, at their rate, for an
hour or EXPECTED_MAX.
"""

# Half of the jobs of two hours come in one, so every second one is expected: whole, or
# each of them in part, half as fast on half the GPUs, with half a chance to be the
# last. Whom whole ones are changes with each job that comes. Where GPUs are of one type
# little depends on it. Where they are not, the last end weighs more, and whether a long
# job is among those expected moved the value of a long one that is here by four times.
#
# A stream of jobs ends one day. The longer nobody comes, against the rate before, the
# likelier that was it.

import math
from bisect import insort
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import NamedTuple

import numpy as np

from coadapt.model import JobId, JobView
from coadapt.policies.castor.arrays import FloatArray, JobRows
from coadapt.policies.castor.fluid.crowd import NO_CURVES, Curves, picked

MEMORY_S = 7_200.0
AHEAD_S = 3_600.0
SPAN_MIN_S = 600.0  # a rate is not told from less
# that a job is the last to come, before anything is seen (tried: 0.003 and 0.01)
END_CHANCE = 1e-3
EXPECTED_MAX = 100  # so that thousands of arrivals do not slow every play (1)


@dataclass(frozen=True, slots=True)
class Expected:
    """Jobs to come: curves one after the other, their lengths in progress, seconds
    until they come.

    part: how much of a job each of them is, and how likely it is to come.
    """

    curves: Curves
    left_J: FloatArray
    arrives_J: FloatArray
    part: float


@dataclass(slots=True)
class Silence:
    """came: when those came who came in the two hours before the latest. first_at: when
    the first did.
    """

    came: dict[JobId, float] = field(default_factory=dict)
    first_at: float = math.inf

    def over(self, at: float, jobs: Sequence[JobView]) -> float:
        """Return how likely it is that nobody comes any more."""
        latest_at = max([*self.came.values(), *[job.submitted_at for job in jobs]])
        since = latest_at - MEMORY_S
        lately = {job.id: job.submitted_at for job in jobs if job.submitted_at > since}
        self.came = lately | {
            job_id: came_at for job_id, came_at in self.came.items() if came_at > since
        }
        self.first_at = min([self.first_at, *lately.values()])
        span_s = min(MEMORY_S, max(latest_at - self.first_at, SPAN_MIN_S))
        missed = max(at - latest_at, 0.0) * len(self.came) / span_s
        return END_CHANCE / (END_CHANCE + (1.0 - END_CHANCE) * math.exp(-missed))


class Here(NamedTuple):
    """Jobs that are there: which row each has, when it came, and its length in progress
    (0: unknown).
    """

    job_rows: JobRows
    came_at_J: FloatArray
    whole_J: FloatArray


class _Came(NamedTuple):
    """When a job came, and of which length in progress."""

    at: float
    job: JobId
    whole: float


@dataclass(slots=True)
class Arrivals:
    """came: who came lately, in the order of their coming; names: who they are. curves:
    of the last round; rows: who of them was in it, and its row.

    gone: for each of the others, the row of its curve in `past`, which has theirs
    alone.
    """

    began_at: float | None = None
    came: deque[_Came] = field(default_factory=deque)
    names: set[JobId] = field(default_factory=set)
    curves: Curves | None = None
    rows: dict[JobId, int] = field(default_factory=dict)
    gone: dict[JobId, int] = field(default_factory=dict)
    past: Curves = NO_CURVES
    silence: Silence = field(default_factory=Silence)

    def observe(self, at: float, jobs: Here, curves: Curves) -> None:
        """Take in jobs whose length is known (> 0); forget those of long ago."""
        if self.began_at is None:
            self.began_at = min(at, float(jobs.came_at_J.min(initial=np.inf)))
        came = self.came
        since = at - MEMORY_S
        rows = jobs.job_rows.row_of
        lately_J = (jobs.whole_J > 0.0) & (jobs.came_at_J > since)
        if not lately_J.all():
            rows = {
                job_id: row
                for (job_id, row), lately in zip(rows.items(), lately_J, strict=True)
                if lately
            }
        for job_id in sorted(rows.keys() - self.names, key=rows.__getitem__):
            row = rows[job_id]
            new = _Came(float(jobs.came_at_J[row]), job_id, float(jobs.whole_J[row]))
            insort(came, new, key=attrgetter("at"))
            self.names.add(job_id)
        while came and came[0].at <= since:
            job_id = came.popleft().job
            self.names.discard(job_id)
            self.gone.pop(job_id, None)
        lost = sorted(self.rows.keys() - rows.keys())
        gone = {job_id: self.rows[job_id] for job_id in lost if job_id in self.names}
        if gone and self.curves is not None:
            begin = len(self.past.first_J) - 1
            rows_of_all = [*self.gone.values(), *[begin + row for row in gone.values()]]
            self.past = picked(self.past, self.curves, rows_of_all)
            self.gone = {job_id: row for row, job_id in enumerate((*self.gone, *gone))}
        self.curves = curves
        self.rows = rows

    def expected(
        self, at: float, *, in_part: bool = False, over: float = 0.0
    ) -> Expected | None:
        """Return who is expected in the next hour, EXPECTED_MAX at most, None if
        nobody.

        in_part: whether all of the last two hours are, each in part. over: as of
        Silence.
        """
        past = list(self.came)
        if not past or self.began_at is None or self.curves is None:
            return None
        span_s = min(MEMORY_S, max(at - self.began_at, SPAN_MIN_S))
        coming = len(past) * AHEAD_S / span_s * (1.0 - over)
        whole = round(coming)
        if not whole:
            return None
        count = min(max(whole, len(past)) if in_part else whole, EXPECTED_MAX)
        part = min(coming / count, 1.0) if in_part else 1.0
        in_time = coming / part if in_part else whole
        again = [
            past[number * len(past) // count]
            if count <= len(past)
            else past[number % len(past)]
            for number in range(count)
        ]
        rows = self.rows
        gone = self.gone
        begin = len(self.past.first_J) - 1
        places = [
            begin + rows[each.job] if each.job in rows else gone[each.job]
            for each in again
        ]
        curves = picked(self.past, self.curves, places)
        left_J = np.array([each.whole for each in again])
        curves = curves._replace(
            gpus_V=part * curves.gpus_V, goodput_V=part * curves.goodput_V
        )
        arrives_J = (np.arange(count, dtype=np.float64) + 0.5) * AHEAD_S / in_time
        return Expected(curves, part * left_J, arrives_J, part)
