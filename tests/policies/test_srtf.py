from dataclasses import replace

from coadapt.policies.srtf import Srtf
from tests.policies.stage import counts, job, nodes, on, view


def test_the_shortest_remaining_time_on_the_requested_gpus_goes_first() -> None:
    """On one GPU `short` would take longer; what counts is the time on the two that it
    requested.
    """
    long = job("a", 2, held=on(n0=2), steps=100.0, times=(9.0, 2.0))
    short = job("b", 2, steps=150.0, times=(10.0, 1.0), at=1.0)
    plan = Srtf().allocate(view(nodes(2), long, short))
    assert plan.allocations == {"b": on(n0=2)}
    assert plan.reasons == {
        "a": "1 job ahead of it by remaining time goes first",
        "b": "starts on 2 GPUs",
    }


def test_what_does_not_fit_is_passed_over() -> None:
    seen = view(
        nodes(2), job("a", 1, steps=1.0), job("b", 2, steps=2.0), job("c", 1, steps=3.0)
    )
    assert counts(Srtf().allocate(seen)) == {"a": 1, "c": 1}


def test_jobs_without_a_forecast_come_behind_by_attained_service() -> None:
    seen = view(
        nodes(2),
        job("old", service=50.0),
        job("young", service=10.0),
        job("known", steps=1e9),
    )
    assert counts(Srtf().allocate(seen)) == {"known": 1, "young": 1}


def test_of_jobs_without_a_forecast_those_that_run_stay_for_their_turn() -> None:
    """Two equal jobs on one GPU would change places in each round, and neither would
    ever train.
    """
    policy = Srtf(turn_s=300.0)
    runs = job("runs", held=on(n0=1), service=50.0)
    waits = job("waits", service=40.0)
    waits = replace(waits, usage=replace(waits.usage, started_at=1.0))
    kept = [
        counts(policy.allocate(view(nodes(1), runs, waits, at=at)))
        for at in (0.0, 60.0, 299.0, 300.0)
    ]
    assert kept == [{"waits": 1}, {"runs": 1}, {"runs": 1}, {"waits": 1}]


def test_a_forecast_takes_the_gpu_of_a_job_without_one_in_the_midst_of_its_turn() -> (
    None
):
    policy = Srtf()
    unknown = job("unknown", held=on(n0=1), service=50.0)
    policy.allocate(view(nodes(1), unknown))
    assert counts(
        policy.allocate(view(nodes(1), unknown, job("known", steps=1e9), at=60.0))
    ) == {"known": 1}


def test_ties_keep_the_views_order() -> None:
    seen = view(nodes(1), job("b", steps=5.0, at=1.0), job("a", steps=5.0, at=2.0))
    assert counts(Srtf().allocate(seen)) == {"b": 1}


def test_a_job_of_another_size_gets_what_it_requested() -> None:
    """A policy before this one may have rescaled it."""
    seen = view(nodes(4), job("a", (1, 4), requested=2, held=on(n0=4), steps=1.0))
    plan = Srtf().allocate(seen)
    assert (counts(plan), plan.reasons) == ({"a": 2}, {"a": "shrinks from 4 to 2 GPUs"})
