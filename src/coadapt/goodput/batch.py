"""Which batches may be used: splitting one total over replicas, and the candidates to choose among."""

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from coadapt.model import BatchConfig, BatchLimits

FloatArray = NDArray[np.float64]

NUM_CANDIDATES = 50  # geometric steps between the smallest and the largest batch (Pollux's artifact)
ROUNDING_SLACK = 1e-8  # samples; a quotient this close above a whole number is that number (artifact)
CACHE_ROWS = 65536  # rows of about 1 KB: distinct (limits, replicas) of a large cluster


def split_total(
    total: int,
    num_replicas: int,
    limits: BatchLimits,
    *,
    accumulate_alone: bool = False,
    exact: bool = False,
) -> BatchConfig:
    """Cut `total` over `num_replicas`: equal shares rounded up, accumulation where one pass cannot hold one.

    By default every pass is full, so the resulting total is replicas * atomic * passes: rounded up, then cut to
    at most `limits.max_total` by a smaller atomic batch (the rule of Pollux's artifact). With `exact` the total
    is kept (contracts `fixed` and `frozen`): the last shard is smaller, and accumulation is used even where
    `limits.accumulation` is off. `accumulate_alone`: one replica with a total above the initial batch takes at
    least two passes, because one pass cannot measure the noise scale. ValueError for counts below 1.
    """
    if total < 1 or num_replicas < 1:
        raise ValueError(f"total and num_replicas must be >= 1, got {total} and {num_replicas}")
    share = -(-total // num_replicas)
    may_accumulate = limits.accumulation or exact
    accumulation = 0
    if limits.max_atomic is not None and may_accumulate:
        accumulation = -(-share // limits.max_atomic) - 1
    if accumulate_alone and num_replicas == 1 and total > limits.initial and limits.accumulation:
        accumulation = max(accumulation, 1)
    passes = accumulation + 1
    atomic = -(-share // passes)
    if exact:
        return BatchConfig(total=total, atomic=atomic, accumulation=accumulation)
    if limits.max_atomic is not None:
        atomic = min(atomic, limits.max_atomic)
    atomic = max(min(atomic, limits.max_total // (num_replicas * passes)), 1)
    return BatchConfig(total=num_replicas * atomic * passes, atomic=atomic, accumulation=accumulation)


@dataclass(frozen=True, slots=True)
class Candidates:
    """Lawful batches of an adaptive job on one replica count, ascending; arrays (num_candidates,), maybe empty."""

    total: FloatArray
    atomic: FloatArray
    accumulation: FloatArray


@lru_cache(maxsize=CACHE_ROWS)
def candidates(limits: BatchLimits, num_replicas: int) -> Candidates:
    """Return the batches that an adaptive job may use on `num_replicas`.

    Geometric totals from max(initial, min_atomic * K) to max_total; shares rounded up; no more than max_total
    (a smaller atomic batch where rounding up passes it); atomic batches outside their limits are left out.
    One replica takes a batch above the initial one only with accumulation (its noise cannot be measured else).
    """
    smallest = max(limits.initial, limits.min_atomic * num_replicas)
    if smallest > limits.max_total:
        empty = np.zeros(0)
        return Candidates(empty, empty, empty)
    share = np.geomspace(smallest, limits.max_total, NUM_CANDIDATES) / num_replicas
    accumulation = np.zeros_like(share)
    if limits.accumulation:
        if limits.max_atomic is not None:
            accumulation = np.ceil(share / limits.max_atomic - ROUNDING_SLACK) - 1.0
        if num_replicas == 1:
            grown = share > limits.initial + ROUNDING_SLACK
            accumulation = np.where(grown, np.maximum(accumulation, 1.0), accumulation)
    elif num_replicas == 1:
        share = np.minimum(share, limits.initial)
    passes = accumulation + 1.0
    atomic = np.ceil(share / passes - ROUNDING_SLACK)
    atomic = np.minimum(atomic, limits.max_total // (num_replicas * passes))
    max_atomic = math.inf if limits.max_atomic is None else limits.max_atomic
    lawful = (atomic >= limits.min_atomic) & (atomic <= max_atomic)
    new = np.ones_like(lawful)
    new[1:] = (np.diff(atomic) != 0.0) | (np.diff(accumulation) != 0.0)
    keep = lawful & new
    total = num_replicas * atomic * passes
    return Candidates(total[keep], atomic[keep], accumulation[keep])
