"""Which batches may be used: splitting one total over replicas, and the candidates to
choose among.

Axes: C configurations (replica counts), B candidate batches.
"""

from dataclasses import dataclass, field, replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from coadapt.model import BatchConfig, BatchLimits, JobView, RescaleContract

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.signedinteger]
Numbers = FloatArray | NDArray[np.int64]

NUM_CANDIDATES = (
    50  # geometric steps from the smallest to the largest batch (Pollux's artifact)
)
# samples; a quotient this little above a whole number is that number (artifact)
ROUNDING_SLACK = 1e-8
NUM_GRIDS_KEPT = 1024  # distinct (limits, replica counts); 60 kB each for 100 counts
INT32_MAX = 2**31 - 1
NUM_CANDIDATES_KEPT = 8192  # distinct (limits, replicas); about 1 kB each
# distinct cuts; about 0.3 kB each. A policy asks for the same ones every round
NUM_SPLITS_KEPT = 16384


def split_total(
    total: int,
    num_replicas: int,
    limits: BatchLimits,
    *,
    accumulate_alone: bool = False,
    exact: bool = False,
) -> BatchConfig:
    """Cut `total` over `num_replicas`: equal shares rounded up, accumulation where one
    pass cannot hold one.

    By default every pass is full: the result's total is replicas * atomic * passes,
    rounded up and then cut to at most `limits.max_total` by a smaller atomic batch (the
    rule of Pollux's artifact). With `exact` the total is kept (contracts `fixed` and
    `frozen`): the last shard is smaller, and passes are accumulated even where
    `limits.accumulation` is off. `accumulate_alone`: one replica with a total above the
    initial batch takes at least two passes, because one pass cannot measure the noise
    scale. ValueError for counts below 1.
    """
    return _split(total, num_replicas, limits, accumulate_alone, exact)


