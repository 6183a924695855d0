"""Goodput = throughput x efficiency, and the batch that maximises it for one job on one
placement.
"""

from dataclasses import dataclass

from coadapt.goodput.batch import Candidates, candidates, split_total
from coadapt.goodput.efficiency import FloatArray, efficiency_at
from coadapt.goodput.efficiency_models import EfficiencyModel
from coadapt.goodput.throughput import ThroughputModel, step_time
from coadapt.model import (
    BatchConfig,
    BatchLimits,
    GradStats,
    Placement,
    ThroughputParams,
)


@dataclass(frozen=True, slots=True)
class BatchChoice:
    """The best batch on a placement, and its goodput in progress (scale-invariant
    samples) per second.
    """

    goodput: float
    config: BatchConfig


@dataclass(frozen=True, slots=True, eq=False)
class BatchSearch:
    """The search for the batch of an adaptive job on a placement, for one noise scale
    after the other.

    A job looks again after each epoch, by the noise of then; its step times change far
    more seldom, and what follows from them alone is worked out once: rate_B, samples
    per second, and scale_B, total over initial batch, of B candidates. fallback: where
    none is lawful, the nearest split.
    """

    choices: Candidates
    fallback: BatchConfig | None
    scale_B: FloatArray
    rate_B: FloatArray

    @classmethod
    def of(
        cls,
        limits: BatchLimits,
        params: ThroughputParams,
        placement: Placement,
        model: ThroughputModel,
    ) -> "BatchSearch":
        """Return the search with these step times. ValueError for an empty
        placement.
        """
        num_replicas = placement.num_replicas
        choices = candidates(limits, num_replicas)
        total_B = choices.total
        if total_B.size == 0:
            smallest = max(limits.initial, limits.min_atomic * num_replicas)
            return cls(
                choices, split_total(smallest, num_replicas, limits), total_B, total_B
            )
        step_s_B = model(params, placement, choices.atomic, choices.accumulation)
        return cls(choices, None, total_B / limits.initial, total_B / step_s_B)

    def best(
        self, grad: GradStats, efficiency_model: EfficiencyModel | None = None
    ) -> BatchChoice:
        """Return the batch with the highest goodput, the smallest on ties; as of
        `best_batch`.
        """
        if self.fallback is not None:
            return BatchChoice(0.0, self.fallback)
        if efficiency_model is None:
            gain_B = efficiency_at(self.scale_B, grad.sqr, grad.var)
        else:
            gain_B = efficiency_model(self.choices.total).expected
        goodput_B = self.rate_B * gain_B
        best = int(goodput_B.argmax())
        return BatchChoice(float(goodput_B[best]), self.choices.config(best))


def best_batch(
    limits: BatchLimits,
    params: ThroughputParams,
    grad: GradStats,
    placement: Placement,
    *,
    adaptive: bool = True,
    model: ThroughputModel = step_time,
    efficiency_model: EfficiencyModel | None = None,
) -> BatchChoice:
    """Return the batch with the highest goodput on `placement` (Pollux eq. 12), the
    smallest on ties.

    `efficiency_model`: by default the noise scale of `grad`. A job that is not
    `adaptive` keeps `limits.requested` exactly, at efficiency 1. Where no lawful batch
    fits the placement, goodput is 0 and the batch is the nearest split. ValueError for
    an empty placement.
    """
    num_replicas = placement.num_replicas
    if not adaptive:
        config = split_total(limits.requested, num_replicas, limits, exact=True)
        if num_replicas * limits.min_atomic > config.total:
            return BatchChoice(0.0, config)
        seconds = float(model(params, placement, config.atomic, config.accumulation))
        return BatchChoice(config.total / seconds, config)
    return BatchSearch.of(limits, params, placement, model).best(grad, efficiency_model)
