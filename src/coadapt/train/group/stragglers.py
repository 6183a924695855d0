"""Which replica is consistently slower than its peers."""

# Each replica's flags contain how long it computed last, without the wait for the
# others (timing.py). This is the entry `rank` of a row with one number per replica, so
# the sum is the row of all replicas. The ratio to the median of the same row counts,
# because a larger batch or machines that are all busy make all replicas slower alike.
# One slow step means nothing, so the ratio is a mean over about the last WINDOW steps.
# It is reported only after so many steps.

import statistics
from collections.abc import Mapping, Sequence

from coadapt.model.measured import NO_STRAGGLER, RANK, RATIO, RATIO_MIN

WINDOW = 20


class Stragglers:
    """The mean ratios of all replicas. Every replica computes the same ones, and rank 0
    reports them. A new group begins from scratch.
    """

    def __init__(self) -> None:
        self._ratios: list[float] = []
        self._count = 0

    def note(self, compute_s: Sequence[float]) -> None:
        """Add how long each rank computed, in seconds. If one is 0 (not measured), none
        counts.
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
        """Note that another group begins."""
        self._ratios = []
        self._count = 0

    def metrics(self) -> Mapping[str, float]:
        """Return the slowest rank and its ratio to the median, as metrics of a report.
        Empty before WINDOW steps.
        """
        if self._count < WINDOW:
            return {}
        ratio = max(self._ratios)
        rank = self._ratios.index(ratio) if ratio >= RATIO_MIN else NO_STRAGGLER
        return {RANK: float(rank), RATIO: ratio}
