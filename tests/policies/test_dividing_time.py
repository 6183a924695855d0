"""Policies that divide time: gavel, themis, ossp, mst, allox, gandiva-fair; what is
particular to each.
"""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from coadapt.model import BatchConfig, ClusterView, JobView, Tenant
from coadapt.policies import Policy, create_policy
from coadapt.policies.allocation.time_share_rounds import RoundOptions, TimeShareRounds
from coadapt.policies.allox import Allox
from coadapt.policies.checks.contract import check_policy
from coadapt.policies.gandiva_fair import GandivaFair, capped_shares, traded
from coadapt.policies.gavel import Gavel
from coadapt.policies.mst import Mst
from coadapt.policies.ossp import Ossp, bisected
from coadapt.policies.themis import Themis
from tests.policies.stage import counts, job, nodes, on, view

WITH_OPTIONS: dict[str, Callable[[], Policy]] = {
    "themis": lambda: Themis(resolve_s=120.0, hold_back=True),
    "mst": lambda: Mst(raw=True, central=True),
    "allox": lambda: Allox(alpha=0.2),
}


@pytest.mark.parametrize("name", WITH_OPTIONS)
def test_they_keep_the_contract(name: str) -> None:
    check_policy(WITH_OPTIONS[name], cases=3, seed=3)


def play(
    policy: Policy, start: ClusterView, num_rounds: int, round_s: float = 60.0
) -> dict[str, int]:
    """Return how many of `num_rounds` each job ran, the plans carried out at once."""
    ran = dict.fromkeys((each.id for each in start.jobs), 0)
    current = start
    for _ in range(num_rounds):
        plan = policy.allocate(current)
        for name in plan.allocations:
            ran[name] += 1
        jobs = tuple(
            later(each, plan.allocations.get(each.id, on()), round_s)
            for each in current.jobs
        )
        current = replace(current, at=current.at + round_s, jobs=jobs)
    return ran


def later(one: JobView, held: object, round_s: float) -> JobView:
    gpus = held.num_replicas  # type: ignore[attr-defined]  # an Allocation
    service = one.usage.attained_service_gpu_s + gpus * round_s
    return replace(
        one,
        grant=replace(one.grant, allocation=held),
        usage=replace(one.usage, attained_service_gpu_s=service),
    )


def test_parts_of_the_time_become_rounds() -> None:
    rounds = TimeShareRounds(RoundOptions(round_s=60.0))
    parts = {"a": {"gpu": 0.5}, "b": {"gpu": 0.3}, "c": {"gpu": 0.2}}

    class Parts:
        def allocate(self, view: ClusterView):  # type: ignore[no-untyped-def]  # as Policy
            return rounds.plan(view, lambda: parts, ["gpu"])

    ran = play(Parts(), view(nodes(1), job("a"), job("b"), job("c")), 100)
    assert ran == {
        "a": pytest.approx(50, abs=1),
        "b": pytest.approx(30, abs=1),
        "c": pytest.approx(20, abs=1),
    }


def test_a_turn_is_longer_than_the_scheduler_s_round() -> None:
    """Within 360 s those that run stay, and who came takes what is free; then others
    have their turn.
    """
    policy = Gavel()
    cluster = nodes(1, 1)
    runs: list[dict[str, int]] = []
    held = {"a": on(), "b": on()}
    for index in range(13):
        names = ("a", "b", "c") if index >= 2 else ("a",)
        jobs = [
            job(
                name,
                held=held.get(name, on()),
                service=60.0 * sum(name in each for each in runs),
            )
            for name in names
        ]
        plan = policy.allocate(view(cluster, *jobs, at=60.0 * index))
        held = dict(plan.allocations)
        runs.append(counts(plan))
    alone = {"a": 1}
    first = runs[2]
    assert runs[:2] == [alone] * 2
    assert (
        first.keys() > alone.keys()
    )  # one of those who came takes the GPU that is free
    assert runs[2:6] == [first] * 4
    assert runs[6].keys() != first.keys()  # whoever waited has the next turn
    assert runs[6:12] == [runs[6]] * 6


def test_gpus_of_a_job_without_a_part_yet_are_held_back_where_that_is_asked_for() -> (
    None
):
    for hold_back in (False, True):
        policy = Gavel(resolve_s=1000.0, hold_back=hold_back)
        first = view(nodes(2), job("a"))
        policy.allocate(first)
        plan = policy.allocate(replace(view(nodes(2), job("a"), job("b")), at=120.0))
        assert counts(plan) == ({"a": 1} if hold_back else {"a": 1, "b": 1})
        assert "not decided yet" in plan.reasons["b"]
        after = policy.allocate(replace(view(nodes(2), job("a"), job("b")), at=1120.0))
        assert counts(after) == {"a": 1, "b": 1}


