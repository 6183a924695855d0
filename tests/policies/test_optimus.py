import pytest

from coadapt.model import BatchConfig, BatchLimits, Plan, RescaleContract
from coadapt.policies.optimus import Optimus, worth_of
from tests.policies.stage import counts, job, nodes, on, view

HALVING = (8.0, 4.0, 2.0, 1.0)


def test_each_gpu_goes_to_the_largest_decrease_of_remaining_time() -> None:
    """First gains: a saves 4 s x 10, b saves 4 s x 11; then b saves 22 s more, a still
    40 s.
    """
    a, b = (
        job(name, (1, 4), steps=steps, times=HALVING)
        for name, steps in (("a", 10.0), ("b", 11.0))
    )
    plan = Optimus().allocate(view(nodes(4), a, b))
    assert plan == Plan(
        allocations={"a": on(n0=2), "b": on(n0=2)},
        batches={
            "a": BatchConfig(total=64, atomic=32),
            "b": BatchConfig(total=64, atomic=32),
        },
        reasons={
            "a": "starts on 2 GPUs; one more would end it 20 s sooner",
            "b": "starts on 2 GPUs; one more would end it 22 s sooner",
        },
    )


def test_ties_go_to_the_first_in_order_of_submission() -> None:
    jobs = [
        job(name, (1, 4), steps=10.0, times=HALVING, at=at)
        for name, at in (("b", 1.0), ("a", 2.0))
    ]
    assert counts(Optimus().allocate(view(nodes(3), *jobs))) == {"b": 2, "a": 1}


def test_everybody_gets_the_minimum_before_anybody_grows() -> None:
    first = job("a", (1, 8), steps=1e9, times=HALVING)
    late = [job(name, steps=1.0, at=1.0) for name in "bcd"]
    plan = Optimus().allocate(view(nodes(3), first, *late))
    assert counts(plan) == {"a": 1, "b": 1, "c": 1}
    assert plan.reasons["d"] == "3 jobs that came earlier go first"


def test_a_job_gets_its_minimum_or_nothing() -> None:
    seen = view(nodes(4), job("a", 3), job("b", (2, 4)), job("c", 1))
    plan = Optimus().allocate(seen)
    assert counts(plan) == {"a": 3, "c": 1}
    assert plan.reasons["b"] == "1 job that came earlier goes first"


def test_no_more_replicas_than_the_requested_batch_can_feed() -> None:
    """64 samples in atomic batches of at least 30 feed two."""
    batch = BatchLimits(initial=64, requested=64, max_total=4096, min_atomic=30)
    plan = Optimus().allocate(
        view(nodes(4), job("a", (1, 4), batch=batch, steps=9.0, times=HALVING))
    )
    assert counts(plan) == {"a": 2}
    assert plan.reasons["a"] == "starts on 2 GPUs; it can use no more"


def test_gpus_stay_free_where_nobody_gains() -> None:
    seen = view(nodes(4), job("a", (1, 4), steps=9.0, times=(2.0, 1.0, 1.5, 0.1)))
    plan = Optimus().allocate(seen)
    assert counts(plan) == {"a": 2}
    assert plan.reasons["a"] == "starts on 2 GPUs; one more would not end it sooner"


@pytest.mark.parametrize("steps", [0.0, -3.0])
def test_a_job_that_should_have_ended_counts_one_step(steps: float) -> None:
    assert worth_of(job("a", (1, 4), steps=steps, times=HALVING), 4).of_next(1) == 4.0


def test_without_a_forecast_a_job_holds_its_minimum() -> None:
    plan = Optimus().allocate(view(nodes(8), job("a", (2, 8), held=on(n0=4))))
    assert counts(plan) == {"a": 2}
    assert (
        plan.reasons["a"]
        == "shrinks from 4 to 2 GPUs; without a forecast it gets its minimum"
    )


def test_a_forecast_is_not_stretched() -> None:
    assert worth_of(job("a", (1, 8), steps=9.0, times=HALVING), 8).of_next(4) == 0.0


def test_smaller_jobs_are_placed_first() -> None:
    a = job("a", 5, steps=1.0)
    b = job("b", 3, steps=1.0)
    assert Optimus().allocate(view(nodes(4, 4), a, b)).allocations == {
        "a": on(n1=4, n0=1),
        "b": on(n0=3),
    }


def test_the_next_best_grows_where_the_best_may_not() -> None:
    a = job("a", (1, 4), steps=99.0, times=HALVING, tenant="poor")
    b = job("b", (1, 4), steps=9.0, times=HALVING)
    assert counts(Optimus().allocate(view(nodes(3), a, b, quotas={"poor": 1}))) == {
        "a": 1,
        "b": 2,
    }


def test_a_frozen_job_never_grows() -> None:
    frozen = job(
        "a",
        (1, 4),
        steps=9.0,
        times=HALVING,
        held=on(n0=1),
        contract=RescaleContract.FROZEN,
    )
    plan = Optimus().allocate(view(nodes(4), frozen))
    assert plan.reasons == {"a": "keeps its 1 GPU; it can use no more"}
