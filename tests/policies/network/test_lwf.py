"""LWF-κ: where jobs are placed, whose turn it is on a GPU, and who may exchange
gradients beside whom.
"""

import time
from collections.abc import Callable
from dataclasses import replace

import pytest

from coadapt.policies import Policy
from coadapt.policies.checks.contract import check_policy
from coadapt.policies.lwf import SIZE_RATIO, Lwf
from tests.policies.stage import counts, job, nodes, on, view


@pytest.mark.parametrize(
    "make",
    [
        Lwf,
        lambda: Lwf(kappa=4, residents=3, settled=True, overlap="any"),
        lambda: Lwf(residents=1),
    ],
)
def test_the_contract_is_kept(make: Callable[[], Policy]) -> None:
    check_policy(make, cases=8, seed=3, timer=time.process_time)


def test_small_jobs_go_to_the_least_loaded_gpus_and_large_ones_to_few_nodes() -> None:
    """One GPU of each node is busy. With κ = 4 idle GPUs are taken wherever they are,
    else whole nodes.
    """
    busy = [
        job(f"busy{i}", steps=1000.0 * (i + 1), held=on(**{f"n{i}": 1}))
        for i in range(3)
    ]
    wide = job("wide", 4, steps=10.0, times=(4.0, 2.0, 1.5, 1.0))
    cluster = nodes(3, 3, 3)
    spread = (
        Lwf(kappa=4, overlap="any")
        .allocate(view(cluster, *busy, wide))
        .allocations["wide"]
    )
    packed = (
        Lwf(kappa=1, overlap="any")
        .allocate(view(cluster, *busy, wide))
        .allocations["wide"]
    )
    # Idle GPUs are alike, so they come in the order of nodes; only then the busy one
    # that is free first.
    assert spread.slots == (("n0", 2), ("n1", 2))
    assert packed.slots == (("n0", 3), ("n1", 1))  # n0 has least left to do in the mean


def test_the_job_with_the_least_left_runs_and_the_other_gives_up_its_gpus() -> None:
    long = job("long", steps=1000.0, held=on(n0=1))
    short = job("short", steps=10.0)
    plan = Lwf().allocate(view(nodes(1), long, short))
    assert counts(plan) == {"short": 1}
    assert plan.reasons["long"] == (
        "its GPUs are on n0: jobs with less left to train go first there"
    )
    alone = Lwf(residents=1).allocate(view(nodes(1), long, short))
    assert counts(alone) == {"long": 1}
    assert "all others have 1 job already" in alone.reasons["short"]


def test_a_job_that_waits_keeps_its_place_only_where_it_is_settled() -> None:
    held = on(n0=1)
    for settled in (True, False):
        policy = Lwf(settled=settled)
        runs = job("runs", steps=10.0, held=held)
        waits = job("waits", steps=100.0)
        before = view(nodes(1), runs, waits)
        assert counts(policy.allocate(before)) == {"runs": 1}
        roomier = replace(before, nodes=nodes(1, 1))
        assert counts(policy.allocate(roomier)) == (
            {"runs": 1} if settled else {"runs": 1, "waits": 1}
        )


@pytest.mark.parametrize(
    ("overlap", "ratio", "runs"),
    [
        ("any", 1.0, True),
        ("alone", 1e6, False),
        ("adadual", 2.0, False),
        ("adadual", 3.0, True),
    ],
)
def test_an_exchange_begins_beside_one_that_takes_far_longer(
    overlap: str, ratio: float, runs: bool
) -> None:
    """Both jobs are on both nodes, the one with less left first; the other's exchange
    is `ratio` shorter.
    """
    assert 2.0 < SIZE_RATIO < 3.0
    # A step on one GPU takes 1 s: on two, the passes half of it, and the exchange the
    # rest.
    there = job("there", 2, steps=10.0, times=(1.0, 0.5 + 0.3), held=on(n0=1, n1=1))
    comes = job(
        "comes", 2, steps=1e5, times=(1.0, 0.5 + 0.3 / ratio), held=on(n0=1, n1=1)
    )
    plan = Lwf(overlap=overlap).allocate(view(nodes(2, 2), there, comes))
    assert ("comes" in plan.allocations) is runs
    if not runs:
        assert (
            "its exchange would slow another one on the same node too much"
            in plan.reasons["comes"]
        )


def test_a_job_of_unknown_length_hears_what_it_counts_as() -> None:
    reasons = (
        Lwf().allocate(view(nodes(2), job("known", steps=10.0), job("unknown"))).reasons
    )
    assert "its length is not known: it counts as half done" in reasons["unknown"]
    assert "length" not in reasons["known"]


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"kappa": -1}, "kappa must be >= 0"),
        ({"residents": 0}, "residents >= 1"),
        ({"overlap": "some"}, "overlap must be one of any, alone, adadual, got 'some'"),
        ({"size_ratio": 0.0}, "size_ratio must be finite and > 0"),
    ],
)
def test_a_bad_option_says_what_is_allowed(
    options: dict[str, object], text: str
) -> None:
    with pytest.raises(ValueError, match=text):
        Lwf(**options)  # type: ignore[arg-type]  # of a wrong value on purpose
