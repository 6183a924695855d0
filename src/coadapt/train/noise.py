"""The gradient noise scale from norms of gradients at two batch sizes; plain numbers, no tensors.

McCandlish et al. 2018, appendix A; Pollux (OSDI'21, §3.1) for the averages and the differenced estimate.
"""

import math
from dataclasses import dataclass

from coadapt.model import GradStats

# Decay of the running averages per initial batch of samples trained on (Pollux's artifact).
DECAY = 0.999
# The variance is at least this share of the squared norm: an estimate may come out negative.
# Departure from the artifact, whose absolute floor of 1e-6 swamps models with small gradients.
VAR_MIN_SHARE = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class GradNorms:
    """Squared norms of the gradients that one estimate is made of.

    small_sqr: sum over `count` mean gradients of few samples each; inverse: sum of 1 / their samples.
    big_sqr: of the mean gradient over all `samples` samples. differenced: the small ones are of successive
    steps.
    """

    small_sqr: float
    inverse: float
    count: float
    big_sqr: float
    samples: float
    differenced: bool = False


def estimate(norms: GradNorms) -> tuple[float, float] | None:
    """Return (squared norm of the true gradient, trace of the covariance of one sample's gradient), unbiased.

    E|g_b|^2 = |G|^2 + tr(S)/b at both batch sizes. For n equal shards of total batch M these are Pollux's
    (n B - A)/(n - 1) and M (A - B)/(n - 1). None where a norm is not finite or there is only one batch size.
    """
    if norms.count < 2:
        return None
    small = norms.small_sqr / norms.count
    spread = norms.inverse / norms.count - 1.0 / norms.samples
    trace = (small - norms.big_sqr) / spread
    sqr = norms.big_sqr - trace / norms.samples
    return (sqr, trace) if math.isfinite(sqr) and math.isfinite(trace) else None


@dataclass(slots=True)
class NoiseScale:
    """Bias-corrected moving averages of both estimates. initial: M0. at_samples: when the last came in."""

    initial: int
    sqr: float = 0.0
    trace: float = 0.0
    weight: float = 0.0
    differenced: bool = False
    at_samples: float = 0.0

    def add(self, norms: GradNorms, at_samples: float) -> None:
        """Take in one step, after `at_samples` samples of training.

        The first estimate that is not differenced throws away those that are: they are biased.
        """
        found = estimate(norms)
        if found is None:
            return
        if self.differenced and not norms.differenced:
            self.sqr = self.trace = self.weight = 0.0
        self.differenced = norms.differenced
        age = max(at_samples - self.at_samples, norms.samples, self.initial)
        self.at_samples = at_samples
        decay = DECAY ** (age / self.initial)
        self.sqr = decay * self.sqr + (1.0 - decay) * found[0]
        self.trace = decay * self.trace + (1.0 - decay) * found[1]
        self.weight = decay * self.weight + (1.0 - decay)

    def stats(self) -> GradStats | None:
        """Return the averages, variance at the initial batch size; None before the first estimate."""
        if self.weight == 0.0:
            return None
        sqr = max(self.sqr / self.weight, 0.0)
        var = self.trace / self.weight / self.initial
        return GradStats(sqr=sqr, var=max(var, VAR_MIN_SHARE * sqr))
