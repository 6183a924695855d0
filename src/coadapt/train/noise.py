"""The gradient noise scale from norms of gradients at two batch sizes; plain numbers, no tensors.

McCandlish et al. 2018, appendix A; Pollux (OSDI'21, §3.1) for the averages and the differenced estimate;
Fieller 1954 for the interval of the ratio of two averages.
"""

import math
from dataclasses import dataclass

from coadapt.model import GradStats

# Decay of the running averages per initial batch of samples trained on (Pollux's artifact).
DECAY = 0.999
# The variance is at least this share of the squared norm: an estimate may come out negative.
# Departure from the artifact, whose absolute floor of 1e-6 swamps models with small gradients.
VAR_MIN_SHARE = 1e-6
# Quantile of the normal distribution for a two-sided 90 % interval.
Z_90 = 1.6449
# With a smaller effective number of estimates their spread says nothing yet.
ESTIMATES_MIN = 4.0


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
    """Bias-corrected moving averages of both estimates. initial: M0. at_samples: when the last came in.

    weight_sqr, sqr_sqr, trace_sqr, cross: averages of the weights' and the estimates' squares and of their
    product, for the uncertainty.
    """

    initial: int
    sqr: float = 0.0
    trace: float = 0.0
    weight: float = 0.0
    differenced: bool = False
    at_samples: float = 0.0
    weight_sqr: float = 0.0
    sqr_sqr: float = 0.0
    trace_sqr: float = 0.0
    cross: float = 0.0

    def add(self, norms: GradNorms, at_samples: float) -> None:
        """Take in one step, after `at_samples` samples of training.

        It weighs as much as the samples that it was made of, however many steps before it went unmeasured.
        The first estimate that is not differenced throws away those that are: they are biased.
        """
        found = estimate(norms)
        if found is None:
            return
        if self.differenced and not norms.differenced:
            self._fade(0.0)
        self.differenced = norms.differenced
        own = max(norms.samples, self.initial)
        age = max(at_samples - self.at_samples, own)
        self.at_samples = at_samples
        self._fade(DECAY ** (age / self.initial))
        weight = 1.0 - DECAY ** (own / self.initial)
        sqr, trace = found
        self.weight += weight
        self.weight_sqr += weight * weight
        self.sqr += weight * sqr
        self.trace += weight * trace
        self.sqr_sqr += weight * sqr * sqr
        self.trace_sqr += weight * trace * trace
        self.cross += weight * sqr * trace

    def stats(self) -> GradStats | None:
        """Return the averages, variance at the initial batch size; None before the first estimate."""
        if self.weight == 0.0:
            return None
        sqr = max(self.sqr / self.weight, 0.0)
        var = max(self.trace / self.weight / self.initial, VAR_MIN_SHARE * sqr)
        return GradStats(sqr=sqr, var=var, noise_scale_stderr=self._stderr())

    def interval(self) -> tuple[float, float] | None:
        """Return the 90 % interval of the noise scale in samples; None before a few estimates are in.

        Fieller's: all φ for which mean(trace) - φ mean(sqr) is within its own error of zero. Its upper end is
        infinite as long as the gradient cannot be told from zero.
        """
        moments = self._moments()
        if moments is None:
            return None
        sqr, trace = max(self.sqr / self.weight, 0.0), max(self.trace / self.weight, 0.0)
        share = self._share()
        freedom = 1.0 / share - 1.0
        quantile = Z_90 + (Z_90**3 + Z_90) / (4.0 * freedom)  # Student's, to first order
        error = quantile**2 * share / (1.0 - share)
        a = sqr**2 - error * moments[0]
        b = sqr * trace - error * moments[2]
        c = trace**2 - error * moments[1]
        root = math.sqrt(max(b * b - a * c, 0.0))
        low = c / (b + root) if c > 0.0 else 0.0
        return low, (b + root) / a if a > 0.0 else math.inf

    def cautious(self) -> GradStats | None:
        """Return the averages with the noise scale at the low end of its interval; None if it has none yet.

        What a batch may grow on: a noise scale that was overestimated costs samples.
        """
        stats, interval = self.stats(), self.interval()
        if stats is None or interval is None:
            return None
        low = interval[0]
        if stats.sqr == 0.0:
            # Only the ratio counts, and it is finite.
            return GradStats(sqr=self.initial / low, var=1.0) if low > 0.0 else GradStats(sqr=1.0, var=0.0)
        return GradStats(sqr=stats.sqr, var=stats.sqr * min(low / self.initial, stats.var / stats.sqr))

    def _fade(self, factor: float) -> None:
        self.weight *= factor
        self.weight_sqr *= factor * factor
        self.sqr *= factor
        self.trace *= factor
        self.sqr_sqr *= factor
        self.trace_sqr *= factor
        self.cross *= factor

    def _share(self) -> float:
        """Return one over the effective number of estimates (Kish)."""
        return self.weight_sqr / self.weight**2

    def _moments(self) -> tuple[float, float, float] | None:
        """Return the variances of both estimates and their covariance, None as long as too few are in."""
        if self.weight == 0.0 or not 0.0 < self._share() * ESTIMATES_MIN <= 1.0:
            return None
        sqr, trace = self.sqr / self.weight, self.trace / self.weight
        return (
            max(self.sqr_sqr / self.weight - sqr**2, 0.0),
            max(self.trace_sqr / self.weight - trace**2, 0.0),
            self.cross / self.weight - sqr * trace,
        )

    def _stderr(self) -> float | None:
        """Return the ratio's standard error by the delta method: that of trace - φ sqr, over sqr."""
        moments = self._moments()
        if moments is None or self.sqr <= 0.0:
            return None
        ratio, share = self.trace / self.sqr, self._share()
        spread = moments[1] - 2.0 * ratio * moments[2] + ratio**2 * moments[0]
        return math.sqrt(max(spread, 0.0) * share / (1.0 - share)) / (self.sqr / self.weight)
