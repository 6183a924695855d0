"""How true past estimates were, and intervals that are corrected by it."""

# Conformal correction. An interval of nine in ten that was computed says how the future
# varies in the model. What the model leaves out (jobs that are yet to come, lengths
# that were declared wrongly) shows in how far the truth lay outside of past intervals.
# Of the last estimates whose outcome is known each side has a score: by which factor
# the end of the interval would have to be moved to just hold the truth. The empirical
# quantile of these scores moves the next one. Where the model was too careful the score
# is below one, and the interval narrows. (Romano, Patterson, Candès, NeurIPS 2019, with
# a factor in place of their difference: an error of an hour is much for a job that
# starts in ten minutes, and little for one that starts in a day.)
#
# Jobs of a queue that were estimated at the same moment share what comes: one job that
# ends late makes all of those behind it late. So an interval narrows only after
# estimates at enough different moments.

import math
from collections import deque
from dataclasses import dataclass, field

from coadapt.sim.ahead.estimate import HIGH, Range

SCORES_MIN = 20
SCORES_KEPT = 1_000
MOMENTS_MIN = 20
# Estimates within so long, s, are of one moment.
MOMENT_S = 600.0
# Factors of seconds that are few say nothing.
FLOOR_S = 60.0


def _kept() -> deque[float]:
    return deque(maxlen=SCORES_KEPT)


@dataclass(slots=True)
class Calibration:
    """Scores of one kind of estimates, starts or ends.

    below, above: logarithms of the factors by which the lower end was above the truth,
    and the truth above the upper one; negative where the truth lay inside. moments:
    when each was estimated, in units of MOMENT_S.
    """

    below: deque[float] = field(default_factory=_kept)
    above: deque[float] = field(default_factory=_kept)
    moments: deque[int] = field(default_factory=lambda: deque(maxlen=SCORES_KEPT))

    def add(self, said: Range, truth_s: float, at: float) -> None:
        """Take in what an estimate of `at` (s) said, and what came, s from then."""
        truth = math.log(truth_s + FLOOR_S)
        self.below.append(math.log(said.low + FLOOR_S) - truth)
        self.above.append(truth - math.log(said.high + FLOOR_S))
        self.moments.append(int(at // MOMENT_S))

    def corrected(self, said: Range) -> Range:
        """Return the interval moved by the scores; as it is while they are too few."""
        if len(self.below) < SCORES_MIN:
            return said
        narrowest = -math.inf if len(set(self.moments)) >= MOMENTS_MIN else 0.0
        low = _moved(said.low, -max(_quantile(self.below), narrowest))
        high = max(_moved(said.high, max(_quantile(self.above), narrowest)), low)
        return Range(low=low, high=high, median=min(max(said.median, low), high))


def _quantile(scores: deque[float]) -> float:
    """Return the score that HIGH of the next ones do not exceed."""
    ordered = sorted(scores)
    rank = math.ceil(HIGH * (len(ordered) + 1))
    return ordered[min(rank, len(ordered)) - 1]


def _moved(end_s: float, by: float) -> float:
    if math.isinf(end_s):
        return end_s
    return max((end_s + FLOOR_S) * math.exp(by) - FLOOR_S, 0.0)
