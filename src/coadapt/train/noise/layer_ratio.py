"""The noise scale of all parameters from that of the normalisation layers, by how the
two have compared.

Gray et al. 2024 found that in transformers the two follow each other, at a slope that
hardly changes over training. So the slope is averaged for longer than what it is
applied to. Plain numbers, no tensors.
"""

import math
from dataclasses import dataclass, field, fields
from operator import attrgetter

from coadapt.train.noise.fieller import fieller

Estimate = tuple[
    float, float
]  # squared norm of the true gradient, trace of one sample's covariance

# The layers' averages forget as those of whole gradients do (Pollux's artifact); the
# comparisons ten times later, per initial batch of samples.
DECAY = 0.999
DECAY_COMPARED = 0.9999
# Steps are dealt to that many groups, and as many comparisons are needed. Leaving out
# one group at a time says how far the result hangs on which steps were seen (the
# jackknife).
NUM_GROUPS = 16
# Quantile of Student's distribution with NUM_GROUPS - 1 degrees of freedom, two-sided
# 90 %.
T_90 = 1.7531


@dataclass(slots=True)
class Sums:
    """Weighted sums over steps: of the layers' estimates, and of both kinds where they
    were compared.

    What was compared is in units of the layers' trace of its time: gradients shrink as
    training goes on, and early comparisons would outweigh all others.
    """

    weight: float = 0.0
    sqr: float = 0.0
    trace: float = 0.0
    compared: float = 0.0
    whole_sqr: float = 0.0
    whole_trace: float = 0.0
    layers_sqr: float = 0.0
    layers_trace: float = 0.0

    def plus(self, other: "Sums", factor: float = 1.0) -> "Sums":
        pairs = zip(_values(self), _values(other), strict=True)
        return Sums(*(mine + factor * theirs for mine, theirs in pairs))

    def terms(self) -> Estimate:
        """Return denominator and numerator of the calibrated noise scale, without
        division by small values.

        (trace x whole_trace / layers_trace) / (sqr x whole_sqr / layers_sqr).
        """
        below = self.sqr / self.weight * self.whole_sqr / self.compared
        above = self.trace / self.weight * self.whole_trace / self.layers_trace
        return below, above * self.layers_sqr / self.compared


