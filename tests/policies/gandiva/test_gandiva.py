from dataclasses import replace

import pytest

from coadapt.model import (
    Allocation,
    ClusterView,
    Grant,
    JobView,
    Node,
    Plan,
    RescaleContract,
)
from coadapt.policies.allocation.gpu_sharing import fits_share
from coadapt.policies.checks.contract import check_policy
from coadapt.policies.gandiva.policy import Gandiva
from coadapt.policies.gandiva.servers import Servers
from tests.policies.stage import counts, job, nodes, on, view

SLOW = {1.0: 1.0, 0.5: 2.5}  # s per step by share: a pair gets 0.8 of what turns get
SMALL = {1.0: 1.0, 0.5: 1.25}  # 1.6 of it


def after(
    seen: ClusterView, plan: Plan, round_s: float, step_s: dict[float, float]
) -> ClusterView:
    """Return the view one round later, the plan carried out, its jobs' steps as long as
    their share says.
    """
    jobs = []
    for one in seen.jobs:
        held = plan.allocations.get(one.id, on())
        measured = one.measured
        if held:
            step = step_s[held.gpu_share]
            measured = replace(
                measured, step_time_s=step, samples=measured.samples + round_s / step
            )
        started = (
            one.usage.started_at
            if one.usage.started_at is not None or not held
            else seen.at
        )
        jobs.append(
            replace(
                one,
                grant=Grant(allocation=held),
                measured=measured,
                usage=replace(one.usage, started_at=started),
                rescale_s=1.0,
            )
        )
    return replace(seen, at=seen.at + round_s, jobs=tuple(jobs))


def play(
    policy: Gandiva,
    start: ClusterView,
    num_rounds: int,
    step_s: dict[float, float] = SLOW,
) -> tuple[list[Plan], ClusterView]:
    plans = []
    seen = start
    for _ in range(num_rounds):
        plans.append(policy.allocate(seen))
        seen = after(seen, plans[-1], 60.0, step_s)
    return plans, seen


def quick(name: str, gpus: int = 1, **more: object) -> JobView:
    return replace(job(name, gpus, **more), rescale_s=1.0)  # type: ignore[arg-type]  # as job


def test_jobs_of_one_server_take_turns() -> None:
    seen = view(nodes(2), quick("a", 2), quick("b", 2), quick("c", 2))
    plans, _ = play(Gandiva(pack=False), seen, 30)
    ran = {name: sum(name in plan.allocations for plan in plans) for name in "abc"}
    assert ran == {"a": 10, "b": 10, "c": 10}
    waits = plans[0].reasons["b"]
    assert waits == "it is not its turn: 3 jobs live on its server"


def test_turns_are_longer_where_starts_are_costly() -> None:
    seen = view(nodes(1), job("a"), job("b"))  # 30 s each: turns of 300 s
    policy = Gandiva(pack=False)
    order = []
    for _ in range(15):
        plan = policy.allocate(seen)
        order += list(plan.allocations)
        jobs = after(seen, plan, 60.0, SLOW).jobs
        seen = replace(
            seen,
            at=seen.at + 60.0,
            jobs=tuple(replace(one, rescale_s=30.0) for one in jobs),
        )
    assert order == ["a"] * 5 + ["b"] * 5 + ["a"] * 5


def test_a_job_is_never_suspended_for_one_of_lower_priority() -> None:
    seen = view(nodes(1), quick("low"), quick("high", at=1.0, priority=1))
    plans, _ = play(Gandiva(pack=False), seen, 10)
    assert all(list(plan.allocations) == ["high"] for plan in plans)


def test_algorithm_1_puts_jobs_with_their_like() -> None:
    servers = Servers(nodes(4, 4, 4), {}, {})
    first = servers.find(job("a", 2), 2)
    assert first == on(n0=2)
    servers.settle(first)
    assert servers.find(job("b", 1), 1) == on(n1=1)  # not beside a job of two GPUs
    assert servers.find(job("c", 2), 2) == on(n0=2)
    servers.settle(on(n1=1))
    servers.settle(on(n2=4))
    assert servers.find(job("d", 4), 4) == on(n1=3, n0=1)  # any free ones, before turns
    servers.settle(on(n1=3, n0=1))
    assert servers.find(job("e", 4), 4) is None
    assert servers.find(job("e", 4), 4, 2.0) == on(n2=4)
    assert servers.find(job("f", 3), 3, 2.0) == on(n0=3)
    assert servers.find(job("f", 3), 3, 2.0, same_affinity=True) is None


def test_a_queued_job_is_told_so() -> None:
    plan = Gandiva(load_max=1.0).allocate(view(nodes(1), quick("a"), quick("b")))
    assert counts(plan) == {"a": 1}
    full = "every server has as many jobs as may take turns there"
    assert plan.reasons["b"] == full


