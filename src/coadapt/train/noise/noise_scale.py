"""The gradient noise scale from norms of gradients at two batch sizes; plain numbers,
no tensors.

McCandlish et al. 2018, appendix A; Pollux (OSDI'21, §3.1) for the averages and the
differenced estimate; Fieller 1954 for the interval of the ratio of two averages.
"""

# What makes the estimate unbiased. The mean gradient g_b of b samples, each drawn from
# the data by itself, has the expected squared norm E|g_b|^2 = |G|^2 + tr(S)/b: G is the
# true gradient, S the covariance of one sample's. Squared norms at two batch sizes are
# two such equations with the two unknowns |G|^2 and tr(S); `estimate` solves them. The
# solution is linear in the measured norms, so its expectation is the truth, also though
# the small and the large batch share their samples: the expectation of a sum is the sum
# of expectations, whether its terms depend on each other or not. Three things must
# hold.
#
# 1. All norms of one estimate are taken at the same parameters. Passes and replicas of
#    one step are. Two successive steps are not (`differenced`: their gradients g_1 and
#    g_2 are the small ones, the mean of both the large one, so that the trace comes
#    from |g_1 - g_2|^2): between them G moves, the difference has the movement in it,
#    and the trace comes out too large, without bound where steps overshoot. So
#    differenced estimates are never averaged with sound ones. The first sound one
#    throws them away; where enough sound ones are known, differenced ones count only
#    once the last sound one is as old as the average's memory, 1 / (1 - DECAY) initial
#    batches. No batch grows on them. An adaptive run on one replica cuts its measured
#    steps into two passes instead.
# 2. Only the two averages are unbiased, not their ratio, which is the noise scale:
#    E[a/b] is not E[a]/E[b], and single estimates of |G|^2 are often negative. So both
# are averaged over steps, and divided once, at the end. (What is reported, `stats`, is
#    cut off at 0: no negative noise leaves this file.)
# 3. A norm may be taken in any fixed metric (of Adam: each gradient divided by the root
#    of its second moment): a linear map P turns G and S into PG and PSP', and the
#    equations stand.
#
# Samples of an epoch are drawn without replacement. The difference of 1/b that gives
# the trace is then still exact; |G|^2 comes out smaller by tr(S)/N for N samples of
# data, which matters only where a step is a large part of the data set.
#
# Which estimate when: several replicas, or several passes: theirs (`count` shards). One
# replica, adaptive:
# two half passes. One replica otherwise: successive steps, for reports only.
# Normalisation layers give norms of single examples in every pass, but of another noise
# scale: `layer_ratio` learns how the two compare.
#
# An estimate weighs as much as its samples, so that it does not matter how many steps
# went unmeasured, and old ones fade by a factor per initial batch of samples: gradients
# shrink, and the noise scale grows, as training goes on. How sure the ratio is follows
# from the spread of the estimates by Fieller's theorem: its interval is every ratio r
# for which trace - r sqr is within its own error of 0. It needs no denominator that is
# far from 0, and its upper end is infinite if the gradient is within the noise. The
# delta method (`noise_scale_stderr`) is symmetric and too narrow just there: early in
# training, where it is decided whether to grow.

import math
from dataclasses import dataclass, field

from coadapt.model import GradStats
from coadapt.train.noise.fieller import fieller
from coadapt.train.noise.layer_ratio import DECAY, LayerNoise

# The variance is at least this share of the squared norm: an estimate may come out
# negative.
# Departure from the artifact, whose absolute floor of 1e-6 swamps models with small
# gradients.
VAR_MIN_SHARE = 1e-6
# Quantile of the normal distribution for a two-sided 90 % interval.
Z_90 = 1.6449
# With a smaller effective number of estimates their spread says nothing yet.
ESTIMATES_MIN = 4.0


@dataclass(frozen=True, slots=True, kw_only=True)
class GradNorms:
    """Squared norms of the gradients that one estimate is made of.

    small_sqr: sum over `count` mean gradients of few samples each; inverse: sum of 1 /
    their samples.
    big_sqr: of the mean gradient over all `samples` samples. differenced: the small
    ones are of successive steps. layers: of normalisation layers alone, in the same
    step or (differenced) in its last one.
    """

    small_sqr: float
    inverse: float
    count: float
    big_sqr: float
    samples: float
    differenced: bool = False
    layers: "GradNorms | None" = None


