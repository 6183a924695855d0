from dataclasses import replace

import numpy as np
import pytest

from coadapt.model import ClusterView, check_plan
from coadapt.policies.checks.sample_views import generate_views, later_view
from coadapt.policies.elasticflow import ElasticFlow
from tests.policies.stage import counts, job, nodes, view

LINEAR = tuple(1.0 / n for n in range(1, 9))


def test_a_deadline_is_promised_with_the_smallest_share_that_keeps_it() -> None:
    """1,000 s on one GPU in 530 s, of which a start takes 30: two GPUs do; `free` gets
    the others.
    """
    due = job("due", (1, 8), steps=1000.0, times=LINEAR, deadline=590.0)
    free = job(
        "free", (1, 8), steps=9e9, times=tuple(2.0 / n for n in range(1, 9)), at=-1.0
    )
    plan = ElasticFlow(slot_s=100.0, margin=0.0).allocate(view(nodes(4), due, free))
    assert counts(plan) == {"due": 2, "free": 2}
    assert plan.reasons["due"] == (
        "starts on 2 GPUs; its deadline is promised: 2 GPUs from now on are enough for "
        "the 500 s left"
    )
    assert (
        plan.reasons["free"]
        == "starts on 2 GPUs; without a deadline it gets what is left"
    )


def test_a_deadline_that_cannot_be_kept_is_refused_and_served_last() -> None:
    late = job("late", 1, steps=1000.0, deadline=500.0)
    due = job("due", 1, steps=100.0, deadline=900.0, at=1.0)
    plan = ElasticFlow().allocate(view(nodes(1), late, due))
    assert counts(plan) == {"due": 1}
    assert plan.reasons["late"] == (
        "its deadline cannot be kept beside those "
        "promised before, "
        "so it gets what is left"
    )


def test_a_promise_stands_against_an_earlier_deadline_that_comes_later() -> None:
    """Both cannot be kept; the one that asked first is."""
    first = job("first", 1, steps=600.0, deadline=700.0)
    second = job("second", 1, steps=300.0, deadline=400.0, at=60.0)
    policy = ElasticFlow(slot_s=60.0, margin=0.0)
    policy.allocate(view(nodes(1), first))
    assert counts(policy.allocate(view(nodes(1), first, second))) == {"first": 1}
    assert counts(
        ElasticFlow(slot_s=60.0, margin=0.0).allocate(view(nodes(1), first, second))
    ) == {"second": 1}


def test_a_later_deadline_waits_for_the_slots_that_earlier_ones_leave() -> None:
    """`tight` needs the GPU for its 300 s; `loose` is promised the time after, and
    waits.
    """
    tight = job("tight", 1, steps=300.0, deadline=400.0)
    loose = job("loose", 1, steps=300.0, deadline=1000.0)
    plan = ElasticFlow(slot_s=60.0, margin=0.0).allocate(view(nodes(1), tight, loose))
    assert counts(plan) == {"tight": 1}
    assert "its deadline is promised" in plan.reasons["loose"]


@pytest.mark.parametrize(
    ("deadline", "steps", "text"),
    [
        (10.0, 5.0, "its deadline has come, so it gets what is left"),
        (
            9e9,
            None,
            (
                "without a forecast its deadline cannot be promised, so it gets what is "
                "left"
            ),
        ),
    ],
)
def test_it_says_why_nothing_is_promised(
    deadline: float, steps: float | None, text: str
) -> None:
    plan = ElasticFlow().allocate(
        view(nodes(1), job("a", steps=steps, deadline=deadline))
    )
    assert plan.reasons["a"] == f"starts on 1 GPU; {text}"


def test_spare_gpus_go_where_they_are_used_best() -> None:
    flat = job("flat", (1, 4), steps=1.0, times=(1.0, 0.9, 0.8, 0.8))
    steep = job("steep", (1, 4), steps=1.0, times=LINEAR)
    assert counts(ElasticFlow().allocate(view(nodes(5), flat, steep))) == {
        "flat": 1,
        "steep": 4,
    }


def test_a_promise_needs_a_margin() -> None:
    """900 s of work fit into 1,000 s, and a fifth more do not."""
    seen = view(nodes(1), job("a", steps=900.0, deadline=1090.0))
    assert "is promised" in ElasticFlow(margin=0.1).allocate(seen).reasons["a"]
    assert "cannot be kept" in ElasticFlow(margin=0.2).allocate(seen).reasons["a"]
    with pytest.raises(ValueError, match="margin must be finite and >= 0, got -1"):
        ElasticFlow(margin=-1.0)


def test_a_promise_that_cannot_be_kept_any_more_still_goes_before_others() -> None:
    policy = ElasticFlow(margin=0.0)
    policy.allocate(view(nodes(1), job("due", steps=100.0, deadline=500.0)))
    due = job("due", steps=9000.0, deadline=500.0)
    for at in (120.0, 600.0):  # before the deadline and after it
        plan = policy.allocate(
            view(nodes(1), job("early", at=-1.0, steps=1.0), due, at=at)
        )
        assert counts(plan) == {"due": 1}
        assert plan.reasons["due"] == (
            "starts on 1 GPU; its promised deadline cannot be kept any more: it ends "
            "as soon as possible"
        )


@pytest.mark.parametrize("slot_s", [0.0, -1.0, float("inf")])
def test_a_slot_is_a_duration(slot_s: float) -> None:
    with pytest.raises(ValueError, match="slot_s must be finite and > 0, got"):
        ElasticFlow(slot_s=slot_s)


@pytest.mark.parametrize("seed", range(3))
def test_plans_are_lawful_whatever_the_deadlines(seed: int) -> None:
    rng = np.random.default_rng(seed)

    def due(seen: ClusterView) -> ClusterView:
        left = rng.choice([-1.0, 40.0, 9e3, 1e9], len(seen.jobs))
        jobs = [
            replace(each, spec=replace(each.spec, deadline_at=seen.at + float(left_s)))
            for each, left_s in zip(seen.jobs, left, strict=True)
        ]
        return replace(seen, jobs=tuple(jobs))

    for start in generate_views(seed, 10):
        policy = ElasticFlow()
        seen = due(start)
        for _ in range(4):
            plan = policy.allocate(seen)
            check_plan(seen, plan)
            seen = later_view(seen, plan, rng)