@lru_cache(maxsize=NUM_SPLITS_KEPT)
def _split(
    total: int,
    num_replicas: int,
    limits: BatchLimits,
    accumulate_alone: bool,
    exact: bool,
) -> BatchConfig:
    if total < 1 or num_replicas < 1:
        raise ValueError(
            f"total and num_replicas must be >= 1, got {total} and {num_replicas}"
        )
    share = -(-total // num_replicas)
    passes = 1
    if limits.max_atomic is not None and (limits.accumulation or exact):
        passes = -(-share // limits.max_atomic)
    if (
        accumulate_alone
        and limits.accumulation
        and num_replicas == 1
        and total > limits.initial
    ):
        passes = max(passes, 2)
    atomic = -(-share // passes)
    if exact:
        return BatchConfig(total=total, atomic=atomic, accumulation=passes - 1)
    if limits.max_atomic is not None:
        atomic = min(atomic, limits.max_atomic)
    atomic = max(min(atomic, limits.max_total // (num_replicas * passes)), 1)
    return BatchConfig(
        total=num_replicas * atomic * passes, atomic=atomic, accumulation=passes - 1
    )


def limits_in_use(job: JobView, gpu_type: str | None = None) -> BatchLimits:
    """Return the batch limits that hold for `job` now, with the memory of `gpu_type` if
    it is known.

    A job under `self` keeps, until it says otherwise, the total batch that it last
    reported, whatever it requested: that is its `requested` here. One under `schedule`
    has the total batch in force at the samples that it last reported.
    """
    limits = job.spec.batch
    used = job.measured.batch
    if (
        job.spec.contract is RescaleContract.SELF
        and used is not None
        and used.total != limits.requested
    ):
        limits = replace(
            limits, requested=used.total, max_total=max(limits.max_total, used.total)
        )
    if limits.schedule is not None:
        # Without the ramp, limits are alike between two changes, and what is computed
        # from them is kept.
        limits = replace(
            limits,
            requested=limits.schedule.total_at(job.measured.samples),
            schedule=None,
        )
    profile = None if gpu_type is None else job.measured.by_type.get(gpu_type)
    ceiling = None if profile is None else profile.max_atomic
    if ceiling is not None and ceiling < (limits.max_atomic or limits.max_total):
        limits = replace(limits, max_atomic=max(ceiling, limits.min_atomic))
    return limits


@dataclass(frozen=True, slots=True)
class BatchGrid:
    """Batches to choose from per configuration, arrays (num_configs, num_candidates);
    total 0: not lawful.
    """

    total_CB: IntArray
    atomic_CB: IntArray
    accumulation_CB: IntArray


@lru_cache(maxsize=NUM_GRIDS_KEPT)
def adaptive_grid(limits: BatchLimits, num_replicas_C: tuple[int, ...]) -> BatchGrid:
    """Return the batches that an adaptive job may use on each replica count K, in
    ascending order.

    Geometric totals from max(initial, min_atomic * K) to max_total, cut into shares
    rounded up, with a smaller atomic batch where that would pass max_total. Passes are
    accumulated where max_atomic demands it, and on one replica always above the initial
    batch, because one pass cannot measure the noise scale there; a job that forbids
    accumulation stays at the initial batch on one replica. An atomic batch out of its
    limits is not lawful.
    """
    num_replicas = np.array(num_replicas_C, dtype=np.float64)[:, None]
    smallest = np.maximum(float(limits.initial), limits.min_atomic * num_replicas)
    largest = np.full_like(smallest, limits.max_total)
    if not limits.accumulation:
        if limits.max_atomic is not None:
            largest = np.minimum(largest, limits.max_atomic * num_replicas)
        largest = np.where(
            num_replicas == 1, np.minimum(largest, limits.initial), largest
        )
    lawful = smallest <= largest
    smallest = np.minimum(smallest, largest)
    share = (
        np.geomspace(smallest[:, 0], largest[:, 0], NUM_CANDIDATES, axis=1)
        / num_replicas
    )
    passes = np.ones_like(share)
    if limits.accumulation:
        if limits.max_atomic is not None:
            passes = np.ceil(share / limits.max_atomic - ROUNDING_SLACK)
        grown_alone = (num_replicas == 1) & (share > limits.initial + ROUNDING_SLACK)
        passes = np.where(grown_alone, np.maximum(passes, 2.0), passes)
    atomic = np.ceil(share / passes - ROUNDING_SLACK)
    atomic = np.minimum(atomic, limits.max_total // (num_replicas * passes))
    lawful = lawful & (atomic >= limits.min_atomic)
    if limits.max_atomic is not None:
        lawful &= atomic <= limits.max_atomic
    return _grid(
        limits, np.where(lawful, num_replicas * atomic * passes, 0.0), atomic, passes
    )


@lru_cache(maxsize=NUM_GRIDS_KEPT)
def requested_grid(limits: BatchLimits, num_replicas_C: tuple[int, ...]) -> BatchGrid:
    """Return the one batch of a job that keeps `limits.requested`, split as by
    `split_total(exact=True)`.

    It is lawful while each replica has at least min_atomic samples.
    """
    num_replicas = np.array(num_replicas_C)[:, None]
    share = -(-limits.requested // num_replicas)
    passes = (
        np.ones_like(share)
        if limits.max_atomic is None
        else -(-share // limits.max_atomic)
    )
    lawful = num_replicas * limits.min_atomic <= limits.requested
    return _grid(
        limits, np.where(lawful, limits.requested, 0), -(-share // passes), passes
    )


def _grid(
    limits: BatchLimits, total: Numbers, atomic: Numbers, passes: Numbers
) -> BatchGrid:
    """Return the grid, as small as can be to keep, with all values in range also where
    nothing is lawful.
    """
    kind: type[np.signedinteger] = (
        np.int32 if limits.max_total <= INT32_MAX else np.int64
    )
    return BatchGrid(
        total.astype(kind),
        np.maximum(atomic, 1).astype(kind),
        (passes - 1).astype(kind),
    )


@dataclass(frozen=True, slots=True)
class Candidates:
    """Lawful batches on one replica count, ascending by total; arrays
    (num_candidates,), maybe empty.

    configs: those that were asked for, by number.
    """

    total: FloatArray
    atomic: FloatArray
    accumulation: FloatArray
    configs: dict[int, BatchConfig] = field(default_factory=dict)

    def config(self, number: int) -> BatchConfig:
        """Return one of them, the same object each time."""
        config = self.configs.get(number)
        if config is None:
            config = self.configs[number] = BatchConfig(
                total=int(self.total[number]),
                atomic=int(self.atomic[number]),
                accumulation=int(self.accumulation[number]),
            )
        return config


@lru_cache(maxsize=NUM_CANDIDATES_KEPT)
def candidates(limits: BatchLimits, num_replicas: int) -> Candidates:
    """Return the distinct lawful batches of `adaptive_grid` on one replica count."""
    grid = adaptive_grid(limits, (num_replicas,))
    keep = grid.total_CB[0] > 0
    keep[1:] &= (np.diff(grid.atomic_CB[0]) != 0) | (
        np.diff(grid.accumulation_CB[0]) != 0
    )
    axes = (grid.total_CB, grid.atomic_CB, grid.accumulation_CB)
    columns = [axis[0][keep].astype(np.float64) for axis in axes]
    for column in columns:
        column.flags.writeable = False  # every later call gets these same arrays
    return Candidates(*columns)
