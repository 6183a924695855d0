import random

import pytest

from coadapt.model import BatchLimits, Tenant
from coadapt.policies.allocation.progressive_filling import fair_shares, water_fill
from coadapt.policies.drf import Drf
from coadapt.policies.max_min import MaxMin
from tests.policies.stage import counts, job, nodes, on, view

HEAVY = (Tenant(id="heavy", weight=3.0),)


def test_max_min_gives_to_whoever_has_least_up_to_what_it_can_use() -> None:
    """8 GPUs: `small` is content with 1, the others share 7, the earlier gets the odd
    one.
    """
    small = job("small", 1)
    a = job("a", (1, 8), at=1.0)
    b = job("b", (1, 8), at=2.0)
    plan = MaxMin().allocate(view(nodes(4, 4), small, a, b))
    assert counts(plan) == {"small": 1, "a": 4, "b": 3}
    assert plan.reasons["b"] == "starts on 3 GPUs; its fair share is 3.5"


def test_max_min_shares_by_tenant_and_weight_first() -> None:
    jobs = [job("h", (1, 8), tenant="heavy"), *(job(f"d{i}", (1, 8)) for i in range(2))]
    plan = MaxMin().allocate(view(nodes(8), *jobs, tenants=HEAVY))
    assert counts(plan) == {"h": 6, "d0": 1, "d1": 1}


def test_max_min_stops_where_the_batch_has_no_more_samples() -> None:
    batch = BatchLimits(initial=64, max_total=4096, min_atomic=30)
    assert counts(MaxMin().allocate(view(nodes(4), job("a", (1, 4), batch=batch)))) == {
        "a": 2
    }


def test_rigid_gangs_take_turns_by_what_they_got_of_their_share() -> None:
    """Of 4 GPUs, the share of each is 2; `wide` held 2.5 on average, `other` 1.5: it is
    the other's turn.
    """
    wide = job("wide", 4, held=on(n0=4), service=250.0)
    other = job("other", 4, service=150.0)
    plan = MaxMin(turn_s=0.0).allocate(view(nodes(4), wide, other, at=100.0))
    assert counts(plan) == {"other": 4}
    assert plan.reasons["wide"].endswith(
        "1 job that got less of their fair share goes first"
    )


def test_over_time_gangs_get_their_shares() -> None:
    """Gangs of 4, 4 and 2 on 4 GPUs run one at a time: a quarter, a quarter and half of
    the time are fair.
    """
    sizes = {"a": 4, "b": 4, "c": 2}
    served = dict.fromkeys(sizes, 0.0)
    held: dict[str, int] = {}
    policy = MaxMin(turn_s=60.0)
    for number in range(1, 301):
        jobs = [
            job(
                name,
                size,
                service=served[name],
                held=on(n0=size) if name in held else on(),
            )
            for name, size in sizes.items()
        ]
        held = counts(policy.allocate(view(nodes(4), *jobs, at=60.0 * number)))
        for name, count in held.items():
            served[name] += 60.0 * count
    assert [served[name] / 18_000.0 for name in "abc"] == pytest.approx(
        [1.0] * 3, rel=0.02
    )


@pytest.mark.parametrize("seed", range(20))
def test_water_filling_is_max_min_fair(seed: int) -> None:
    """All is given or wanted, and whoever gets less than it wants stands at the highest
    level.
    """
    rng = random.Random(seed)
    demand = {
        f"j{i}": rng.choice((0.0, 1.0, 3.0, 40.0)) for i in range(rng.randint(1, 9))
    }
    weights = {
        name: rng.choice((0.5, 1.0, 4.0)) for name in demand if rng.random() < 0.7
    }
    total = rng.choice((0.0, 5.0, 64.0))
    shares = water_fill(total, demand, weights)
    assert sum(shares.values()) == pytest.approx(min(total, sum(demand.values())))
    level = {name: shares[name] / weights.get(name, 1.0) for name in demand}
    short = [level[name] for name in demand if shares[name] < demand[name] - 1e-9]
    assert all(each == pytest.approx(max(level.values())) for each in short)


def test_fair_shares_know_quotas_and_gpu_types() -> None:
    cluster = nodes(4) + nodes(4, kind="big", name="b")
    poor = job("poor", (1, 8), tenant="poor")
    picky = job("picky", (1, 8), gpu_types=("big",))
    shares = fair_shares(view(cluster, poor, picky, quotas={"poor": 1}))
    assert shares == {"poor": 1.0, "picky": 4.0}


def test_drf_compares_dominant_shares_of_gpu_types() -> None:
    """`u` has 1 of 2 big GPUs, a dominant share of 1/2; so `v` gets the 8 small ones up
    to half, and on.
    """
    cluster = nodes(8) + nodes(2, kind="big", name="b")
    u = job("u", (1, 2), tenant="u", gpu_types=("big",))
    v = job("v", (1, 8), tenant="v", gpu_types=("gpu",))
    w = job("w", (1, 8), tenant="w", gpu_types=("gpu",))
    plan = Drf().allocate(view(cluster, u, v, w))
    assert counts(plan) == {"u": 2, "v": 4, "w": 4}
    assert (
        plan.reasons["v"] == "starts on 4 GPUs; the dominant share of tenant v is 50%"
    )


def test_drf_passes_over_what_does_not_fit_unless_told_to_stop() -> None:
    wide = job("wide", 4, tenant="a")
    narrow = job("narrow", (1, 3), tenant="b", at=1.0)
    seen = view(nodes(3), wide, narrow)
    assert counts(Drf().allocate(seen)) == {"narrow": 3}
    assert counts(Drf(skip=False).allocate(seen)) == {}


def test_drf_weighs_tenants() -> None:
    seen = view(
        nodes(8), job("h", (1, 8), tenant="heavy"), job("d", (1, 8)), tenants=HEAVY
    )
    assert counts(Drf().allocate(seen)) == {"h": 6, "d": 2}