@dataclass(slots=True)
class LayerNoise:
    """What was measured on normalisation layers, and how it compares with whole
    gradients.

    Time is in initial batches of samples trained on. at, compared_at: when the last
    estimate and comparison came in. differenced: comparisons are with successive steps.
    since: the sum of the layers' estimates since the last comparison, `num_since`.
    """

    groups: list[Sums] = field(
        default_factory=lambda: [Sums() for _ in range(NUM_GROUPS)]
    )
    turn: int = 0
    num_compared: int = 0
    differenced: bool = False
    at: float = 0.0
    compared_at: float = 0.0
    since: Estimate = (0.0, 0.0)
    num_since: int = 0

    def add(self, layers: Estimate, own: float, at: float) -> None:
        """Take in what the layers gave in one step of `own` initial batches, `at` into
        training.
        """
        if self.num_since == 2:
            # Two successive steps make one comparison. None came of these.
            self._next_group()
        weight = 1.0 - DECAY**own
        factor = DECAY ** max(at - self.at, own)
        self.at = at
        for group in self.groups:
            group.weight *= factor
            group.sqr *= factor
            group.trace *= factor
        group = self.groups[self.turn]
        group.weight += weight
        group.sqr += weight * layers[0]
        group.trace += weight * layers[1]
        self.since = (self.since[0] + layers[0], self.since[1] + layers[1])
        self.num_since += 1

    def compare(self, whole: Estimate, own: float, *, differenced: bool) -> None:
        """Hold what the layers gave since the last comparison against what the whole
        gave in the same steps.

        Successive steps, whose difference is biased, count only where nothing better is
        remembered.
        """
        total = self._total()
        if (
            self.num_since
            and total.trace > 0.0
            and self._counts(differenced=differenced)
        ):
            self._fade_compared(DECAY_COMPARED ** max(self.at - self.compared_at, own))
            self.compared_at = self.at
            weight = 1.0 - DECAY_COMPARED**own
            part = weight / self.num_since
            unit = total.trace / total.weight
            group = self.groups[self.turn]
            group.compared += weight
            group.whole_sqr += weight * whole[0] / unit
            group.whole_trace += weight * whole[1] / unit
            group.layers_sqr += part * self.since[0] / unit
            group.layers_trace += part * self.since[1] / unit
            self.num_compared += 1
        self._next_group()

    @property
    def ratio(self) -> float | None:
        """Return the whole's noise scale over the layers'; None where too little was
        compared.
        """
        total = self._total()
        known = self.num_compared >= NUM_GROUPS and min(
            total.whole_sqr, total.whole_trace, total.layers_sqr, total.layers_trace
        )
        if not known or known < 0.0:
            return None
        return (
            total.whole_trace / total.layers_trace * total.layers_sqr / total.whole_sqr
        )

    def estimate(self) -> Estimate | None:
        """Return squared norm and trace of the whole, None where too little was
        compared.
        """
        total = self._total()
        if self.ratio is None:
            return None
        sqr = total.sqr / total.weight * total.whole_sqr / total.layers_sqr
        return max(
            sqr, 0.0
        ), total.trace / total.weight * total.whole_trace / total.layers_trace

    def stderr(self) -> float | None:
        """Return the standard error of the whole's noise scale by the delta method,
        None where not known.
        """
        below, above = self._total().terms()
        errors = self._errors()
        if errors is None or below <= 0.0:
            return None
        ratio = above / below
        return (
            math.sqrt(
                max(errors[1] - 2.0 * ratio * errors[2] + ratio**2 * errors[0], 0.0)
            )
            / below
        )

    def interval(self) -> Estimate | None:
        """Return the 90 % interval of the whole's noise scale, that of the comparisons
        included.
        """
        errors = self._errors()
        if errors is None:
            return None
        below, above = self._total().terms()
        sqr = T_90**2
        return fieller(
            max(below, 0.0), above, (sqr * errors[0], sqr * errors[1], sqr * errors[2])
        )

    def _errors(self) -> tuple[float, float, float] | None:
        """Return the variances of both terms and their covariance, by leaving out one
        group at a time.
        """
        if self.ratio is None:
            return None
        total = self._total()
        rest = [total.plus(group, -1.0) for group in self.groups]
        if min(min(one.weight, one.compared, one.layers_trace) for one in rest) <= 0.0:
            return None
        terms = [one.terms() for one in rest]
        below, above = (sum(values) / NUM_GROUPS for values in zip(*terms, strict=True))
        offs = [(one[0] - below, one[1] - above) for one in terms]
        share = (NUM_GROUPS - 1) / NUM_GROUPS
        return (
            share * sum(x * x for x, _ in offs),
            share * sum(y * y for _, y in offs),
            share * sum(x * y for x, y in offs),
        )

    def _counts(self, *, differenced: bool) -> bool:
        """Return whether a comparison is to be taken in; forget those that it is not to
        be mixed with.
        """
        if differenced == self.differenced:
            return True
        remembered = self.at - self.compared_at < 1.0 / (1.0 - DECAY_COMPARED)
        if differenced and remembered and self.num_compared >= NUM_GROUPS:
            return False
        self._fade_compared(0.0)
        self.num_compared = 0
        self.differenced = differenced
        return True

    def _fade_compared(self, factor: float) -> None:
        for group in self.groups:
            group.compared *= factor
            group.whole_sqr *= factor
            group.whole_trace *= factor
            group.layers_sqr *= factor
            group.layers_trace *= factor

    def _next_group(self) -> None:
        self.turn = (self.turn + 1) % NUM_GROUPS
        self.since = (0.0, 0.0)
        self.num_since = 0

    def _total(self) -> Sums:
        total = Sums()
        for group in self.groups:
            total = total.plus(group)
        return total


_values = attrgetter(*(item.name for item in fields(Sums)))
