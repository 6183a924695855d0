"""When jobs start or end: the play's course, with an interval learned from how wrong it was before."""

# A play is deterministic; the world is not: jobs come, curves turn out otherwise, noise grows. So every
# prediction that was made is kept until the job is gone, and log(what it took / what was said) joins a
# record. The interval of a new prediction spans the 5th to the 95th percentile of that record, of
# predictions that said about as much: nine of ten ends lie in it, as long as jobs to come are like jobs that
# went. What is said of a day proves wrong otherwise than what is said of a minute, and is known much later:
# until enough of it is, the interval is that of all, and no narrower than a factor of LONG_FACTOR either way.
# What is said itself always lies in it: that all came sooner for hours proves nothing of the next.
# Both sides get a round's length added, since ends are seen at rounds only.

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np

from coadapt.model import JobId
from coadapt.policies.base import Prediction
from coadapt.policies.castor.arrays import FloatArray

ERRORS_MAX = 600
ERRORS_MIN = 20  # below, the factor FIRST_FACTOR to each side stands for the record
FIRST_FACTOR = 3.0
ALIKE = 4.0  # what said up to so many times as much, or as little, is alike
LONG_FACTOR = 2.0  # (measured: of ends more than four hours off, 0.46 to 1.53 of what was said)
SEEN_EVERY_S = 60.0
LOW, HIGH = 0.05, 0.95
# Of starts, the highest: a wait that goes on is told of in each round, and joins the record but once per half
# of what was said, so the record has too few of them (tried: at 0.95 17 % were outside, nearly all later, at
# 0.98 10 %).
STARTS_HIGH = 0.99


@dataclass(slots=True)
class Predictions:
    """made: per job, (instant, predicted end) at times; again_at: when the next is due. errors_2E: the latest
    errors, seconds said and log ratios, of `num_errors` in all; the oldest gives way.

    at, left_s: of the last round, seconds to each job's end. spreads: the least and the most of a prediction
    over it, by octave of what is said, until another error is known. high: the percentile of the most.
    """

    made: dict[JobId, list[tuple[float, float]]] = field(default_factory=dict)
    again_at: dict[JobId, float] = field(default_factory=dict)
    errors_2E: FloatArray = field(default_factory=lambda: np.empty((2, ERRORS_MAX)))
    num_errors: int = 0
    at: float = 0.0
    left_s: dict[JobId, float] = field(default_factory=dict)
    spreads: dict[int, tuple[float, float]] = field(default_factory=dict)
    seen_at: float = 0.0
    high: float = HIGH

    def observe(self, at: float, here: Iterable[JobId]) -> None:
        """Learn from the jobs that have gone since the last round."""
        alive = set(here)
        for job in [job for job in self.made if job not in alive]:
            ended_at = max(0.5 * (self.seen_at + at), at - SEEN_EVERY_S)
            for said_at, end_at in self.forget(job):
                took, said = max(ended_at - said_at, 0.0), end_at - said_at
                error = math.log((took + SEEN_EVERY_S) / (said + SEEN_EVERY_S))
                self.errors_2E[:, self.num_errors % ERRORS_MAX] = said, error
                self.num_errors += 1
                self.spreads.clear()
        self.seen_at = at

    def predict(self, at: float, ends_s: Mapping[JobId, float]) -> None:
        """Take in the seconds to each job's end by the play (infinity: no word)."""
        self.at, again_at = at, self.again_at
        self.left_s = {job: left_s for job, left_s in ends_s.items() if left_s < math.inf}
        for job in [job for job in self.left_s if again_at.get(job, at) <= at]:
            left_s = self.left_s[job]
            self.made.setdefault(job, []).append((at, at + left_s))
            # Said anew once half of what was said is over: so early and late words weigh alike.
            again_at[job] = at + 0.5 * left_s

    def forget(self, job: JobId) -> list[tuple[float, float]]:
        """Forget what was said of `job`, and return it."""
        self.left_s.pop(job, None)
        del self.again_at[job]
        return self.made.pop(job)

    def said(self, jobs: Iterable[JobId]) -> tuple[list[JobId], FloatArray]:
        """Return those of `jobs` of which the last round said something, and for each of them a `Prediction`
        as a column of (3, jobs).
        """
        told = [job for job in jobs if job in self.left_s]
        left_s_J = np.array([self.left_s[job] for job in told])
        around_J = left_s_J + SEEN_EVERY_S
        octave_J = np.rint(np.log2(around_J)).astype(np.int64)
        spread_O2 = np.ones((octave_J.max(initial=0) + 1, 2))
        for octave in set(octave_J.tolist()):
            spread_O2[octave] = self._spread_of(octave)
        least_J, most_J = spread_O2[octave_J].T
        low_s_J = np.maximum(around_J * least_J - 2 * SEEN_EVERY_S, 0.0)
        return told, self.at + np.array((left_s_J, low_s_J, around_J * most_J))

    @property
    def latest(self) -> dict[JobId, Prediction]:
        """What the last round said of each job."""
        told, said_3J = self.said(self.left_s)
        return {job: Prediction(*each) for job, each in zip(told, said_3J.T.tolist(), strict=True)}

    def _spread_of(self, octave: int) -> tuple[float, float]:
        """Return what the least and the most are over what is said, of predictions of this octave."""
        spread = self.spreads.get(octave)
        if spread is None:
            low, high = self._spread(2.0**octave)
            spread = self.spreads[octave] = math.exp(low), math.exp(high)
        return spread

    def _spread(self, said_s: float) -> tuple[float, float]:
        """Return the logarithms of what the least and the most of a prediction of `said_s` are over it."""
        said_E, error_E = self.errors_2E[:, : self.num_errors]
        low_s, high_s = said_s / ALIKE - SEEN_EVERY_S, said_s * ALIKE - SEEN_EVERY_S
        alike_E = error_E[(low_s <= said_E) & (said_E <= high_s)]
        if len(alike_E) >= ERRORS_MIN:
            low, high = _tails(alike_E, self.high)
            return min(low, 0.0), max(high, 0.0)
        if len(error_E) < ERRORS_MIN:
            return -math.log(FIRST_FACTOR), math.log(FIRST_FACTOR)
        low, high = _tails(error_E, self.high)
        return min(low, -math.log(LONG_FACTOR)), max(high, math.log(LONG_FACTOR))


def _tails(error_E: FloatArray, high: float) -> tuple[float, float]:
    ordered_E = np.sort(error_E)
    last = len(ordered_E) - 1
    return float(ordered_E[math.floor(LOW * last)]), float(ordered_E[math.ceil(high * last)])
