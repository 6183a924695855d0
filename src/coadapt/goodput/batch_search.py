"""A search for the best batch, by one noise after the other, where all that step times follow from stays.

Axes: B candidate batches.
"""

# A simulated job chooses its batch after each epoch, by the noise of then. Its step times change far more
# seldom, so what follows from them alone is worked out once.

from dataclasses import dataclass

from coadapt.goodput.batch import Candidates, candidates, nearest_split
from coadapt.goodput.efficiency import FloatArray, efficiency_at
from coadapt.goodput.throughput import ThroughputModel, step_time
from coadapt.model import BatchConfig, BatchLimits, GradStats, Placement, ThroughputParams


@dataclass(frozen=True, slots=True)
class BatchSearch:
    """What `best_batch` finds with `params`, by one noise after the other. fallback: where none is lawful.

    scale_B: total over initial batch; rate_B: samples per second.
    """

    params: ThroughputParams
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
        model: ThroughputModel = step_time,
    ) -> "BatchSearch":
        """Return the search of an adaptive job. ValueError for an empty placement."""
        choices = candidates(limits, placement.num_replicas)
        if choices.total.size == 0:
            none_B = choices.total
            return cls(params, choices, nearest_split(limits, placement.num_replicas), none_B, none_B)
        step_s_B = model(params, placement, choices.atomic, choices.accumulation)
        return cls(params, choices, None, choices.total / limits.initial, choices.total / step_s_B)

    def best(self, grad: GradStats) -> BatchConfig:
        """Return the batch with the highest goodput by the noise of `grad`, the smallest on ties."""
        if self.fallback is not None:
            return self.fallback
        goodput_B = self.rate_B * efficiency_at(self.scale_B, grad.sqr, grad.var)
        return self.choices.config(int(goodput_B.argmax()))
