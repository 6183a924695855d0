"""Jobs that will be submitted later, drawn from those that were submitted before."""

# Each hour ahead repeats an hour of the past: the same hour of the day, on a day that
# is drawn; the same hour of the week, once that is known of three weeks. So a night
# stays quiet, and jobs that came together come together. A past of less than a day has
# no hours of the day yet: then any moment of it may be the beginning of an hour ahead.

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from coadapt.core.state import JobRecord
from coadapt.model import JobSpec, Measured

BLOCK_S = 3_600.0
DAY_S = 86_400.0
DAYS_PER_WEEK = 7
WEEKS_MIN = 3
# A past that is shorter than this, s, or has fewer jobs, says nothing of the future.
PAST_MIN_S = 3_600.0
JOBS_MIN = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """A job that was submitted at `at` (s).

    gpu_s: the GPU-seconds that it used until it ended, None if it has not. measured:
    what it had reported by then.
    """

    at: float
    spec: JobSpec
    gpu_s: float | None = None
    measured: Measured = field(default_factory=Measured)

    def again(self, name: str, at: float) -> JobRecord:
        """Return a job like this one that is submitted at `at` (s)."""
        due_at = self.spec.deadline_at
        if due_at is not None:
            due_at += at - self.at
        return JobRecord(
            id=name,
            spec=replace(self.spec, deadline_at=due_at, launch=None),
            submitted_at=at,
            measured=replace(self.measured, progress=0.0, samples=0.0),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrivals:
    """All jobs that were submitted after `since` (s), in order."""

    since: float = 0.0
    submissions: Sequence[Submission] = ()

    def drawn(
        self, at: float, until: float, random: np.random.Generator
    ) -> Iterator[tuple[float, Submission]]:
        """Yield (instant, submission) from `at` to `until` (s): a job like the
        submission comes at the instant.
        """
        known_s = at - self.since
        if known_s < PAST_MIN_S or len(self.submissions) < JOBS_MIN:
            return
        instants = [each.at for each in self.submissions]
        start = at
        while start < until:
            begin = self._begin(start, at, random)
            first = bisect_left(instants, begin)
            last = bisect_left(instants, begin + BLOCK_S)
            for each in self.submissions[first:last]:
                yield start + each.at - begin, each
            start += BLOCK_S

    def _begin(self, start: float, at: float, random: np.random.Generator) -> float:
        """Draw an instant before `at` whose hour of the day, or of the week, is that
        of `start`.
        """
        days = [
            start - day * DAY_S
            for day in range(1, int((start - self.since) / DAY_S) + 1)
            if start - day * DAY_S + BLOCK_S <= at
        ]
        if not days:
            return float(random.uniform(self.since, at - BLOCK_S))
        last_week = round((start - days[0]) / DAY_S)
        weeks = [
            instant
            for number, instant in enumerate(days, last_week)
            if number % DAYS_PER_WEEK == 0
        ]
        alike = weeks if len(weeks) >= WEEKS_MIN else days
        return alike[int(random.integers(len(alike)))]
