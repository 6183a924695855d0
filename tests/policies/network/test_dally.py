"""Dally: jobs decline GPUs that are too far apart for a while; who loses most to the
network is first.
"""

import time
from dataclasses import replace

import pytest

from coadapt.model import Allocation, JobView, Node, Usage
from coadapt.policies.checks.contract import check_policy
from coadapt.policies.dally import Dally, Level, priorities, tightest
from tests.policies.stage import counts, job, nodes, on, view

# A step on two GPUs: half of that of one GPU, and as much again for the network.
HUNGRY = (1.0, 1.0)


def served(one: JobView, held: Allocation, service: float) -> JobView:
    """Return the job with GPUs on which it ran before."""
    usage = Usage(started_at=0.0, attained_service_gpu_s=service, num_starts=1)
    return replace(one, grant=replace(one.grant, allocation=held), usage=usage)


def racked(*sizes: tuple[int, str]) -> tuple[Node, ...]:
    return tuple(
        Node(id=f"n{i}", num_gpus=num, rack=rack) for i, (num, rack) in enumerate(sizes)
    )


def test_the_contract_is_kept() -> None:
    check_policy(Dally, cases=12, seed=3, timer=time.process_time)


def test_a_job_declines_gpus_on_several_nodes_until_its_timer_ends() -> None:
    """A GPU of each node is busy with a job that cannot be displaced yet."""
    policy = Dally(node_delay_s=600.0, tuned=False, quantum_s=1e6)
    busy = [served(job(f"b{i}", steps=1e6), on(**{f"n{i}": 1}), 60.0) for i in range(2)]
    pair = job("pair", 2, steps=1e3, times=HUNGRY, at=60.0)
    early = policy.allocate(view(nodes(2, 2), *busy, pair, at=120.0))
    assert "pair" not in early.allocations
    assert early.reasons["pair"] == (
        "it declines GPUs on one rack and waits for one node, since 1 minutes"
    )
    late = policy.allocate(view(nodes(2, 2), *busy, pair, at=660.0))
    assert late.allocations["pair"].slots == (("n0", 1), ("n1", 1))
    assert late.reasons["pair"].endswith("on one rack, after 10 minutes")


def test_nobody_insists_on_what_the_cluster_does_not_have() -> None:
    cluster = racked((2, "a"), (2, "a"), (2, "b"))
    levels = [tightest(job("j", count), view(cluster)) for count in (2, 4, 6)]
    assert levels == [Level.NODE, Level.RACK, Level.NETWORK]
    for count in (2, 4, 6):
        assert counts(Dally().allocate(view(cluster, job("j", count)))) == {"j": count}


def test_the_fullest_node_and_rack_that_have_room_are_taken() -> None:
    cluster = racked((4, "a"), (2, "a"), (3, "b"), (2, "b"))
    assert Dally().allocate(view(cluster, job("j", 2))).allocations["j"].slots == (
        ("n1", 2),
    )
    assert Dally().allocate(view(cluster, job("j", 5))).allocations["j"].slots == (
        ("n2", 3),
        ("n3", 2),
    )


def test_who_loses_more_to_the_network_displaces_whoever_had_its_quantum() -> None:
    light = served(job("light", 2, steps=1e6, times=(1.0, 0.5)), on(n0=2), 600.0)
    hungry = job("hungry", 2, steps=1e6, times=HUNGRY)
    both = view(nodes(2), light, hungry)
    rank = priorities(both, least_lost=0.05)
    assert rank["hungry"] == pytest.approx(0.5)  # half of its step
    assert rank["light"] == pytest.approx(
        0.05 / 3.0
    )  # nothing is lost; twice the mean service
    assert counts(Dally(quantum_s=301.0).allocate(both)) == {"light": 2}
    plan = Dally(quantum_s=300.0).allocate(both)
    assert counts(plan) == {"hungry": 2}


def test_only_those_are_displaced_whose_gpus_are_needed() -> None:
    """The one of lowest priority is asked first, but its node would not do."""
    old = served(job("old", steps=1e6), on(n1=1), 6000.0)
    young = served(job("young", steps=1e6), on(n0=1), 3000.0)
    hungry = job("hungry", 2, steps=1e6, times=HUNGRY)
    plan = Dally().allocate(view(nodes(2, 1), old, young, hungry))
    assert counts(plan) == {"hungry": 2, "old": 1}


def test_timers_follow_what_offers_were_worth_waiting_for() -> None:
    """A job of two GPUs got a node after 100 s: the next one insists for so long, not
    for half an hour.
    """
    policy = Dally()
    policy.allocate(view(nodes(2), job("first", 2, steps=1e3, times=HUNGRY), at=100.0))
    busy = [served(job(f"b{i}", steps=1e6), on(**{f"n{i}": 1}), 0.0) for i in range(2)]
    second = job("second", 2, steps=1e3, times=HUNGRY, at=100.0)
    assert (
        "second"
        not in policy.allocate(view(nodes(2, 2), *busy, second, at=190.0)).allocations
    )
    assert (
        "second"
        in policy.allocate(view(nodes(2, 2), *busy, second, at=200.0)).allocations
    )


def test_a_job_that_runs_moves_closer_where_that_is_worth_a_rescale() -> None:
    apart = on(n0=1, n1=1)
    one = served(job("one", 2, steps=1e6, times=(1.0, 0.6)), apart, 0.0)
    slow = replace(one, measured=replace(one.measured, step_time_s=1.2))
    # Half of the time since its start would have been saved: 40 s of 80 s, for a
    # rescale of 30 s.
    for service_gpu_s, moves in ((100.0, False), (160.0, True)):
        runs = served(slow, apart, service_gpu_s)
        plan = Dally().allocate(view(nodes(1, 1, 2), runs))
        assert plan.allocations["one"].slots == ((("n2", 2),) if moves else apart.slots)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"node_delay_s": -1.0}, "node_delay_s must be finite and >= 0, got -1.0"),
        ({"rack_delay_s": 60.0}, "must not be below those of a node"),
        ({"least_lost": 0.0}, r"least_lost must be in \(0, 1\], got 0.0"),
    ],
)
def test_a_bad_option_says_what_is_allowed(
    options: dict[str, float], text: str
) -> None:
    with pytest.raises(ValueError, match=text):
        Dally(**options)  # type: ignore[arg-type]  # of a wrong value on purpose
