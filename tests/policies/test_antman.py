import time
from dataclasses import replace

import pytest

from coadapt.model import Allocation, ClusterView, Grant, Plan, RescaleContract, Tenant
from coadapt.policies.antman import AntMan
from coadapt.policies.checks.contract import check_policy
from tests.policies.stage import counts, job, nodes, on, view


def half(label: int = 0, count: int = 1, node: str = "n0") -> Allocation:
    return Allocation(
        slots=((node, count),), gpu_share=0.5, shared=tuple(range(label, label + count))
    )


def after(seen: ClusterView, plan: Plan, slowdown: float) -> ClusterView:
    """Return the view a round later: steps of a second, longer by `slowdown` for jobs
    in company.
    """
    crowds = [gpu for held in plan.allocations.values() for gpu in held.shared_gpus()]
    jobs = []
    for one in seen.jobs:
        held = plan.allocations.get(one.id, on())
        company = any(crowds.count(gpu) > 1 for gpu in held.shared_gpus())
        measured = replace(one.measured, step_time_s=slowdown if company else 1.0)
        jobs.append(replace(one, grant=Grant(allocation=held), measured=measured))
    return replace(seen, at=seen.at + 60.0, jobs=tuple(jobs))


def play(
    policy: AntMan, seen: ClusterView, num_rounds: int, slowdown: float
) -> list[Plan]:
    plans = []
    for _ in range(num_rounds):
        plans.append(policy.allocate(seen))
        seen = after(seen, plans[-1], slowdown)
    return plans


def test_company_stays_where_it_slows_nobody_and_goes_for_good_where_it_does() -> None:
    seen = view(nodes(1), job("a"), job("b", at=1.0))
    plans = play(AntMan(), seen, 8, slowdown=1.01)
    assert plans[0].allocations == {"a": half()}
    assert plans[-1].allocations == {"a": half(), "b": half()}
    assert (
        plans[-1].reasons["a"]
        == "keeps its 1 GPU; it is guaranteed, and shares GPUs with b"
    )
    assert "it may have to go" in plans[-1].reasons["b"]
    plans = play(AntMan(), seen, 12, slowdown=1.5)
    beside = [len(plan.allocations) == 2 for plan in plans]
    assert any(beside)
    assert not any(beside[-6:])
    assert plans[-1].allocations["a"] == half()  # undisturbed by any move
    assert all(
        len(plan.allocations) == 2
        for plan in play(AntMan(tolerance=0.6), seen, 9, 1.5)[4:]
    )
    assert all(
        len(plan.allocations) == 1 for plan in play(AntMan(share=False), seen, 9, 1.0)
    )


def test_company_of_an_application_that_slowed_another_is_not_tried_again() -> None:
    jobs = [
        job("a", application="x"),
        *(job(f"b{i}", at=1.0 + i, application="y") for i in range(3)),
    ]
    plans = play(AntMan(), view(nodes(1), *jobs), 20, slowdown=2.0)
    tried = {name for plan in plans for name in plan.allocations} - {"a"}
    assert len(tried) == 1


def test_tenants_are_guaranteed_their_part_and_use_what_others_leave() -> None:
    tenants = (Tenant(id="x", weight=3.0), Tenant(id="y", weight=1.0))
    own = [job(f"x{i}", tenant="x", at=5.0 + i) for i in range(3)]
    more = [job(f"y{i}", tenant="y", at=float(i)) for i in range(4)]
    policy = AntMan(share=False)
    first = policy.allocate(view(nodes(4), *more, own[0], tenants=tenants))
    assert counts(first) == {"y0": 1, "y1": 1, "y2": 1, "x0": 1}
    assert [
        "guaranteed" in first.reasons[name]
        and "opportunistic" not in first.reasons[name]
        for name in ("x0", "y0", "y1")
    ] == [True, True, False]
    held = [
        replace(one, grant=Grant(allocation=first.allocations.get(one.id, on())))
        for one in more
    ]
    plan = policy.allocate(view(nodes(4), *held, *own, tenants=tenants))
    assert counts(plan) == {"y0": 1, "x0": 1, "x1": 1, "x2": 1}


def test_an_opportunistic_job_is_upgraded_where_it_is() -> None:
    seen = view(nodes(2), job("a", 2), job("wide", 2, at=1.0), job("b", at=2.0))
    policy = AntMan()
    policy.allocate(seen)  # b may not pass `wide`, which waits
    running = replace(job("b", at=2.0), grant=Grant(allocation=half(1)))
    plan = policy.allocate(view(nodes(2), running))
    assert plan.allocations == {"b": half(1)}
    assert plan.reasons["b"] == "keeps its 1 GPU; it is guaranteed"


def test_who_is_marked_is_opportunistic() -> None:
    seen = view(nodes(1), job("low", priority=-1), job("high", at=1.0))
    assert counts(AntMan(share=False).allocate(seen)) == {"high": 1}
    plan = AntMan(opportunistic=1.0).allocate(view(nodes(4), job("a"), job("b")))
    assert all("opportunistic" in reason for reason in plan.reasons.values())
    drawn = [
        AntMan(opportunistic=0.5, seed=seed).allocate(view(nodes(1), job("a")))
        for seed in range(40)
    ]
    marked = sum("opportunistic" in plan.reasons["a"] for plan in drawn)
    assert 10 <= marked <= 30


def test_a_job_that_needs_the_memory_of_a_whole_gpu_has_no_company() -> None:
    batch = replace(job("a").spec.batch, max_atomic=100)
    seen = view(nodes(1), job("a", batch=batch), job("b", at=1.0))
    plans = play(AntMan(), seen, 6, slowdown=1.0)
    assert all(plan.allocations == {"a": on(n0=1)} for plan in plans)


def test_guaranteed_jobs_take_idle_gpus_before_those_of_others() -> None:
    low = job("low", held=half(0, node="n1"), priority=-1)
    plan = AntMan().allocate(view(nodes(1, 1), low, job("a", at=1.0)))
    assert plan.allocations == {"a": half(), "low": half(0, node="n1")}


def test_a_frozen_job_keeps_what_it_holds() -> None:
    frozen = job("a", held=on(n0=1), contract=RescaleContract.FROZEN, priority=-1)
    plan = AntMan().allocate(view(nodes(1), frozen, job("b", at=1.0)))
    assert plan.allocations == {"a": on(n0=1)}


@pytest.mark.parametrize("bad", [{"tolerance": -1.0}, {"opportunistic": 2.0}])
def test_bad_options_are_refused(bad: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(bad))):
        AntMan(**bad)  # type: ignore[arg-type]  # one option each


def test_it_keeps_the_contract() -> None:
    check_policy(AntMan, cases=12, seed=3, timer=time.process_time)
    check_policy(lambda: AntMan(opportunistic=0.5, share=False), cases=6, seed=4)
