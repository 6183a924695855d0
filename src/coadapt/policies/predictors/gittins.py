"""The Gittins index of jobs of unknown length, from the lengths of others (Gu et al.,
NSDI 2019).
"""

# With S the GPU-seconds that jobs of the past needed, a job that has used A and may go
# on for up to D more:
#
#   G(A) = P(S - A <= D | S > A) / E[min(S - A, D) | S > A]
#
# the chance that it ends, per GPU-second that it is expected to use up. The authors'
# code divides by the mean of the samples themselves where the definition has S - A; we
# use the definition. Sums of sorted samples from either end make an index two
# bisections.

import math
from bisect import bisect_right, insort
from collections.abc import Iterable
from itertools import accumulate


class GittinsIndex:
    """Samples of jobs' whole service in GPU-seconds, and the index that they give."""

    def __init__(self, history_gpu_s: Iterable[float] = ()) -> None:
        self._samples = sorted(history_gpu_s)
        if any(not (math.isfinite(each) and each > 0.0) for each in self._samples):
            raise ValueError(
                f"history_gpu_s must be finite and > 0, got {tuple(self._samples)}"
            )
        self._sums: list[float] = []

    @property
    def num_samples(self) -> int:
        """The number of samples so far."""
        return len(self._samples)

    def add(self, service_gpu_s: float) -> None:
        """Note that a job ended after `service_gpu_s` (> 0)."""
        insort(self._samples, service_gpu_s)
        self._sums = []

    def __call__(self, attained_gpu_s: float, quantum_gpu_s: float) -> float:
        """Return G, 1 / GPU-second; 0 beyond the largest sample. The quantum may be
        infinite.
        """
        if not self._sums:
            self._sums = [0.0, *accumulate(self._samples)]
        first = bisect_right(self._samples, attained_gpu_s)
        num_longer = len(self._samples) - first
        if not num_longer:
            return 0.0
        within = bisect_right(self._samples, attained_gpu_s + quantum_gpu_s)
        used = (
            self._sums[within] - self._sums[first] - (within - first) * attained_gpu_s
        )
        beyond = len(self._samples) - within
        if beyond:
            used += beyond * quantum_gpu_s
        return (within - first) / used
