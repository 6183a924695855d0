"""Which replica is consistently slower than its peers."""

# Each replica tells with its flags how long it computed last, without the wait for the
# others (timing.py): in place `rank` of a row of as many numbers as there are replicas,
# so that the sum is the row of all. What counts is the ratio to the median of the same
# moment: a batch that grows or a machine that is busy everywhere makes all slower
# alike. One slow step says nothing, thus a mean of the last WINDOW or so; and not
# before so many of them were seen.

import statistics
from collections.abc import Mapping, Sequence

from coadapt.model.measured import NOBODY, RANK, RATIO, RATIO_MIN

WINDOW = 20


class Stragglers:
    """Kept by every replica alike, and reported by rank 0. A new group begins again."""

    def __init__(self) -> None:
        self._ratios: list[float] = []
        self._count = 0

    def note(self, compute_s: Sequence[float]) -> None:
        """Take in how long each rank computed, in seconds; where one is 0, not
        measured, none counts.
        """
        if len(compute_s) < 2 or min(compute_s) <= 0.0:
            return
        middle = statistics.median_low(compute_s)
        now = [each / middle for each in compute_s]
        if len(now) != len(self._ratios):
            self._ratios = now
            self._count = 0
        self._count += 1
        weight = max(1.0 / self._count, 1.0 / WINDOW)
        self._ratios = [
            mean + weight * (new - mean)
            for mean, new in zip(self._ratios, now, strict=True)
        ]

    def clear(self) -> None:
        """Another group begins."""
        self._ratios = []
        self._count = 0

    def told(self) -> Mapping[str, float]:
        """Return the slowest rank and its ratio to the median, as metrics of a report;
        empty: too early.
        """
        if self._count < WINDOW:
            return {}
        ratio = max(self._ratios)
        rank = self._ratios.index(ratio) if ratio >= RATIO_MIN else NOBODY
        return {RANK: float(rank), RATIO: ratio}
