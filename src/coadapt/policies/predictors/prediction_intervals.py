"""Prediction intervals for when jobs start or end, learned from the errors of past
predictions.
"""

# A relaxed schedule is deterministic; the world is not: jobs come, curves turn out
# otherwise, noise grows. So every prediction that was made is kept until the job is
# gone, and log(what it took / what was predicted) joins a record. The interval of a new
# prediction spans the 5th to the 95th percentile of that record, of predictions of
# about as much. A prediction of a day errs otherwise than one of a minute, and is known
# much later: until enough of it is, the interval is that of all, and no narrower than a
# factor of LONG_FACTOR either way. The prediction itself always lies in it. Both sides
# get a round's length added, since ends are seen at rounds only.

import math
from collections import deque
from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass, field

from coadapt.model import JobId
from coadapt.policies.base import Prediction
from coadapt.policies.solvers.arrays import FloatArray

ERRORS_MAX = 600  # the latest errors that are kept (1)
ERRORS_MIN = 20  # with fewer the interval is a factor of FIRST_FACTOR to each side (1)
FIRST_FACTOR = 3.0
ALIKE = 4.0  # predictions of up to so many times as much, or as little, are alike (1)
# Of ends more than four hours off, 0.46 to 1.53 of what was predicted were measured.
LONG_FACTOR = 2.0
SEEN_EVERY_S = 60.0
LOW = 0.05
HIGH = 0.95
# Of starts: a wait that goes on joins the record once per half of what was predicted,
# so the record has too few of them (with 0.95 17 % came later, with 0.98 10 %).
STARTS_HIGH = 0.99
NO_PREDICTION = Prediction(math.inf, math.inf, math.inf)


@dataclass(slots=True)
class Predictions:
    """Predictions of one kind of instant. high: the percentile of an interval's end.

    made: per job, (instant, predicted instant) at times. errors: (seconds predicted,
    log ratio) of the latest. Of the last round: `at`, left_s (seconds to each job's
    instant, infinity: not predicted), again_at (when the next prediction is to be
    noted). due_by: the end of the first interval shown for each job.
    """

    high: float = HIGH
    made: dict[JobId, list[tuple[float, float]]] = field(default_factory=dict)
    errors: deque[tuple[float, float]] = field(
        default_factory=lambda: deque(maxlen=ERRORS_MAX)
    )
    at: float = 0.0
    left_s: dict[JobId, float] = field(default_factory=dict)
    again_at: dict[JobId, float] = field(default_factory=dict)
    seen_at: float = 0.0
    due_by: dict[JobId, float] = field(default_factory=dict)

    @property
    def has_past(self) -> bool:
        """Whether enough predictions were checked to say how wrong they are."""
        return len(self.errors) >= ERRORS_MIN

    def observe(self, at: float, here: Set[JobId]) -> None:
        """Learn from the jobs that have gone since the last round."""
        for job in [job for job in self.made if job not in here]:
            ended_at = max(0.5 * (self.seen_at + at), at - SEEN_EVERY_S)
            for said_at, end_at in self.forget(job):
                took = max(ended_at - said_at, 0.0)
                said = end_at - said_at
                error = math.log((took + SEEN_EVERY_S) / (said + SEEN_EVERY_S))
                self.errors.append((said, error))
        self.seen_at = at

    def predict(self, at: float, jobs: Iterable[JobId], left_s_J: FloatArray) -> None:
        """Take in the seconds to each job's instant (infinity: not predicted).

        Each is noted again once half of it is over, so early and late ones weigh alike.
        """
        self.at = at
        self.left_s = dict(zip(jobs, left_s_J.tolist(), strict=True))
        self.again_at = {job: self.again_at.get(job, -math.inf) for job in self.left_s}
        for job, left_s in self.left_s.items():
            if self.again_at[job] <= at and left_s < math.inf:
                self.again_at[job] = at + 0.5 * left_s
                self.made.setdefault(job, []).append((at, at + left_s))

    def forget(self, job: JobId) -> list[tuple[float, float]]:
        """Forget what was predicted of `job`, and return it."""
        self.left_s.pop(job, None)
        self.again_at.pop(job, None)
        self.due_by.pop(job, None)
        return self.made.pop(job)

    def missed(self, job: JobId, high_s: float) -> bool:
        """Return whether an earlier interval of `job` has passed; note the present one.

        high_s: the end of the interval that would be shown now, seconds from now.
        """
        return self.due_by.setdefault(job, self.at + high_s) < self.at

    def ranges(self, jobs: Sequence[JobId]) -> list[Prediction]:
        """Return the last round's predictions of these jobs, in seconds from then.

        Infinity where nothing was predicted.
        """
        ascending = sorted(self.errors, key=lambda each: each[1])
        spreads: dict[int, tuple[float, float]] = {}
        found = []
        for job in jobs:
            left_s = self.left_s.get(job, math.inf)
            if left_s == math.inf:
                found.append(NO_PREDICTION)
                continue
            around_s = left_s + SEEN_EVERY_S
            octave = round(math.log2(around_s))
            if octave not in spreads:
                spreads[octave] = self._spread(ascending, 2.0**octave)
            least, most = spreads[octave]
            low_s = max(around_s * least - 2 * SEEN_EVERY_S, 0.0)
            found.append(Prediction(left_s, low_s, around_s * most))
        return found

    @property
    def latest(self) -> dict[JobId, Prediction]:
        """The last round's predictions, as instants; jobs without one are left out."""
        known = [job for job, left_s in self.left_s.items() if left_s < math.inf]
        return {
            job: Prediction(*(self.at + each for each in seconds))
            for job, seconds in zip(known, self.ranges(known), strict=True)
        }

    def _spread(
        self, ascending: Sequence[tuple[float, float]], said_s: float
    ) -> tuple[float, float]:
        """Return the least and the most over the prediction, of predictions of
        `said_s`.
        """
        low_s = said_s / ALIKE - SEEN_EVERY_S
        high_s = said_s * ALIKE - SEEN_EVERY_S
        errors = [error for said, error in ascending if low_s <= said <= high_s]
        factor = 1.0
        if len(errors) < ERRORS_MIN:
            errors = [error for _, error in ascending]
            factor = LONG_FACTOR
        if len(errors) < ERRORS_MIN:
            return 1.0 / FIRST_FACTOR, FIRST_FACTOR
        first = math.floor(LOW * (len(errors) - 1))
        last = math.ceil(self.high * (len(errors) - 1))
        least = min(math.exp(errors[first]), 1.0 / factor)
        return least, max(math.exp(errors[last]), factor)
