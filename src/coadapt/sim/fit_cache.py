"""What comes out the same for all jobs that are alike, worked out once: their fits, and
their batches.

Jobs of an application that trained on the same shapes timed the same steps, and look
for a batch alike.
"""

from functools import lru_cache

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

NUM_FITS_KEPT = 4096  # a step that was timed takes 0.3 kB of a key
NUM_SEARCHES_KEPT = 4096  # some 2 kB each
NUM_BATCHES_KEPT = (
    32768  # 0.2 kB each; there is one per epoch, which jobs reach one after the other
)


@lru_cache(maxsize=NUM_FITS_KEPT)
def fitted(
    steps: tuple[tuple[ProfileKey, tuple[int, float, float]], ...],
) -> ThroughputParams:
    """Return the step-time model of jobs that timed these rows of a ProfileBuilder, in
    this order.
    """
    from coadapt.goodput.fit import (
        fit_throughput,
    )  # numba: only where a job fits at all

    return fit_throughput(ProfileBuilder(rows=dict(steps)).build())


@lru_cache(maxsize=NUM_SEARCHES_KEPT)
def search_of(
    limits: BatchLimits,
    placement: Placement,
    times: ThroughputParams | ApplicationTimes,
) -> BatchSearch:
    """Return the search by step times that a job fitted or its application shares. Jobs
    alike get the same object.
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
