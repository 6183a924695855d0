"""Goodput = throughput x efficiency, and the batch that maximises it for one job on one placement."""

from dataclasses import dataclass

import numpy as np

from coadapt.goodput.batch import candidates, nearest_split, split_total
from coadapt.goodput.efficiency import efficiency
from coadapt.goodput.efficiency_models import EfficiencyModel
from coadapt.goodput.throughput import ThroughputModel, step_time
from coadapt.model import BatchConfig, BatchLimits, GradStats, Placement, ThroughputParams


@dataclass(frozen=True, slots=True)
class BatchChoice:
    """The best batch on a placement, and its goodput in progress (scale-invariant samples) per second."""

    goodput: float
    config: BatchConfig


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
    """Return the batch with the highest goodput on `placement` (Pollux eq. 12), the smallest on ties.

    `efficiency_model`: by default the noise scale of `grad`. A job that is not `adaptive` keeps
    `limits.requested` exactly, at efficiency 1. Where no lawful batch fits the placement, goodput is 0 and
    the batch is the nearest split. ValueError for an empty placement.
    """
    num_replicas = placement.num_replicas
    if not adaptive:
        config = split_total(limits.requested, num_replicas, limits, exact=True)
        if num_replicas * limits.min_atomic > config.total:
            return BatchChoice(0.0, config)
        seconds = float(model(params, placement, config.atomic, config.accumulation))
        return BatchChoice(config.total / seconds, config)
    choices = candidates(limits, num_replicas)
    if choices.total.size == 0:
        return BatchChoice(0.0, nearest_split(limits, num_replicas))
    step_s = model(params, placement, choices.atomic, choices.accumulation)
    if efficiency_model is None:
        gains = efficiency(choices.total, limits.initial, grad.sqr, grad.var)
    else:
        gains = efficiency_model(choices.total).expected
    goodput = choices.total / step_s * gains
    best = int(np.argmax(goodput))
    return BatchChoice(float(goodput[best]), choices.config(best))
