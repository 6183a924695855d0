"""One search for many noises finds what a search for each of them does."""

from hypothesis import given
from hypothesis import strategies as st

from coadapt.goodput.batch_search import BatchSearch
from coadapt.goodput.goodput import best_batch
from coadapt.model import BatchLimits, GradStats, Placement, ThroughputParams
from tests.goodput.strategies import batch_limits, grad_stats, placements, throughput_params


@given(batch_limits(), throughput_params, placements(), st.lists(grad_stats, min_size=1, max_size=4))
def test_a_search_finds_the_best_batch_for_each_noise(
    limits: BatchLimits, params: ThroughputParams, placement: Placement, noises: list[GradStats]
) -> None:
    search = BatchSearch.of(limits, params, placement)
    for grad in noises:
        found = search.best(grad)
        assert found == best_batch(limits, params, grad, placement).config
        assert search.best(grad) is found