def estimate(norms: GradNorms) -> tuple[float, float] | None:
    """Return (squared norm of the true gradient, trace of the covariance of one
    sample's gradient).

    Unbiased where all norms are of the same parameters; `differenced` ones are not (see
    the top).
    E|g_b|^2 = |G|^2 + tr(S)/b at both batch sizes. For n equal shards of total batch M
    these are Pollux's (n B - A)/(n - 1) and M (A - B)/(n - 1). None where a norm is not
    finite or there is only one batch size.
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
    """Bias-corrected moving averages of both estimates. initial: M0. at_samples: when
    the last came in.

    weight_sqr, sqr_sqr, trace_sqr, cross: averages of the weights' and the estimates'
    squares and of their product, for the uncertainty. layers: what normalisation layers
    add, if they are measured: once they have been compared with the whole often enough,
    the noise scale is theirs times the ratio found.
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
    layers: LayerNoise | None = None
    # What `stats` returns until the next estimate: asked for in every step of an
    # adaptive run.
    _known: GradStats | None = field(default=None, init=False, compare=False)

    def add(self, norms: GradNorms, at_samples: float) -> None:
        """Take in one step, after `at_samples` samples of training.

        It weighs as much as the samples that it was made of, however many steps before
        it went unmeasured. Estimates with the bias of successive steps and those
        without it are never averaged together.
        """
        found = estimate(norms)
        self._known = None
        self._add_layers(norms, found, at_samples)
        if found is None or not self._counts(norms, at_samples):
            return
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
        """Return the averages, variance at the initial batch size; None before the
        first estimate.
        """
        if self._known is None:
            self._known = self._stats()
        return self._known

    def interval(self) -> tuple[float, float] | None:
        """Return the 90 % interval of the noise scale in samples; None before a few
        estimates are in.

        See `fieller`; its upper end is infinite as long as the gradient does not differ
        significantly from zero.
        """
        if self.layers is not None and self._calibrated() is not None:
            return self.layers.interval()
        moments = self._moments()
        if moments is None:
            return None
        sqr = max(self.sqr / self.weight, 0.0)
        trace = max(self.trace / self.weight, 0.0)
        share = self._share()
        freedom = 1.0 / share - 1.0
        quantile = Z_90 + (Z_90**3 + Z_90) / (
            4.0 * freedom
        )  # Student's, to first order
        error = quantile**2 * share / (1.0 - share)
        return fieller(
            sqr, trace, (error * moments[0], error * moments[1], error * moments[2])
        )

    @property
    def calibration(self) -> float | None:
        """Return the noise scale over that of the normalisation layers; None: it does
        not come from them.
        """
        return None if self.layers is None else self.layers.ratio

    def cautious(self) -> GradStats | None:
        """Return the averages with the noise scale at the low end of its interval; None
        if it has none yet.

        What a batch may grow on: a noise scale that was overestimated costs samples.
        Successive steps support no growth at all: the interval knows nothing of their
        bias.
        """
        stats = self.stats()
        interval = self.interval()
        if self._biased:
            return None
        if stats is None or interval is None:
            return None
        low = interval[0]
        if stats.sqr == 0.0:
            # Only the ratio counts, and it is finite.
            return (
                GradStats(sqr=self.initial / low, var=1.0)
                if low > 0.0
                else GradStats(sqr=1.0, var=0.0)
            )
        return GradStats(
            sqr=stats.sqr,
            var=stats.sqr * min(low / self.initial, stats.var / stats.sqr),
        )

    @property
    def _biased(self) -> bool:
        if self.layers is not None and self._calibrated() is not None:
            return self.layers.differenced
        return self.differenced

    def _stats(self) -> GradStats | None:
        found = self._calibrated()
        stderr = None
        if found is not None:
            assert self.layers is not None
            stderr = self.layers.stderr()
        elif self.weight:
            found = (max(self.sqr / self.weight, 0.0), self.trace / self.weight)
            stderr = self._stderr()
        else:
            return None
        sqr, trace = found
        var = max(trace / self.initial, VAR_MIN_SHARE * sqr)
        return GradStats(sqr=sqr, var=var, noise_scale_stderr=stderr)

    def _add_layers(
        self, norms: GradNorms, whole: tuple[float, float] | None, at_samples: float
    ) -> None:
        layers = None if norms.layers is None else estimate(norms.layers)
        if norms.layers is None or layers is None:
            return
        if self.layers is None:
            self.layers = LayerNoise()
        own = max(norms.layers.samples / self.initial, 1.0)
        self.layers.add(layers, own, at_samples / self.initial)
        if whole is not None:
            own = max(norms.samples / self.initial, 1.0)
            self.layers.compare(whole, own, differenced=norms.differenced)

    def _counts(self, norms: GradNorms, at_samples: float) -> bool:
        """Return whether an estimate is to be taken in; forget those that it is not to
        be mixed with.
        """
        if norms.differenced != self.differenced:
            remembered = at_samples - self.at_samples < self.initial / (1.0 - DECAY)
            if norms.differenced and remembered and self._moments() is not None:
                return False
            self._fade(0.0)
            self.differenced = norms.differenced
        return True

    def _calibrated(self) -> tuple[float, float] | None:
        return None if self.layers is None else self.layers.estimate()

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
        """Return the variances of both estimates and their covariance, None as long as
        too few are in.
        """
        if self.weight == 0.0 or not 0.0 < self._share() * ESTIMATES_MIN <= 1.0:
            return None
        sqr = self.sqr / self.weight
        trace = self.trace / self.weight
        return (
            max(self.sqr_sqr / self.weight - sqr**2, 0.0),
            max(self.trace_sqr / self.weight - trace**2, 0.0),
            self.cross / self.weight - sqr * trace,
        )

    def _stderr(self) -> float | None:
        """Return the ratio's standard error by the delta method: that of trace - φ sqr,
        over sqr.
        """
        moments = self._moments()
        if moments is None or self.sqr <= 0.0:
            return None
        ratio = self.trace / self.sqr
        share = self._share()
        spread = moments[1] - 2.0 * ratio * moments[2] + ratio**2 * moments[0]
        return math.sqrt(max(spread, 0.0) * share / (1.0 - share)) / (
            self.sqr / self.weight
        )