def test_max_min_shares_gpu_time_and_heeds_tenants_weights() -> None:
    wide = view(nodes(4), job("four", 4), *(job(f"one{i}") for i in range(4)))
    ran = play(Gavel(), wide, 100)
    # 5 jobs on 4 GPUs: 0.8 GPUs each, so the wide one runs a fifth of the time, and
    # then nobody else does.
    assert ran["four"] == pytest.approx(20, abs=2)
    rich = job("r", tenant="rich")
    poor = job("p", tenant="poor")
    weighted = replace(
        view(nodes(1), rich, poor), tenants={"rich": Tenant(id="rich", weight=3.0)}
    )
    assert play(Gavel(), weighted, 100)["r"] == pytest.approx(75, abs=2)


def test_a_fast_type_goes_to_whom_it_helps_most() -> None:
    """Two jobs, one GPU of each type: what each was seen to do there decides who has
    which for good.
    """
    cluster = nodes(1, kind="fast", name="f") + nodes(1, kind="slow", name="s")
    policy = Gavel()
    step_s = {
        ("deaf", "fast"): 1.0,
        ("deaf", "slow"): 1.0,
        ("keen", "fast"): 0.25,
        ("keen", "slow"): 1.0,
    }
    held = {"deaf": "s0", "keen": "f0"}
    place: dict[str, list[str]] = {"deaf": [], "keen": []}
    for index in range(40):
        seen = []
        for name in ("deaf", "keen"):
            kind = "fast" if held.get(name, "").startswith("f") else "slow"
            one = job(
                name, steps=1e6, held=on(**{held[name]: 1}) if held.get(name) else on()
            )
            batch = BatchConfig(total=64, atomic=64, accumulation=0)
            measured = replace(
                one.measured, step_time_s=step_s[name, kind], batch=batch
            )
            service = 60.0 * len(place[name])
            seen.append(
                replace(
                    one,
                    measured=measured,
                    usage=replace(one.usage, attained_service_gpu_s=service),
                )
            )
        # Another rack has parts decided anew each round, so that what was learned
        # counts.
        racked = tuple(replace(node, rack=f"r{index}") for node in cluster)
        plan = policy.allocate(replace(view(racked, *seen), at=60.0 * (index + 1)))
        given = {name: each.slots[0][0] for name, each in plan.allocations.items()}
        # At first both are seen on both types: nobody is moved only to be tried out.
        tried = (
            {"deaf": "s0", "keen": "f0"} if index < 3 else {"deaf": "f0", "keen": "s0"}
        )
        held = tried if index < 6 else given
        for name, node in held.items():
            place[name].append(node)
    assert place["keen"][20:].count("f0") > 15
    assert place["deaf"][20:].count("s0") > 15


def test_ossp_runs_all_so_that_they_end_together() -> None:
    long = job("long", steps=3000.0)
    short = job("short", steps=1000.0)
    ran = play(Ossp(), view(nodes(1), long, short), 100)
    assert ran == {"long": pytest.approx(75, abs=1), "short": pytest.approx(25, abs=1)}
    # Between 5 % above the least makespan and itself.
    assert 1000.0 <= bisected(1000.0, 0.05) <= 1050.0
    assert 2e7 <= bisected(2e7, 0.05) <= 2.1e7


def test_themis_lets_nobody_fall_behind_its_own_part() -> None:
    """Two jobs on one GPU, alike but for their age: the older one is the worse off, so
    it has more time.
    """
    old = job("old", steps=1000.0)
    young = job("young", steps=1000.0, at=900.0)
    ran = play(Themis(), view(nodes(1), old, young, at=1000.0), 60)
    assert ran["old"] > ran["young"] > 5


def test_mst_counts_passes_only_where_it_is_told_to() -> None:
    quick = job("quick", steps=1000.0, times=(0.1,))
    wide = job("wide", 2, steps=1000.0, times=(1.0, 1.0))
    both = view(nodes(2), wide, quick)
    assert counts(Mst(raw=True).allocate(both)) == {"quick": 1}
    assert counts(Mst().allocate(both)) == {"wide": 2}


