"""Step times on one replica after another."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coadapt.goodput.batch import split_total
from coadapt.goodput.forecast import packed_step_times
from coadapt.goodput.throughput import packed_placement, step_time
from coadapt.model import BatchLimits, ThroughputParams
from tests.goodput.strategies import batch_limits, throughput_params


@given(throughput_params, batch_limits(), st.integers(1, 20), st.integers(1, 8))
def test_each_time_is_that_of_the_requested_batch_on_a_packed_placement(
    params: ThroughputParams,
    limits: BatchLimits,
    num_replicas_max: int,
    gpus_per_node: int,
) -> None:
    times = packed_step_times(params, limits, num_replicas_max, gpus_per_node)
    assert len(times) == num_replicas_max
    for num_replicas, seconds in enumerate(times, start=1):
        batch = split_total(limits.requested, num_replicas, limits, exact=True)
        placement = packed_placement(num_replicas, gpus_per_node)
        expected = float(step_time(params, placement, batch.atomic, batch.accumulation))
        assert seconds == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(("num_replicas_max", "gpus_per_node"), [(0, 4), (4, 0)])
def test_no_replicas_are_an_error(num_replicas_max: int, gpus_per_node: int) -> None:
    params = ThroughputParams(alpha_c=1.0, beta_c=0.1)
    with pytest.raises(ValueError, match="must be >= 1"):
        packed_step_times(
            params, BatchLimits(initial=1), num_replicas_max, gpus_per_node
        )
