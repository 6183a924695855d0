"""Prediction intervals for when jobs start or end, learned from the errors of past
predictions.
"""

# A relaxed schedule is deterministic, but jobs arrive, goodputs change and noise grows.
# So every prediction is kept until its job has ended, and log(real time / predicted
# time) is added to a record. The interval of a new prediction spans the 5th to the 95th
# percentile of that record, over predictions of a similar time.
#
# Predictions of a day have other errors than predictions of a minute, and are checked
# much later. Until ERRORS_MIN similar predictions were checked, all predictions are
# used, and the interval is at least a factor of LONG_FACTOR to each side. The interval
# always contains the prediction. It is a round longer at each end, because ends are
# seen at rounds only.

import math
from collections import deque
from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass, field

from coadapt.model import JobId
from coadapt.policies.base import Prediction
from coadapt.policies.solvers.arrays import FloatArray

ERRORS_MAX = 600  # number of latest errors that are kept
ERRORS_MIN = 20  # with fewer errors the interval is a factor of FIRST_FACTOR each way
FIRST_FACTOR = 3.0
ALIKE = 4.0  # two predicted times are similar if their ratio is at most this
# Jobs that were predicted to end in more than four hours took 0.46 to 1.53 times as
# long as predicted (measured).
LONG_FACTOR = 2.0
SEEN_EVERY_S = 60.0
LOW = 0.05
HIGH = 0.95
# Percentile for starts. The record has too few long waits, because a wait is recorded
# once per half of its predicted time (with 0.95, 17 % of the starts came after the
# interval, with 0.98 10 %).
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
        """Learn from the jobs that have ended or started since the last round."""
        for job in [job for job in self.made if job not in here]:
            ended_at = max(0.5 * (self.seen_at + at), at - SEEN_EVERY_S)
            for said_at, end_at in self.forget(job):
                took = max(ended_at - said_at, 0.0)
                said = end_at - said_at
                error = math.log((took + SEEN_EVERY_S) / (said + SEEN_EVERY_S))
                self.errors.append((said, error))
        self.seen_at = at

    def predict(self, at: float, jobs: Iterable[JobId], left_s_J: FloatArray) -> None:
        """Record predictions: the seconds to each job's instant, infinity for none.

        A job's prediction joins the record again after half of its time, so that early
        and late predictions have equal weights.
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
