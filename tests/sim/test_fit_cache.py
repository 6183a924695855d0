"""What jobs alike share is what each of them would find."""

from hypothesis import given
from hypothesis import strategies as st

from coadapt.goodput.fit import fit_throughput
from coadapt.goodput.goodput import BatchSearch
from coadapt.goodput.profile import ProfileBuilder
from coadapt.goodput.step_time_kriging import optimistic_step_times
from coadapt.goodput.throughput import step_time
from coadapt.model import (
    ApplicationTimes,
    BatchLimits,
    GradStats,
    Placement,
    ThroughputParams,
    TimedStep,
)
from coadapt.sim.fit_cache import best_of, fitted, search_of
from tests.goodput.strategies import (
    batch_limits,
    grad_stats,
    placements,
    throughput_params,
)


@given(batch_limits(), throughput_params, placements(), grad_stats, st.booleans())
def test_a_batch_is_that_of_a_search_of_one_s_own(
    limits: BatchLimits,
    params: ThroughputParams,
    placement: Placement,
    grad: GradStats,
    reported: bool,
) -> None:
    twice_s = 2.0 * float(step_time(params, placement, 8))
    steps = (TimedStep(atomic=8, accumulation=0, seconds=twice_s),)
    shared = ApplicationTimes(
        gpu_type="gpu", placement=placement, params=params, steps=steps
    )
    model = optimistic_step_times(shared) if reported else step_time
    alone = BatchSearch.of(limits, params, placement, model).best(grad).config
    for _ in range(2):
        assert (
            best_of(search_of(limits, placement, shared if reported else params), grad)
            == alone
        )


def test_jobs_that_timed_the_same_share_a_fit() -> None:
    one = ProfileBuilder()
    other = ProfileBuilder()
    for builder in (one, other):
        for gpus in (1, 2, 4):
            builder.add(Placement((gpus,)), 32, 0.05, 0.05 + 0.01 * gpus)
    alone = fit_throughput(one.build())
    assert fitted(tuple(one.rows.items())) == alone
    assert fitted(tuple(other.rows.items())) is fitted(tuple(one.rows.items()))
    other.add(Placement((8,)), 32, 0.05, 0.4)
    assert fitted(tuple(other.rows.items())) == fit_throughput(other.build()) != alone
