"""DeepPool: how far a job is scaled, and who sits beside whom."""

import time
from dataclasses import replace

import pytest

from coadapt.model import WAITING, Allocation, JobView
from coadapt.policies.checks.contract import check_policy
from coadapt.policies.deeppool import DeepPool
from tests.policies.stage import counts, job, nodes, on, view

# GPU time of a step on 1, 2, 3, 4 GPUs over that on one: 1, 1.2, 1.5, 2.4.
TIMES = (1.0, 0.6, 0.5, 0.6)
# On two GPUs the passes take half of the time of one, and the network as long again.
IDLE = (1.0, 1.0)


def front(
    name: str,
    requested: int,
    times: tuple[float, ...] = TIMES,
    held: Allocation = WAITING,
) -> JobView:
    return job(name, (1, 4), requested=requested, steps=1e3, times=times, held=held)


def half(node: str, *labels: int) -> Allocation:
    return Allocation(slots=((node, len(labels)),), gpu_share=0.5, shared=labels)


def test_the_contract_is_kept() -> None:
    check_policy(DeepPool, cases=12, seed=3, timer=time.process_time)
    check_policy(
        lambda: DeepPool(least_idle=0.0, order="shortest"),
        cases=12,
        seed=3,
        timer=time.process_time,
    )


@pytest.mark.parametrize(
    ("amplification", "requested", "count"),
    [(1.0, 4, 1), (2.0, 4, 2), (2.0, 3, 3), (2.4, 4, 4), (9.0, 2, 2)],
)
def test_a_job_gets_what_it_uses_efficiently(
    amplification: float, requested: int, count: int
) -> None:
    """Of powers of two, and of all that it requested."""
    plan = DeepPool(amplification=amplification).allocate(
        view(nodes(4), front("j", requested))
    )
    assert counts(plan) == {"j": count}


def test_what_a_job_started_with_it_keeps() -> None:
    held = on(n0=1)
    assert counts(DeepPool().allocate(view(nodes(4), front("j", 2, held=held)))) == {
        "j": 1
    }


def test_background_jobs_fill_idle_gpus_first_and_then_the_idle_time_of_others() -> (
    None
):
    small = [job(f"s{i}", steps=1e3) for i in range(4)]
    plan = DeepPool(least_idle=0.5).allocate(
        view(nodes(3), front("wide", 2, IDLE), *small)
    )
    assert plan.allocations["wide"] == half("n0", 0, 1)
    assert plan.allocations["s0"] == on(n0=1)
    assert [plan.allocations[name] for name in ("s1", "s2")] == [
        half("n0", 0),
        half("n0", 1),
    ]
    assert "s3" not in plan.allocations
    assert plan.reasons["wide"].endswith(
        "its GPUs are idle for 50% of it, which others may use"
    )
    assert plan.reasons["s1"].endswith(
        "beside a foreground job whose GPU is idle for 50% of its time"
    )
    alone = DeepPool(least_idle=0.6).allocate(
        view(nodes(3), front("wide", 2, IDLE), *small)
    )
    assert counts(alone) == {"wide": 2, "s0": 1}
    assert not alone.allocations["wide"].shared


def test_a_foreground_job_displaces_background_ones_but_none_of_its_kind() -> None:
    runs = front("runs", 2, held=on(n0=2))
    small = job("small", held=on(n1=1))
    plan = DeepPool().allocate(view(nodes(2, 2), runs, small, front("comes", 2)))
    assert counts(plan) == {"runs": 2, "comes": 2}
    crowded = DeepPool().allocate(view(nodes(2), runs, front("comes", 2)))
    assert counts(crowded) == {"runs": 2}


def test_a_background_job_stays_where_nobody_needs_its_gpu() -> None:
    small = job("small", held=on(n0=1))
    plan = DeepPool().allocate(view(nodes(3, 2), small, front("comes", 2)))
    assert plan.allocations["small"] == on(n0=1)


def test_the_shortest_is_started_first_where_that_is_asked_for() -> None:
    long = front("long", 2)
    short = replace(
        front("short", 2),
        measured=replace(long.measured, forecast=job("s", steps=1.0).measured.forecast),
    )
    both = view(
        nodes(2), replace(long, submitted_at=0.0), replace(short, submitted_at=1.0)
    )
    assert "long" in DeepPool().allocate(both).allocations
    assert "long" not in DeepPool(order="shortest").allocate(both).allocations


def test_a_job_of_unknown_speed_has_what_it_requested() -> None:
    plan = DeepPool(least_idle=0.0).allocate(
        view(nodes(4), job("silent", (1, 4), requested=3))
    )
    assert plan.allocations["silent"] == on(n0=3)
    assert plan.reasons["silent"].endswith(
        "its speed is unknown: it has what it requested"
    )


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"amplification": 0.5}, "amplification must be finite and >= 1, got 0.5"),
        ({"least_idle": 2.0}, "least_idle must be within 0..1, got 2.0"),
        ({"order": "last"}, "order must be one of fifo, shortest, got 'last'"),
    ],
)
def test_a_bad_option_says_what_is_allowed(
    options: dict[str, float], text: str
) -> None:
    with pytest.raises(ValueError, match=text):
        DeepPool(**options)  # type: ignore[arg-type]  # of a wrong value on purpose
