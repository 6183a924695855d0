"""When jobs start or end: the play's course, with an interval learned from how wrong it was before."""

# A play is deterministic; the world is not: jobs come, curves turn out otherwise, noise grows. So every
# prediction that was made is kept until the job is gone, and log(what it took / what was said) joins a
# record. The interval of a new prediction spans the 5th to the 95th percentile of that record, of
# predictions that said about as much: nine of ten ends lie in it, as long as jobs to come are like jobs that
# went. What is said of a day proves wrong otherwise than what is said of a minute, and is known much later:
# until enough of it is, the interval is that of all, and no narrower than a factor of LONG_FACTOR either way.
# Both sides get a round's length added, since ends are seen at rounds only.

import math
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from coadapt.model import JobId
from coadapt.policies.base import Prediction

ERRORS_MAX = 600
ERRORS_MIN = 20  # below, the factor FIRST_FACTOR to each side stands for the record
FIRST_FACTOR = 3.0
ALIKE = 4.0  # what said up to so many times as much, or as little, is alike
LONG_FACTOR = 2.0  # (measured: of ends more than four hours off, 0.46 to 1.53 of what was said)
SEEN_EVERY_S = 60.0
LOW, HIGH = 0.05, 0.95
# Of starts, the highest: a wait that goes on is told of in each round, and joins the record but once per half
# of what was said, so the record has too few of them (tried: at 0.95 17 % were outside, nearly all later).
STARTS_HIGH = 0.98


@dataclass(slots=True)
class Predictions:
    """made: per job, (instant, predicted end) at times. errors: (seconds said, log ratio).

    at, left_s: of the last round, seconds to each job's end. spreads: the least and the most of a prediction
    over it, by octave of what is said, until another error is known. high: the percentile of the most.
    """

    made: dict[JobId, list[tuple[float, float]]] = field(default_factory=dict)
    errors: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=ERRORS_MAX))
    at: float = 0.0
    left_s: dict[JobId, float] = field(default_factory=dict)
    spreads: dict[int, tuple[float, float]] = field(default_factory=dict)
    seen_at: float = 0.0
    high: float = HIGH

    def observe(self, at: float, here: Iterable[JobId]) -> None:
        """Learn from the jobs that have gone since the last round."""
        alive = set(here)
        for job in [job for job in self.made if job not in alive]:
            self.left_s.pop(job, None)
            ended_at = max(0.5 * (self.seen_at + at), at - SEEN_EVERY_S)
            for said_at, end_at in self.made.pop(job):
                took, said = max(ended_at - said_at, 0.0), end_at - said_at
                error = math.log((took + SEEN_EVERY_S) / (said + SEEN_EVERY_S))
                self.errors.append((said, error))
                self.spreads.clear()
        self.seen_at = at

    def predict(self, at: float, ends_s: Mapping[JobId, float]) -> None:
        """Take in the seconds to each job's end by the play (infinity: no word)."""
        self.at, self.left_s, made = at, {}, self.made
        for job, left_s in ends_s.items():
            if left_s == math.inf:
                continue
            self.left_s[job] = left_s
            # Said anew once half of what was said is over: so early and late words weigh alike.
            said = made.get(job)
            if said is None:
                made[job] = [(at, at + left_s)]
            elif at - said[-1][0] >= 0.5 * (said[-1][1] - said[-1][0]):
                said.append((at, at + left_s))

    def of(self, job: JobId) -> Prediction | None:
        """Return what the last round said of a job; None if it said nothing."""
        left_s, at = self.left_s.get(job), self.at
        if left_s is None:
            return None
        around = left_s + SEEN_EVERY_S
        octave = round(math.log2(around))
        if octave not in self.spreads:
            low, high = self._spread(2.0**octave)
            self.spreads[octave] = math.exp(low), math.exp(high)
        least, most = self.spreads[octave]
        low_s = around * least - 2 * SEEN_EVERY_S
        return Prediction(at + left_s, at + max(low_s, 0.0), at + around * most)

    @property
    def latest(self) -> dict[JobId, Prediction]:
        """What the last round said of each job."""
        return {job: said for job in self.left_s if (said := self.of(job)) is not None}

    def _spread(self, said_s: float) -> tuple[float, float]:
        """Return the logarithms of what the least and the most of a prediction of `said_s` are over it."""
        low_s, high_s = said_s / ALIKE - SEEN_EVERY_S, said_s * ALIKE - SEEN_EVERY_S
        alike = [error for said, error in self.errors if low_s <= said <= high_s]
        if len(alike) >= ERRORS_MIN:
            return _tails(alike, self.high)
        if len(self.errors) < ERRORS_MIN:
            return -math.log(FIRST_FACTOR), math.log(FIRST_FACTOR)
        low, high = _tails([error for _, error in self.errors], self.high)
        return min(low, -math.log(LONG_FACTOR)), max(high, math.log(LONG_FACTOR))


def _tails(errors: list[float], high: float) -> tuple[float, float]:
    ordered = sorted(errors)
    last = len(ordered) - 1
    return ordered[math.floor(LOW * last)], ordered[math.ceil(high * last)]
