"""Efficiency as a port, as step time is: several models of progress per sample, each
with an interval.
"""

# Why more than one. Pollux's formula EFF(M) = (phi + M0) / (phi + M) takes the gradient
# noise scale phi for the critical batch. That held for its workloads. It needs a phi
# that is measured well, it says nothing before the first measurement, and under some
# rate schedules it is wrong in sign: with warmup-stable-decay the curves of different
# batches cross, and a larger batch may need *less* data (arXiv 2601.05034). Teams that
# measure the critical batch directly, by short branches, found it near 0 at first,
# rising fast, then flat (arXiv 2505.23971). Before anything is measured, the tokens
# seen are the best known predictor of it (arXiv 2505.13738, 2410.21676).
#
# So the model is a value that is called with total batches and answers with an
# interval. A decision under risk takes an end of it: the low one, where growth that
# does not pay costs more than growth that was missed.
#
# Jobs whose batch no other part chooses (contracts fixed, frozen, self, schedule) have
# no efficiency to estimate: theirs is 1 by definition of their own progress.

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from coadapt.goodput.efficiency import efficiency
from coadapt.model import (
    EfficiencyKind,
    EfficiencyPoint,
    EfficiencySpec,
    GradStats,
    JobSpec,
    JobView,
)

FloatArray = NDArray[np.float64]

NO_GAIN = GradStats(
    sqr=1.0, var=0.0
)  # not measured yet: a larger batch is taken to gain nothing
NO_LOSS = GradStats(sqr=0.0, var=1.0)  # efficiency 1, whatever the batch
# Standard errors to each side of the expected noise scale: 95 % where the error is
# normal.
NUM_STDERRS = 1.96
# To each side of the prior by tokens: a choice of ours, for a law fitted on other
# models and other data.
PRIOR_FACTOR = 2.0


class Estimate(StrEnum):
    """Which end of an interval a decision rests on."""

    LOW = "low"
    EXPECTED = "expected"
    HIGH = "high"


@dataclass(frozen=True, slots=True)
class EfficiencyRange:
    """Efficiencies of some total batches: arrays of their shape, low <= expected <=
    high.
    """

    low: FloatArray
    expected: FloatArray
    high: FloatArray

    def at(self, estimate: Estimate) -> FloatArray:
        ends: dict[Estimate, FloatArray] = {
            Estimate.LOW: self.low,
            Estimate.HIGH: self.high,
        }
        return ends.get(estimate, self.expected)


class EfficiencyModel(Protocol):
    """Progress per sample at a total batch, against the initial batch. Write another
    one and hand it on.
    """

    def __call__(self, total: FloatArray) -> EfficiencyRange:
        """Return the efficiencies at total batches `total` (samples, any shape, at
        least the initial one).
        """
        ...


@dataclass(frozen=True, slots=True)
class NoiseScale:
    """Pollux's formula (OSDI'21, eq. 7), with the interval of the noise scale that
    `grad` was measured with.

    Without a standard error the interval goes from no gain at all to no loss at all.
    """

    initial: float
    grad: GradStats

    def __call__(self, total: FloatArray) -> EfficiencyRange:
        return EfficiencyRange(
            *(self._with(total, self.stats(each)) for each in Estimate)
        )

    def stats(self, estimate: Estimate) -> GradStats:
        """Return gradient statistics whose noise scale is that end of the interval."""
        grad = self.grad
        stderr = self.grad.noise_scale_stderr
        if estimate is Estimate.EXPECTED or grad in (NO_LOSS, NO_GAIN):
            return grad
        if stderr is None or grad.sqr == 0.0:
            return NO_GAIN if estimate is Estimate.LOW else NO_LOSS
        shift = NUM_STDERRS * stderr * grad.sqr / self.initial
        var = grad.var + (shift if estimate is Estimate.HIGH else -shift)
        return GradStats(sqr=grad.sqr, var=max(var, 0.0))

    def _with(self, total: FloatArray, grad: GradStats) -> FloatArray:
        return np.asarray(efficiency(total, self.initial, grad.sqr, grad.var))


