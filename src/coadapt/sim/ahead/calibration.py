"""How true past estimates were, and intervals that are corrected by it."""

# Conformal correction. An interval of nine in ten that was computed says how the future
# varies in the model. What the model leaves out (lengths that were declared wrongly,
# days unlike those before) shows in how far the truth lay outside of past intervals.
# Each of the last estimates whose outcome is known has a score: by which factor both
# ends of the interval would have to be moved to just hold the truth. The quantile of
# nine in ten of these scores moves both ends of the next one. Where the model was too
# careful the score is below one, and the interval narrows. (Conformalised quantile
# regression: Romano, Patterson, Candès, NeurIPS 2019, equation 6, with a factor instead
# of their difference: an error of an hour is much for a job that starts in ten minutes,
# and little for one that starts in a day.)
#
# A score of its own for each end, of which 95 % were to lie within, was tried. It rests
# on the few worst outcomes of each side, and made intervals wider and coverage worse.
#
# Jobs of a queue that were estimated at the same moment share what comes: one job that
# ends late makes all of those behind it late. So an interval narrows only after
# estimates at enough different moments.

import math
from collections import deque
from dataclasses import dataclass, field

from coadapt.sim.ahead.estimate import HIGH, LOW, Range

SCORES_MIN = 20
SCORES_KEPT = 1_000
MOMENTS_MIN = 10
# Estimates within so long, s, are of one moment.
MOMENT_S = 600.0
# Factors of seconds that are few say nothing.
FLOOR_S = 60.0


def _kept() -> deque[float]:
    return deque(maxlen=SCORES_KEPT)


@dataclass(slots=True)
class Calibration:
    """Scores of one kind of estimates, starts or ends.

    scores: logarithms of the factors by which the truth lay outside; negative where it
    lay inside. moments: when each was estimated, in units of MOMENT_S.
    """

    scores: deque[float] = field(default_factory=_kept)
    moments: deque[int] = field(default_factory=lambda: deque(maxlen=SCORES_KEPT))

    def add(self, said: Range, truth_s: float, at: float) -> None:
        """Take in what an estimate of `at` (s) said, and what came, s from then."""
        truth = math.log(truth_s + FLOOR_S)
        below = math.log(said.low + FLOOR_S) - truth
        above = truth - math.log(said.high + FLOOR_S)
        self.scores.append(max(below, above))
        self.moments.append(int(at // MOMENT_S))

    def corrected(self, said: Range) -> Range:
        """Return the interval moved by the scores; as it is while they are too few."""
        if len(self.scores) < SCORES_MIN:
            return said
        moved_by = _quantile(self.scores)
        if len(set(self.moments)) < MOMENTS_MIN:
            moved_by = max(moved_by, 0.0)
        # Neither end goes beyond the median.
        low = min(_moved(said.low, -moved_by), said.median)
        high = max(_moved(said.high, moved_by), said.median)
        return Range(low=low, median=said.median, high=high)


def _quantile(scores: deque[float]) -> float:
    """Return the score that nine in ten of the next ones do not exceed."""
    ordered = sorted(scores)
    rank = math.ceil((HIGH - LOW) * (len(ordered) + 1))
    return ordered[min(rank, len(ordered)) - 1]


def _moved(end_s: float, by: float) -> float:
    if math.isinf(end_s):
        return end_s
    return max((end_s + FLOOR_S) * math.exp(by) - FLOOR_S, 0.0)
