"""Caches of fits and batch searches, which simulated jobs share.

Jobs of one application that trained on the same shapes measured the same step times, so
their models and their best batches are the same.
"""

from functools import lru_cache

from coadapt.goodput import fit_kernel
from coadapt.goodput.fit import fit_throughput
from coadapt.goodput.goodput import BatchSearch
from coadapt.goodput.profile import ProfileBuilder, ProfileKey
from coadapt.goodput.step_time_kriging import optimistic_step_times
from coadapt.goodput.throughput import step_time
from coadapt.model import (
    ApplicationTimes,
    BatchConfig,
    BatchLimits,
    GradStats,
    Placement,
    ThroughputParams,
)

NUM_FITS_KEPT = 4096  # 0.3 kB for each measured step of a key
NUM_SEARCHES_KEPT = 4096  # some 2 kB each
NUM_BATCHES_KEPT = (
    32768  # 0.2 kB each; there is one per epoch, which jobs reach one after the other
)


@lru_cache(maxsize=NUM_FITS_KEPT)
def fitted(
    steps: tuple[tuple[ProfileKey, tuple[int, float, float]], ...],
) -> ThroughputParams:
    """Return the step-time model fitted to these rows of a ProfileBuilder, in this
    order.
    """
    fit_kernel.compile_loops()  # loads numba: only where a job fits at all
    return fit_throughput(ProfileBuilder(rows=dict(steps)).build())


@lru_cache(maxsize=NUM_SEARCHES_KEPT)
def search_of(
    limits: BatchLimits,
    placement: Placement,
    times: ThroughputParams | ApplicationTimes,
) -> BatchSearch:
    """Return the batch search by step times of a job or of its application. Equal
    arguments give the same object.
    """
    if isinstance(times, ApplicationTimes):
        return BatchSearch.of(
            limits, times.params, placement, optimistic_step_times(times)
        )
    return BatchSearch.of(limits, times, placement, step_time)


@lru_cache(maxsize=NUM_BATCHES_KEPT)
def best_of(search: BatchSearch, grad: GradStats) -> BatchConfig:
    """Return the best batch of a search by noise scale."""
    return search.best(grad).config
