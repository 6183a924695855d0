from dataclasses import replace

import pytest

from coadapt.model import Tenant
from coadapt.policies.allocation.queue import by_priority
from coadapt.policies.las import Las
from coadapt.policies.srsf import Srsf
from tests.policies.stage import counts, job, nodes, on, view


def test_srsf_weighs_remaining_time_by_the_gpus_that_it_takes() -> None:
    """`wide` ends sooner, in 100 s, and yet takes 200 GPU-seconds to `narrow`'s 150."""
    wide = job("wide", 2, steps=100.0, times=(9.0, 1.0))
    narrow = job("narrow", 1, steps=150.0, at=1.0)
    plan = Srsf().allocate(view(nodes(2), wide, narrow))
    assert counts(plan) == {"narrow": 1}
    assert plan.reasons["wide"] == (
        "1 job ahead of it by remaining GPU time goes first"
    )


def test_srsf_puts_jobs_without_a_forecast_behind_by_attained_service() -> None:
    seen = view(
        nodes(2),
        job("old", service=50.0),
        job("young", service=10.0),
        job("known", steps=1e9),
    )
    assert counts(Srsf().allocate(seen)) == {"known": 1, "young": 1}


def test_las_takes_gpu_seconds_not_seconds() -> None:
    seen = view(
        nodes(1), job("a", service=11.0, held=on(n0=1)), job("b", service=10.0, at=1.0)
    )
    plan = Las(turn_s=0.0).allocate(seen)
    assert counts(plan) == {"b": 1}
    assert plan.reasons["a"] == ("1 job that used fewer GPU-seconds goes first")


@pytest.mark.parametrize(("at", "winner"), [(659.0, "a"), (720.0, "b")])
def test_las_swaps_jobs_once_a_turn(at: float, winner: str) -> None:
    policy = Las(turn_s=360.0)
    policy.allocate(view(nodes(1), job("a"), at=400.0))
    a = job("a", service=9.0, held=on(n0=1))
    b = job("b", service=5.0, at=1.0)
    b = replace(b, usage=replace(b.usage, started_at=1.0))
    assert counts(policy.allocate(view(nodes(1), a, b, at=at))) == {winner: 1}


def test_las_lets_a_new_job_in_at_once() -> None:
    policy = Las(turn_s=360.0)
    policy.allocate(view(nodes(1), job("a"), at=400.0))
    seen = view(
        nodes(1), job("a", service=9.0, held=on(n0=1)), job("new", at=450.0), at=460.0
    )
    assert counts(policy.allocate(seen)) == {"new": 1}


@pytest.mark.parametrize("turn_s", [-1.0, float("nan"), float("inf")])
def test_a_turn_is_a_duration(turn_s: float) -> None:
    with pytest.raises(ValueError, match="turn_s must be finite and >= 0, got"):
        Las(turn_s=turn_s)


def test_priorities_order_tenants_and_the_jobs_of_each() -> None:
    """b of the urgent tenant comes first; d and a swap; c, of another tenant, keeps its
    place.
    """
    queue = [
        job("a"),
        job("b", tenant="urgent"),
        job("c", tenant="other"),
        job("d", priority=1),
        job("e", tenant="urgent", priority=-1),
    ]
    seen = view(nodes(1), *queue, tenants=(Tenant(id="urgent", priority=2),))
    assert [each.id for each in by_priority(seen, queue)] == ["b", "e", "d", "c", "a"]
