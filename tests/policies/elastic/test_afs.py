from coadapt.policies.afs import Afs
from tests.policies.stage import counts, job, nodes, on, view

LINEAR = tuple(1.0 / n for n in range(1, 9))
FLAT = (1.0, 0.9, 0.85, 0.83)


def test_the_shortest_job_starts_first() -> None:
    seen = view(nodes(1), job("long", steps=50.0), job("short", steps=10.0, at=1.0))
    plan = Afs().allocate(seen)
    assert counts(plan) == {"short": 1}
    assert plan.reasons["long"] == ("shorter jobs and better scaling ones go first")


def test_a_short_job_that_scales_gets_its_second_gpu_before_a_long_one_starts() -> None:
    """From 1 to 2 it gains as much as it has; the long one's first GPU is worth 1 to
    it: no more.
    """
    short = job("short", (1, 8), steps=10.0, times=LINEAR)
    long = job("long", (1, 8), steps=90.0, times=LINEAR)
    assert counts(Afs().allocate(view(nodes(2), short, long))) == {"short": 2}
    assert counts(Afs().allocate(view(nodes(3), short, long))) == {
        "short": 2,
        "long": 1,
    }


def test_the_long_job_wins_where_the_short_one_hardly_gains() -> None:
    short = job("short", (1, 4), steps=10.0, times=FLAT)
    long = job("long", (1, 8), steps=90.0, times=LINEAR)
    assert counts(Afs().allocate(view(nodes(4), short, long))) == {
        "short": 1,
        "long": 3,
    }


def test_nobody_holds_what_does_not_help() -> None:
    seen = view(nodes(4), job("a", (1, 4), steps=9.0, times=(1.0, 0.5, 0.5, 0.6)))
    assert counts(Afs().allocate(seen)) == {"a": 2}


def test_jobs_without_a_forecast_hold_their_minimum() -> None:
    plan = Afs().allocate(
        view(nodes(8), job("a", (2, 8), held=on(n0=4)), job("b", (1, 4), steps=1.0))
    )
    assert counts(plan) == {"a": 2, "b": 1}
    assert (
        plan.reasons["a"]
        == "shrinks from 4 to 2 GPUs; without a forecast it gets its minimum"
    )


def test_the_next_best_gets_what_the_best_may_not_have() -> None:
    poor = job("poor", (1, 8), steps=1.0, times=LINEAR, tenant="poor")
    seen = view(
        nodes(4), poor, job("b", (1, 8), steps=50.0, times=LINEAR), quotas={"poor": 1}
    )
    assert counts(Afs().allocate(seen)) == {"poor": 1, "b": 3}
