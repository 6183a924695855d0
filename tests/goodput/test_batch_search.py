"""One search for many noises finds what a new one for each of them does."""

from hypothesis import given
from hypothesis import strategies as st

from coadapt.goodput.goodput import BatchSearch, best_batch
from coadapt.goodput.throughput import step_time
from coadapt.model import BatchLimits, GradStats, Placement, ThroughputParams
from tests.goodput.strategies import (
    batch_limits,
    grad_stats,
    placements,
    throughput_params,
)


@given(
    batch_limits(),
    throughput_params,
    placements(),
    st.lists(grad_stats, min_size=1, max_size=4),
)
def test_a_search_finds_the_best_batch_for_each_noise(
    limits: BatchLimits,
    params: ThroughputParams,
    placement: Placement,
    noises: list[GradStats],
) -> None:
    search = BatchSearch.of(limits, params, placement, step_time)
    for grad in noises:
        found = search.best(grad)
        assert found == best_batch(limits, params, grad, placement)
        assert search.best(grad).config is found.config
