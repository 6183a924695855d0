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
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import TypeVar

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

_Value = TypeVar("_Value")


@dataclass(frozen=True, slots=True)
class Predictions:
    """Predictions of one kind of instant, a value. high: the percentile of an
    interval's end.

    made: per job, (instant, predicted instant) at times. errors: (seconds predicted,
    log ratio) of the latest. Of the last round: `at`, left_s (seconds to each job's
    instant, infinity: not predicted), again_at (when the next prediction is to be
    noted). due_by: the end of the first interval shown for each job.
    """

    high: float = HIGH
    made: Mapping[JobId, tuple[tuple[float, float], ...]] = field(default_factory=dict)
    errors: tuple[tuple[float, float], ...] = ()
    at: float = 0.0
    left_s: Mapping[JobId, float] = field(default_factory=dict)
    again_at: Mapping[JobId, float] = field(default_factory=dict)
    seen_at: float = 0.0
    due_by: Mapping[JobId, float] = field(default_factory=dict)

    @property
    def has_past(self) -> bool:
        """Whether enough predictions were checked to say how wrong they are."""
        return len(self.errors) >= ERRORS_MIN

    def observed(self, at: float, here: Set[JobId]) -> "Predictions":
        """Return the record after a look at which jobs are still here. The others have
        ended or started since the last look.
        """
        gone = self.made.keys() - here
        ended_at = max(0.5 * (self.seen_at + at), at - SEEN_EVERY_S)
        errors = []
        made = (each for job, each in self.made.items() if job in gone)
        for said_at, end_at in chain.from_iterable(made):
            took = max(ended_at - said_at, 0.0)
            said = end_at - said_at
            error = math.log((took + SEEN_EVERY_S) / (said + SEEN_EVERY_S))
            errors.append((said, error))
        return replace(
            self.without(gone),
            errors=(*self.errors, *errors)[-ERRORS_MAX:],
            seen_at=at,
        )

    def predicted(
        self, at: float, jobs: Iterable[JobId], left_s_J: FloatArray
    ) -> "Predictions":
        """Return the record with predictions: the seconds to each job's instant,
        infinity for none.

        A job's prediction joins the record again after half of its time, so that early
        and late predictions have equal weights.
        """
        left_s = dict(zip(jobs, left_s_J.tolist(), strict=True))
        again_at = {job: self.again_at.get(job, -math.inf) for job in left_s}
        made = dict(self.made)
        for job, seconds in left_s.items():
            if again_at[job] <= at and seconds < math.inf:
                again_at[job] = at + 0.5 * seconds
                made[job] = (*made.get(job, ()), (at, at + seconds))
        return replace(self, made=made, at=at, left_s=left_s, again_at=again_at)

    def without(self, jobs: Set[JobId]) -> "Predictions":
        """Return the record without what was predicted of these jobs."""
        if not jobs:
            return self

        def others(of: Mapping[JobId, _Value]) -> dict[JobId, _Value]:
            return {job: each for job, each in of.items() if job not in jobs}

        return replace(
            self,
            made=others(self.made),
            left_s=others(self.left_s),
            again_at=others(self.again_at),
            due_by=others(self.due_by),
        )

    def shown(self, ranges: Mapping[JobId, Prediction]) -> "Predictions":
        """Return the record after these ranges, in seconds from the last round, were
        shown to users. Of each job the first one counts.
        """
        ends = {job: self.at + each.high_at for job, each in ranges.items()}
        return replace(self, due_by={**ends, **self.due_by})

    def missed(self, job: JobId) -> bool:
        """Return whether the first interval that was shown for `job` has passed."""
        return self.due_by.get(job, math.inf) < self.at

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
