"""The step times that a run has measured: their means, and typical ones."""

# Means say how long training takes, so reports and forecasts go by them. The choice of
# a batch compares times instead, and extrapolates from two sizes of a pass to a third
# one. On a busy machine a few slow passes change such a mean by a fifth, and two runs
# of one script would grow at different samples. So three things differ in typical
# times.
#
# What other processes take only ever lengthens a pass: the typical time is the lower
# quartile of the recent ones.
#
# The wait for data is no such delay: with several fetch processes one pass may wait for
# all, and the next three for none. It counts by its mean.
#
# A larger pass is taken to be no slower until its times show it: where the confidence
# intervals of the quartiles of all sizes overlap, all get the same time. A batch that
# grew in vain shrinks again, by the times that were measured with it.

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from coadapt.goodput.profile import (
    Profile,
    ProfileBuilder,
    ProfileKey,
    check_times,
)
from coadapt.model import Placement

# Passes of each kind that are kept for the typical time.
KEPT = 64
QUANTILE = 0.25
# Standard errors on either side of a quartile. More than two, for on a busy machine
# successive passes are slow together.
ERRORS = 3.0

# How many steps were measured, their mean compute time and their mean time, in seconds.
MeanRow = tuple[int, float, float]


@dataclass(slots=True)
class StepTimes:
    """Measured times of one GPU type, by what distinguishes them.

    means: what a checkpoint keeps. recent: (compute_s, step_s, fetch_s) of the newest
    passes of each key that this process measured.
    """

    means: dict[ProfileKey, MeanRow] = field(default_factory=dict)
    recent: dict[ProfileKey, deque[tuple[float, float, float]]] = field(
        default_factory=dict, compare=False
    )
    # The key of the last pass: a trainer adds the same again and again.
    _last: tuple[Placement, int, ProfileKey] | None = field(
        default=None, repr=False, compare=False
    )

    def add(
        self,
        placement: Placement,
        atomic: int,
        compute_s: float,
        step_s: float,
        fetch_s: float = 0.0,
    ) -> None:
        """Take in one measured pass; fetch_s: how long of both times it waited for
        data.

        Raises ValueError unless both times are finite and above 0.
        """
        check_times(compute_s, step_s)
        last = self._last
        if last is None or last[0] is not placement or last[1] != atomic:
            last = (placement, atomic, ProfileKey.of(placement, atomic))
            self._last = last
        key = last[2]
        count, mean_compute_s, mean_step_s = self.means.get(key, (0, 0.0, 0.0))
        count += 1
        mean_compute_s += (compute_s - mean_compute_s) / count
        mean_step_s += (step_s - mean_step_s) / count
        self.means[key] = (count, mean_compute_s, mean_step_s)
        recent = self.recent.setdefault(key, deque(maxlen=KEPT))
        recent.append((compute_s, step_s, min(fetch_s, compute_s)))

    @property
    def num_replicas_profiled(self) -> int:
        """Return the largest replica count that was timed, 0 without any."""
        return ProfileBuilder(rows=self.means).num_replicas_profiled

    def build(self) -> Profile:
        """Return the mean times."""
        return ProfileBuilder(rows=self.means).build()

    def typical(self) -> Profile:
        """Return typical times; of a key that only a checkpoint knows, its means."""
        rows = dict(self.means)
        groups: dict[tuple[int, int, int], list[ProfileKey]] = {}
        for key, (count, _, _) in self.means.items():
            if key in self.recent:
                rows[key] = (count, *self._quartiles(key))
                groups.setdefault(key[:3], []).append(key)
        for keys in groups.values():
            if self._alike(keys):
                known = max(keys, key=lambda key: self.means[key][0])
                rows.update(dict.fromkeys(keys, rows[known]))
        return ProfileBuilder(rows=rows).build()

    def _quartiles(self, key: ProfileKey) -> tuple[float, float]:
        compute_s, step_s, fetch_s = np.array(self.recent[key]).T
        wait_s = float(fetch_s.mean())
        # A pass that did nothing but wait may leave 0 for the rest.
        least_s = float(compute_s.min())
        computed_s, stepped_s = (
            max(float(np.quantile(times_s - fetch_s, QUANTILE)) + wait_s, least_s)
            for times_s in (compute_s, step_s)
        )
        return computed_s, stepped_s

    def _alike(self, keys: Sequence[ProfileKey]) -> bool:
        """Return whether passes of all these sizes may take the same time."""
        bounds = [self._bounds(key) for key in keys]
        return max(low for low, _ in bounds) <= min(high for _, high in bounds)

    def _bounds(self, key: ProfileKey) -> tuple[float, float]:
        """Return the interval of the quartile of step times, by order statistics."""
        _, step_s, fetch_s = np.array(self.recent[key]).T
        count = len(step_s)
        error = ERRORS * math.sqrt(QUANTILE * (1.0 - QUANTILE) / count)
        ranks = np.clip((QUANTILE - error, QUANTILE + error), 0.0, 1.0)
        low_s, high_s = np.quantile(step_s - fetch_s, ranks)
        wait_s = float(fetch_s.mean())
        return float(low_s) + wait_s, float(high_s) + wait_s