def test_allox_runs_short_jobs_first_and_leaves_them_to_their_end() -> None:
    long = job("long", steps=1000.0)
    short = job("short", steps=10.0)
    policy = Allox()
    first = policy.allocate(view(nodes(1), long, short))
    assert counts(first) == {"short": 1}
    held = replace(
        job("short", steps=10.0),
        grant=replace(short.grant, allocation=first.allocations["short"]),
    )
    shorter = job("shorter", steps=1.0, at=50.0)
    assert counts(
        policy.allocate(replace(view(nodes(1), long, held, shorter), at=120.0))
    ) == {"short": 1}
    # With a small alpha the oldest has its turn, whatever its length.
    assert counts(
        Allox(alpha=0.01).allocate(
            view(nodes(1), long, replace(short, submitted_at=5.0))
        )
    ) == {"long": 1}


def test_tickets_share_gpus_by_tenant_not_by_job() -> None:
    many = [job(f"m{i}", tenant="many") for i in range(4)]
    ran = play(
        GandivaFair(round_s=60.0), view(nodes(2), *many, job("lone", tenant="few")), 100
    )
    assert ran["lone"] == pytest.approx(100, abs=1)
    assert sum(ran[each.id] for each in many) == pytest.approx(100, abs=1)
    alike = play(
        GandivaFair(form="equal"), view(nodes(2), *many, job("lone", tenant="few")), 100
    )
    assert alike["lone"] == pytest.approx(40, abs=2)


def test_shares_beyond_demand_go_to_the_others() -> None:
    given = capped_shares(8.0, np.array([2.0, 10.0, 10.0]), np.ones(3))
    assert given == pytest.approx([2.0, 3.0, 3.0])
    assert capped_shares(8.0, np.array([1.0, 2.0]), np.ones(2)) == pytest.approx(
        [1.0, 2.0]
    )


def test_both_gain_by_trade_and_no_gpu_is_lost() -> None:
    owned_UT = np.array([[2.0, 2.0], [2.0, 2.0], [2.0, 2.0]])
    rate_UT = np.array(
        [[1.0, 0.2], [1.0, 0.5], [1.0, 0.8]]
    )  # speedups 5, 2 and 1.25 on the fast type
    after_UT = traded(owned_UT, rate_UT)
    assert after_UT.sum(axis=0) == pytest.approx(owned_UT.sum(axis=0))
    assert (after_UT >= -1e-9).all()
    before_U = (owned_UT * rate_UT).sum(axis=1)
    after_U = (after_UT * rate_UT).sum(axis=1)
    assert (after_U >= before_U - 1e-9).all()
    assert after_U.sum() > before_U.sum() + 0.5
    # The first trade is at the price 2, of the second bidder; the next between the two
    # that are left.
    left = 2.0 - np.sqrt(2.0 * 1.25)
    assert after_UT == pytest.approx(
        np.array([[3.0, 0.0], [3.0, left], [0.0, 6.0 - left]])
    )
    two_UT = traded(
        owned_UT[:2], np.array([[1.0, 0.25], [1.0, 1.0]])
    )  # speedups 4 and 1: the price is 2
    assert two_UT == pytest.approx(np.array([[3.0, 0.0], [1.0, 4.0]]))


def test_a_job_of_unknown_length_is_told_what_it_counts_as() -> None:
    known = job("known", steps=100.0)
    unknown = job("unknown")
    for name in ("ossp", "themis", "allox", "gavel(objective=makespan)"):
        reasons = create_policy(name).allocate(view(nodes(1), known, unknown)).reasons
        assert "its length is not known: it counts as half done" in reasons["unknown"]
        assert "length" not in reasons["known"]


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (
            lambda: Gavel(objective="fair"),
            "objective must be one of max-min, ftf, makespan, cost, got 'fair'",
        ),
        (
            lambda: Gavel(objective="cost", prices={"a": 0.0}),
            "prices must be numbers > 0 by GPU type",
        ),
        (
            lambda: Gavel(prices={"a": 1.0}),
            "prices go with objective cost only, got 'max-min'",
        ),
        (
            lambda: Gavel(objective="ftf", by_type=False),
            "by_type=False goes with objective max-min only",
        ),
        (lambda: Ossp(tolerance=1.0), r"tolerance must be in \[0, 1\), got 1.0"),
        (lambda: Allox(alpha=0.0), r"alpha must be in \(0, 1\], got 0.0"),
        (
            lambda: GandivaFair(form="stride"),
            "form must be one of tickets, equal, got 'stride'",
        ),
        (lambda: Mst(round_s=0.0), "round_s must be > 0, got 0.0"),
        (lambda: Themis(resolve_s=-1.0), "resolve_s must be >= 0, got -1.0"),
    ],
)
def test_a_bad_option_says_what_is_allowed(
    make: Callable[[], Policy], text: str
) -> None:
    with pytest.raises(ValueError, match=text):
        make()