@dataclass(frozen=True, slots=True)
class MeasuredCurve:
    """Efficiencies measured at some batches and moments, `progress` (samples) being the
    present one.

    Between moments, and over the logarithm of the batch, it goes on straight lines;
    before the first and after the last moment it stays as it was there. Beyond the
    largest batch that was measured more samples are taken to gain nothing: the
    efficiency falls as 1 / batch. At the initial batch it is 1.
    """

    initial: float
    points: tuple[EfficiencyPoint, ...]
    progress: float

    def __call__(self, total: FloatArray) -> EfficiencyRange:
        return EfficiencyRange(*(self._end(total, each.value) for each in Estimate))

    def _end(self, total: FloatArray, name: str) -> FloatArray:
        by_total: dict[int, list[tuple[float, float]]] = {}
        for point in sorted(
            self.points, key=lambda point: (point.total, point.progress)
        ):
            if point.total > self.initial:
                by_total.setdefault(point.total, []).append(
                    (point.progress, getattr(point, name))
                )
        totals = [float(self.initial)]
        now = [1.0]
        for measured, line in by_total.items():
            totals.append(float(measured))
            moments, values = np.array(line).T
            now.append(float(np.interp(self.progress, moments, values)))
        found = np.interp(np.log(total), np.log(totals), now)
        return np.asarray(found * np.minimum(totals[-1] / total, 1.0))


@dataclass(frozen=True, slots=True)
class TokensPrior:
    """Pollux's formula, with a critical batch that grows as a power of the tokens seen
    (EfficiencySpec).
    """

    initial: float
    spec: EfficiencySpec
    samples: float

    def __call__(self, total: FloatArray) -> EfficiencyRange:
        return EfficiencyRange(
            *(
                self._with(total, each)
                for each in (1.0 / PRIOR_FACTOR, 1.0, PRIOR_FACTOR)
            )
        )

    @property
    def critical_batch(self) -> float:
        """The critical batch in samples after the samples seen."""
        spec = self.spec
        assert spec.critical_batch is not None
        assert spec.reference_tokens is not None
        assert spec.tokens_per_sample is not None
        grown = self.samples * spec.tokens_per_sample / spec.reference_tokens
        return spec.critical_batch * float(grown**spec.exponent)

    def _with(self, total: FloatArray, factor: float) -> FloatArray:
        return np.asarray(
            efficiency(
                total, self.initial, 1.0, factor * self.critical_batch / self.initial
            )
        )


def model_of(
    spec: JobSpec,
    grad: GradStats | None,
    *,
    progress: float = 0.0,
    samples: float = 0.0,
    points: Sequence[EfficiencyPoint] = (),
) -> EfficiencyModel:
    """Return the model that `spec` names, of a job that is `progress` and `samples`
    (both samples) far.

    points: what was measured since it was submitted, for kind `measured`; where neither
    it nor the spec has any, and without gradient statistics, a larger batch is taken to
    gain nothing. Jobs that are not adaptive have none.
    """
    initial = float(spec.batch.initial)
    named = spec.efficiency
    if not spec.adaptive:
        return NoiseScale(initial, NO_LOSS)
    if named.kind is EfficiencyKind.TOKENS:
        return TokensPrior(initial, named, samples)
    if named.kind is EfficiencyKind.MEASURED:
        known = (*named.points, *points)
        return (
            MeasuredCurve(initial, known, progress)
            if known
            else NoiseScale(initial, NO_GAIN)
        )
    return NoiseScale(initial, grad or NO_GAIN)


def model_of_job(job: JobView) -> EfficiencyModel:
    """Return the model of a job as a policy sees it."""
    seen = job.measured
    return model_of(
        job.spec,
        seen.grad,
        progress=seen.progress,
        samples=seen.samples,
        points=seen.efficiency_points,
    )