def test_a_pair_that_gets_more_done_stays_and_one_that_does_not_parts_for_good() -> (
    None
):
    seen = view(nodes(1), quick("a", application="x"), quick("b", application="y"))
    plans, last = play(Gandiva(), seen, 20, SMALL)
    halves = Allocation(slots=(("n0", 1),), gpu_share=0.5, shared=(0,))
    assert plans[-1].allocations == {"a": halves, "b": halves}
    assert (
        "shares its GPUs with b: together they get 1.60 times" in plans[-1].reasons["a"]
    )
    assert any("on trial" in plan.reasons["a"] for plan in plans)
    plans, _ = play(Gandiva(), seen, 20, SLOW)
    packed = [len(plan.allocations) == 2 for plan in plans]
    assert any(packed)
    assert not any(packed[-10:])
    # One that ends leaves its GPUs to the other.
    policy = Gandiva()
    _, last = play(policy, seen, 20, SMALL)
    alone = replace(last, jobs=tuple(one for one in last.jobs if one.id == "b"))
    assert policy.allocate(alone).allocations == {"b": on(n0=1)}


def test_labels_stay_while_other_pairs_come_and_go() -> None:
    seen = view(nodes(2), *(quick(name) for name in "abcd"))
    policy = Gandiva()
    plans, last = play(policy, seen, 20, SMALL)
    assert len(plans[-1].allocations) == 4
    assert plans[-1].allocations == plans[-2].allocations
    leaving = plans[-1].allocations["a"].shared
    gone = [
        name for name, held in plans[-1].allocations.items() if held.shared == leaving
    ]
    rest = tuple(one for one in last.jobs if one.id not in gone)
    after_all = policy.allocate(replace(last, jobs=rest)).allocations
    first, second = (after_all[one.id] for one in rest)
    assert not first.shared  # two GPUs for two jobs: nobody need share any more
    assert not second.shared or second == plans[-1].allocations[rest[1].id]


def test_tenants_with_quotas_share_no_gpus_with_others() -> None:
    seen = view(nodes(1), quick("a", tenant="x"), quick("b"), quotas={"x": 1})
    plans, _ = play(Gandiva(), seen, 12, SMALL)
    assert all(len(plan.allocations) == 1 for plan in plans)


def test_a_suspended_job_moves_to_gpus_that_come_free() -> None:
    seen = view(nodes(1, 1), quick("a"), quick("b"), quick("c"))
    policy = Gandiva(pack=False)
    _, later = play(policy, seen, 1)
    left = replace(later, jobs=tuple(one for one in later.jobs if one.id != "b"))
    assert counts(policy.allocate(left)) == {"a": 1, "c": 1}


def test_a_spread_job_is_brought_together_once_it_may_move() -> None:
    spread = replace(quick("a", 4), grant=Grant(allocation=on(n0=2, n1=2)))
    policy = Gandiva()
    assert policy.allocate(view(nodes(4, 4), spread)).allocations == {"a": on(n0=4)}
    assert Gandiva(migrate=False).allocate(view(nodes(4, 4), spread)).allocations == {
        "a": on(n0=2, n1=2)
    }


def test_jobs_grow_on_idle_gpus_of_their_server_and_shrink_at_once() -> None:
    policy = Gandiva()
    elastic = replace(job("a", (1, 8)), rescale_s=1.0)
    plans, later = play(policy, view(nodes(4), elastic), 10)
    assert [counts(plan)["a"] for plan in plans] == [1] * 5 + [4] * 5
    assert "idle GPUs of its server" in plans[-1].reasons["a"]
    crowd = replace(later, jobs=(*later.jobs, *(quick(name, at=1.0) for name in "bcd")))
    assert counts(policy.allocate(crowd)) == {"a": 1, "b": 1, "c": 1, "d": 1}


def test_nobody_takes_turns_with_a_frozen_job_that_runs() -> None:
    frozen = job("a", 1, held=on(n0=1), contract=RescaleContract.FROZEN)
    plans, _ = play(Gandiva(), view(nodes(1), frozen, quick("b")), 5)
    assert all(counts(plan) == {"a": 1} for plan in plans)


def test_a_gang_larger_than_any_server_takes_turns_on_several() -> None:
    racks = tuple(Node(id=f"n{i}", num_gpus=2, rack=f"r{i // 2}") for i in range(4))
    seen = view(racks, quick("a", 4), quick("b", 4), quick("c", 4))
    plans, _ = play(Gandiva(pack=False), seen, 12)
    ran = {name: sum(name in plan.allocations for plan in plans) for name in "abc"}
    assert sum(ran.values()) == 24  # both racks, all the time
    assert min(ran.values()) >= 6
    kinds = {node.id: node.rack for node in racks}
    held = [each for plan in plans for each in plan.allocations.values()]
    assert all(len({kinds[name] for name, _ in each.slots}) == 1 for each in held)


def test_fits_share_asks_for_the_memory_of_a_pass() -> None:
    assert fits_share(job("a"), 1, 2)  # of unknown memory
    batch = replace(job("a").spec.batch, max_atomic=100)
    assert not fits_share(job("a", batch=batch), 1, 2)  # 64 samples
    assert fits_share(job("a", 2, batch=batch), 2, 2)


@pytest.mark.parametrize(
    "bad", [{"quantum_s": -1.0}, {"switch_part": 0.0}, {"load_max": 0.5}]
)
def test_bad_options_are_refused(bad: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(bad))):
        Gandiva(**bad)  # type: ignore[arg-type]  # one option each


def test_it_keeps_the_contract() -> None:
    check_policy(Gandiva, cases=12, seed=3)
    check_policy(lambda: Gandiva(same_affinity=True, quantum_s=0.0), cases=6, seed=4)
