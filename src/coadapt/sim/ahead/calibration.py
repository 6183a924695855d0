"""How true past estimates were, and intervals that are corrected by it."""

# Conformal correction. An interval of nine in ten that was computed says how the future
# varies in the model. What the model leaves out (lengths that were declared wrongly,
# days unlike those before) shows in how far the truth lay outside of past intervals.
# Each of the last estimates has a score: how far an end of the interval would have to
# be moved to just hold the truth. It is logarithmic, as an error of an hour is much for
# a job that starts in ten minutes, and little for one that starts in a day. It is in
# units of the interval's own width on that side: what the model is sure of moves less.
# The quantile of nine in ten of these scores moves both ends of the next interval.
# (Conformalised quantile regression: Romano, Patterson, Candès, NeurIPS 2019, equation
# 6. Normalised scores: Lei et al., JASA 2018, section 5.2.)
#
# Which quantile: nine in ten of past scores need not hold nine in ten of the next ones,
# where days differ. So the level moves with each outcome, down after one inside and up
# after one outside (adaptive conformal inference: Gibbs and Candès, NeurIPS 2021,
# equation 2).
#
# Outcomes that are known are those of jobs that were quick. An estimate whose upper end
# has passed without an outcome counts as one that comes just now: at the least it is so
# late.
#
# Jobs of a queue that were estimated at the same moment share what comes: one job that
# ends late makes all of those behind it late. So few moments say little, however many
# jobs they had: after MOMENTS_HALF of them, intervals move half as far as scores say.
#
# A score of its own for each end, of which 95 % were to lie within, was tried. It rests
# on the few worst outcomes of each side, and made intervals wider.

import math
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count, groupby
from typing import NamedTuple

from coadapt.sim.ahead.estimate import HIGH, LOW, Range

SCORES_MIN = 20
SCORES_KEPT = 1_000
MOMENTS_HALF = 5
# Estimates within so long, s, are of one moment.
MOMENT_S = 600.0
# Factors of seconds that are few say nothing; reports and rounds are a minute apart.
FLOOR_S = 60.0
# Added to the logarithmic width: an interval without any can still be wrong.
WIDTH_MIN = 0.2
# Of outcomes, that may lie outside; how far an outcome moves that; and its bounds.
OUTSIDE = 1.0 - (HIGH - LOW)
STEP = 0.02
OUTSIDE_MIN = 0.01
OUTSIDE_MAX = 0.3
# The scale of the upper side where it has no finite width.
WIDTH_MAX = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Past:
    """An estimate of `at` (s), and what came, s from then; infinite if not yet."""

    said: Range
    at: float
    came_s: float = math.inf

    @property
    def score(self) -> float:
        """Return how far its ends would have to be moved, in units of the widths."""
        return _score(self.said, self.came_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """By how much intervals of one kind, starts or ends, are moved, in units of their
    own logarithmic widths; negative where they were too wide.
    """

    moves_by: float = 0.0

    @classmethod
    def of(cls, past: Iterable[Past], now: float) -> "Calibration":
        """Return what estimates of before `now` (s) and their outcomes teach."""
        return cls(moves_by=_Replay().run(past, now))

    def corrected(self, said: Range) -> Range:
        """Return the interval with both ends moved, neither beyond the median."""
        if not self.moves_by:
            return said
        below, above = _widths(said)
        low = min(_moved(said.low, -self.moves_by * below), said.median)
        high = max(_moved(said.high, self.moves_by * above), said.median)
        return Range(low=low, median=said.median, high=high)


class _Pending(NamedTuple):
    """An estimate without an outcome yet, which was moved by `moved_by`.

    comes_at: when its outcome comes, s. number: tells equal instants apart.
    """

    comes_at: float
    number: int
    past: Past
    moved_by: float


@dataclass(slots=True)
class _Replay:
    """Estimates and outcomes in the order in which they came.

    scores, moments: of the outcomes, and when each was estimated, in units of MOMENT_S.
    outside: the part of the scores that is left outside, now.
    """

    scores: deque[float] = field(default_factory=lambda: deque(maxlen=SCORES_KEPT))
    moments: deque[int] = field(default_factory=lambda: deque(maxlen=SCORES_KEPT))
    outside: float = OUTSIDE
    # A heap, the next outcome first.
    pending: list["_Pending"] = field(default_factory=list)

    def run(self, past: Iterable[Past], now: float) -> float:
        """Return by how much an interval of `now` (s) is moved."""
        usable = [
            each for each in past if each.at < now and math.isfinite(each.said.high)
        ]
        usable.sort(key=lambda each: each.at)
        numbers = count()
        for at, together in groupby(usable, key=lambda each: each.at):
            self._take_outcomes(at)
            moved_by = self._moves_by(at)
            for each in together:
                comes_at = each.at + each.came_s
                pending = _Pending(comes_at, next(numbers), each, moved_by)
                heappush(self.pending, pending)
        self._take_outcomes(now)
        return self._moves_by(now)

    def _take_outcomes(self, at: float) -> None:
        """Take in the outcomes up to `at` (s), the first ones first."""
        while self.pending and self.pending[0].comes_at <= at:
            ended = heappop(self.pending)
            score = ended.past.score
            self.scores.append(score)
            self.moments.append(_moment(ended.past))
            was_outside = score > ended.moved_by
            level = self.outside + STEP * (OUTSIDE - was_outside)
            self.outside = min(max(level, OUTSIDE_MIN), OUTSIDE_MAX)

    def _moves_by(self, at: float) -> float:
        late = [
            each.past
            for each in self.pending
            if at - each.past.at > each.past.said.high
        ]
        scores = [*self.scores, *(_score(each.said, at - each.at) for each in late)]
        if len(scores) < SCORES_MIN:
            return 0.0
        moments = {*self.moments, *(_moment(each) for each in late)}
        trusted = len(moments) / (len(moments) + MOMENTS_HALF)
        scores.sort()
        rank = math.ceil((1.0 - self.outside) * (len(scores) + 1))
        return trusted * scores[min(rank, len(scores)) - 1]


def _moment(each: Past) -> int:
    return int(each.at // MOMENT_S)


def _score(said: Range, came_s: float) -> float:
    came = math.log(came_s + FLOOR_S)
    below, above = _widths(said)
    return max(
        (math.log(said.low + FLOOR_S) - came) / below,
        (came - math.log(said.high + FLOOR_S)) / above,
    )


def _widths(said: Range) -> tuple[float, float]:
    """Return the logarithmic widths below and above the median."""
    low, median, high = (
        math.log(each + FLOOR_S) for each in (said.low, said.median, said.high)
    )
    if math.isinf(median):
        return WIDTH_MAX, WIDTH_MAX
    return median - low + WIDTH_MIN, min(high - median + WIDTH_MIN, WIDTH_MAX)


def _moved(end_s: float, by: float) -> float:
    if math.isinf(end_s):
        return end_s
    return max((end_s + FLOOR_S) * math.exp(by) - FLOOR_S, 0.0)
