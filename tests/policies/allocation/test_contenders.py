"""Queues where most jobs stay: the plan is the same as if each of them had been put in
order and placed.
"""

import random
from collections.abc import Callable
from dataclasses import replace

import pytest

from coadapt.model import ClusterView, Grant, JobView, RescaleContract, Tenant
from coadapt.policies.allocation.contenders import contenders
from coadapt.policies.base import Policy
from coadapt.policies.fifo import Fifo
from coadapt.policies.srtf import Srtf
from tests.policies.stage import job, nodes, on, view

# Where any tenant has a quota, every job is looked at.
ELSEWHERE = Tenant(id="elsewhere", quota_gpus=0)
MAKERS: dict[str, Callable[[], Policy]] = {
    "fifo": Fifo,
    "fifo with backfill": lambda: Fifo(backfill=True),
    "srtf": lambda: Srtf(turn_s=0.0),
}


def _arrivals(rng: random.Random, number: int) -> list[JobView]:
    contracts = (
        RescaleContract.ADAPTIVE,
        RescaleContract.FIXED,
        RescaleContract.FROZEN,
        RescaleContract.SELF,
    )
    return [
        job(
            f"j{number:02}{each}",
            (1, 4),
            requested=rng.choice((1, 2, 4)),
            steps=float(rng.randint(1, 50)),
            at=60.0 * number,
            contract=rng.choice(contracts),
        )
        for each in range(rng.randint(0, 3))
    ]


@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.parametrize("seed", range(8))
def test_a_queue_plans_as_if_it_looked_at_every_job(name: str, seed: int) -> None:
    rng = random.Random(seed)
    jobs = list[JobView]()
    cluster = nodes(4, 3, 5)
    num_short = 0
    for number in range(1, 25):
        jobs = [each for each in jobs if rng.random() > 0.15] + _arrivals(rng, number)
        seen = view(cluster, *jobs, at=60.0 * number)
        closely = view(cluster, *jobs, at=60.0 * number, tenants=(ELSEWHERE,))
        num_short += len(contenders(seen)) < len(jobs)
        plan = MAKERS[name]().allocate(seen)
        assert plan == MAKERS[name]().allocate(closely)
        jobs = [
            replace(
                each,
                grant=Grant(
                    allocation=plan.allocations[each.id],
                    batch=plan.batches.get(each.id),
                ),
            )
            if each.id in plan.allocations
            else replace(each, grant=Grant())
            for each in jobs
        ]
    assert 0 < num_short < 24


def test_who_waits_contends_alone_where_there_is_room_for_all() -> None:
    holds = job("a", (1, 4), requested=2, held=on(n0=2))
    waits = job("b", (1, 4), requested=2)
    assert list(contenders(view(nodes(4), holds, waits))) == [waits]


@pytest.mark.parametrize(
    "seen",
    [
        pytest.param(
            view(nodes(3), job("a", 2, held=on(n0=2)), job("b", 2)),
            id="too few GPUs are free",
        ),
        pytest.param(
            view(nodes(4), job("a", (1, 4), requested=2, held=on(n0=1)), job("b")),
            id="one holds too few",
        ),
        pytest.param(
            view(
                (*nodes(4), *nodes(4, kind="fast", name="f")),
                job("a", held=on(n0=1)),
                job("b"),
            ),
            id="several types",
        ),
        pytest.param(view(nodes(4), job("a"), tenants=(ELSEWHERE,)), id="a quota"),
    ],
)
def test_elsewhere_all_contend(seen: ClusterView) -> None:
    assert contenders(seen) is seen.jobs
