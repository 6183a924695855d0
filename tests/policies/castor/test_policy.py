"""Castor in rounds: the contract, what its dials and a job's spec do, and what it
tells.
"""

import re
import time
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest

from coadapt.model import (
    WAITING,
    Allocation,
    BatchLimits,
    ClusterView,
    InputError,
    JobView,
    RescaleContract,
    Tenant,
    TypeProfile,
)
from coadapt.policies import create_policy
from coadapt.policies.castor.fairness import FairClocks
from coadapt.policies.castor.job_values import (
    MANY_JOBS,
    Aims,
    _fluid_jobs,
    _objective,
    gpu_curves,
)
from coadapt.policies.castor.policy import END_JOBS, Castor, State
from coadapt.policies.castor.situation import ROUND_S
from coadapt.policies.checks.contract import check_policy
from coadapt.policies.predictors.expected_arrivals import (
    Arrivals,
    Expected,
    Silence,
)
from coadapt.policies.predictors.prediction_intervals import ERRORS_MIN
from tests.policies.castor.stage import situation_of, timed
from tests.policies.stage import counts, job, nodes, on, view


def faster_a(times: float) -> Mapping[str, TypeProfile]:
    """Return how long steps take on types a and b, the former so many times as fast."""
    common = timed("x").measured.by_type["gpu"]
    names = ("alpha_c", "beta_c", "alpha_r", "alpha_n")
    rare = replace(
        common.params, **{name: getattr(common.params, name) / times for name in names}
    )
    return {"a": replace(common, params=rare), "b": common}


def beside_eight(num_rare: int, *jobs: JobView) -> ClusterView:
    """Return a view of jobs on a node of type a and two of four GPUs of type b."""
    return view(
        (*nodes(num_rare, kind="a", name="a"), *nodes(4, 4, kind="b", name="b")), *jobs
    )


def test_it_keeps_the_contract() -> None:
    Castor().allocate(view(nodes(4), timed("compiles the kernels")))
    check_policy(Castor, cases=20, seed=1, timer=time.process_time)


def test_it_keeps_the_contract_with_all_dials() -> None:
    check_policy(
        lambda: Castor(rho_max=0.8, makespan_jobs=4.0, expect=False), cases=20, seed=2
    )


@pytest.mark.parametrize("option", [{"rho_max": -1.0}, {"makespan_jobs": -0.5}])
def test_a_bad_dial_is_named(option: dict[str, float]) -> None:
    with pytest.raises(
        InputError, match=f"{next(iter(option))} must be finite and >= 0"
    ):
        create_policy("castor", **option)


@pytest.mark.parametrize(
    ("rescale_s", "dials"),
    [
        (0.0, (2.0, 0.0)),
        (1.0, (2.0, 0.0)),
        (8.0, (3.0, 0.25)),
        (15.0, (4.0, 0.5)),
        (250.0, (4.0, 0.5)),
    ],
)
def test_dials_that_nobody_sets_are_those_of_what_rescales_take(
    rescale_s: float, dials: tuple[float, float]
) -> None:
    """Each job's own rescale counts in the median: one that is dear among five changes
    nothing.
    """
    makespan_jobs, tail = dials
    assert Castor().dials(rescale_s, unlike=0.0, num_jobs=9.0) == (
        makespan_jobs,
        tail,
        2.0,
    )
    assert Castor(makespan_jobs=8.0).dials(rescale_s, unlike=0.0, num_jobs=9.0) == (
        8.0,
        tail,
        2.0,
    )
    assert Castor(tail=0.0).dials(rescale_s, unlike=0.0, num_jobs=9.0) == (
        makespan_jobs,
        0.0,
        2.0,
    )
    jobs = [
        timed(f"j{number}", target=10.0**number, at=-1e4 * number)
        for number in range(4, 9)
    ]
    jobs = [
        replace(each, rescale_s=9e9 if each.id == "j5" else rescale_s) for each in jobs
    ]
    as_set = Castor(makespan_jobs=makespan_jobs, tail=tail).allocate(
        view(nodes(4, 4), *jobs)
    )
    assert Castor().allocate(view(nodes(4, 4), *jobs)) == as_set
    assert (
        Castor(makespan_jobs=64.0, tail=4.0).allocate(view(nodes(4, 4), *jobs))
        != as_set
    )


def given(
    *jobs: object, gpus: tuple[int, ...] = (4,), **options: float
) -> dict[str, int]:
    seen = view(nodes(*gpus), *jobs)  # type: ignore[arg-type]  # as the stage's
    return counts(Castor(**options).allocate(seen))  # type: ignore[arg-type]  # numbers only


def test_a_short_job_goes_before_a_long_one() -> None:
    plan = given(
        timed("a-long", target=1e7, gpus=(4, 4)),
        timed("short", target=1e4, gpus=(4, 4)),
    )
    assert plan == {"short": 4}


def test_a_priority_turns_that_round() -> None:
    plan = given(timed("long", target=1e6, priority=8), timed("short", target=5e5))
    assert plan["long"] > plan.get("short", 0)


def test_a_tenants_weight_does_too() -> None:
    jobs = (timed("a", tenant="heavy"), timed("b", tenant="light"))
    plain = ClusterView(at=60.0, nodes=nodes(4), jobs=jobs)
    weighted = replace(plain, tenants={"heavy": Tenant(id="heavy", weight=20.0)})
    even = counts(Castor().allocate(plain))
    uneven = counts(Castor().allocate(weighted))
    assert uneven["a"] > even["a"]


@pytest.mark.parametrize(
    "pieces", [MANY_JOBS, 0], ids=["one type", "where iterations are few"]
)
def test_a_deadline_that_presses_goes_before(
    pieces: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("coadapt.policies.castor.job_values.MANY_JOBS", pieces)
    # Alone, the late one needs about 530 s of the four GPUs, the other about 400 s.
    late = timed("late", target=2e6, deadline_at=700.0, gpus=(4, 4))
    other = timed("other", target=1.5e6, gpus=(4, 4))
    assert given(late, other) == {"late": 4}
    assert given(replace(late, spec=replace(late.spec, deadline_at=None)), other) == {
        "other": 4
    }


def test_an_untimed_job_starts_within_a_node_on_at_most_four() -> None:
    fresh = timed("fresh", gpus=(1, 64), by_type={}, grad=None, target=None)
    assert given(fresh, gpus=(8, 8)) == {"fresh": 4}


@pytest.mark.parametrize(
    ("unlike", "num_jobs", "times", "rho_max"),
    [
        (0.0, 8.0, 1.0, 2.0),
        (0.1, 8.0, 2.0, 5 / 3),
        (0.3, 8.0, 8.0, 1.0),
        (2.0, 3.0, 3.0, 1.0),
        (2.0, 0.5, 1.0, 1.0),
        (2.0, 900.0, 64.0, 1.0),
    ],
)
def test_the_last_end_and_fair_shares_weigh_more_where_gpus_differ(
    unlike: float, num_jobs: float, times: float, rho_max: float
) -> None:
    assert Castor().dials(30.0, unlike, num_jobs) == pytest.approx(
        (4.0 * times, 0.5, rho_max)
    )
    assert Castor().dials(0.0, unlike, num_jobs) == pytest.approx(
        (2.0 * times, 0.0, rho_max)
    )
    assert Castor(makespan_jobs=0.0, rho_max=0.0).dials(30.0, unlike, num_jobs) == (
        0.0,
        0.5,
        0.0,
    )


@pytest.mark.parametrize(
    ("num_rare", "times", "unlike"), [(2, 1.0, 0.0), (2, 3.0, 0.2), (4, 0.5, 1 / 3)]
)
def test_gpus_are_as_unlike_as_what_jobs_do_on_them(
    num_rare: int, times: float, unlike: float
) -> None:
    """Of ten or twelve GPUs some are so many times as fast: in logarithms, in the
    mean.
    """
    seen = beside_eight(num_rare, timed("x", gpus=(1, 1), by_type=faster_a(times)))
    fluid = gpu_curves(situation_of(seen), np.array([num_rare, 8]))
    assert fluid.unlike == pytest.approx(unlike * abs(np.log(times)))


@pytest.mark.parametrize("dial", ["makespan_jobs", "rho_max"])
def test_rounds_go_by_how_unlike_their_gpus_are(dial: str) -> None:
    jobs = [
        timed(f"j{number}", gpus=(1, 4), target=1e6 * number, by_type=faster_a(3.0))
        for number in range(1, 9)
    ]
    seen = beside_eight(2, *jobs)
    fluid = gpu_curves(situation_of(seen), np.array([2, 8]))
    over, _ = Silence().over(seen.at, seen.jobs)
    num_jobs = (1.0 - over) * len(jobs) + over * END_JOBS
    usual = Castor().dials(jobs[0].rescale_s, fluid.unlike, num_jobs)._asdict()
    plan = Castor().allocate(seen)
    assert Castor(**usual).allocate(seen).diagnostics == plan.diagnostics
    of_one_type = getattr(Castor().dials(jobs[0].rescale_s, 0.0, num_jobs), dial)
    assert (
        Castor(**{**usual, dial: of_one_type}).allocate(seen).diagnostics
        != plan.diagnostics
    )


@pytest.mark.parametrize(("times", "rate"), [(0.5, 1.0), (1.0, 1.0), (3.0, 1.4)])
def test_an_equal_share_is_of_every_type_or_of_the_commonest(
    times: float, rate: float
) -> None:
    """A fifth of the GPUs are so many times as fast: a job's clock runs at what it has
    on all in turns, or at what it has on the others alone if that is more.
    """
    seen = beside_eight(2, timed("x", gpus=(1, 1), target=1e6, by_type=faster_a(times)))
    now = situation_of(seen)
    fair, _ = FairClocks().moved(seen.at, now, np.array([2, 8]))
    assert fair.gpus == [1]
    assert fair.goodput == now.goodput_JC[0, now.configs.type_C == 1].max()
    takes_s = 1e6 / (rate * fair.goodput[0]) + 0.5 * ROUND_S + now.rescale_s[0]
    assert fair.takes_s[0] == pytest.approx(takes_s)


def test_later_it_gets_at_most_four_times_what_it_was_timed_on() -> None:
    assert given(timed("alone", gpus=(1, 64)), gpus=(4,) * 16)["alone"] <= 16


def test_a_change_must_pay() -> None:
    held = timed("held", target=1e6, progress=9.99e5, held=on(n0=2))
    seen = view(nodes(4), replace(held, rescale_s=300.0))
    assert counts(Castor().allocate(seen)) == {"held": 2}
    longer = replace(timed("held", target=1e8, held=on(n0=2)), rescale_s=1.0)
    assert counts(Castor().allocate(view(nodes(4), longer))) == {"held": 4}


def test_a_frozen_job_that_runs_is_never_stopped() -> None:
    frozen = timed(
        "frozen",
        gpus=(1, 4),
        contract=RescaleContract.FROZEN,
        held=on(n0=3),
        target=1e9,
    )
    plan = Castor().allocate(view(nodes(4), frozen, timed("short", target=1e3)))
    assert counts(plan) == {"frozen": 3, "short": 1}
    assert "frozen" in plan.reasons["frozen"]


def test_a_job_that_is_late_by_its_fair_clock_gets_its_share_reserved() -> None:
    short = [timed(f"short{number}", target=3e4, at=3_000.0) for number in range(3)]
    old = timed("old", target=1e7, at=0.0)
    seen = ClusterView(at=4_000.0, nodes=nodes(4), jobs=(old, *short))
    assert counts(Castor(makespan_jobs=0.0).allocate(seen)).get("old", 0) == 0
    assert counts(Castor(makespan_jobs=0.0, rho_max=0.9).allocate(seen))["old"] >= 1


def test_a_job_gets_gpus_before_it_reaches_its_limit() -> None:
    """Without a limit, the shorter of two jobs gets all GPUs. With one, the old job
    gets some before the limit is reached.
    """
    old = timed("old", target=2e7, at=0.0)
    short = timed("short", target=3e6, at=20_000.0)
    seen = ClusterView(at=20_000.0, nodes=nodes(4), jobs=(old, short))
    now = situation_of(seen)
    fair_now, _ = FairClocks().moved(20_000.0, now, np.array([4]))
    assert fair_now.least.max() < 3.0
    plain, fair = (
        counts(Castor(rho_max=limit, tail=0.0).allocate(seen)) for limit in (0.0, 3.0)
    )
    assert plain == {"short": 4}
    assert fair["old"] > 0


@pytest.mark.parametrize(("times", "gets_type"), [(0.5, "b"), (1.5, "a"), (4.0, "a")])
def test_a_late_job_gets_its_share_of_the_commonest_type_or_as_much_of_another(
    times: float, gets_type: str
) -> None:
    """Two GPUs of type b are its share. Those of the rarer a do as well unless they are
    slower.
    """
    by_type = faster_a(times)
    late = timed("late", gpus=(1, 4), target=1e9, at=0.0, by_type=by_type)
    new = [
        timed(f"j{number}", gpus=(4, 4), target=1e4, at=5e5, by_type=by_type)
        for number in range(3)
    ]
    seen = view(
        (*nodes(2, kind="a", name="a"), *nodes(4, 4, kind="b", name="b")),
        late,
        *new,
        at=5e5,
    )
    now = situation_of(seen)
    fair, _ = FairClocks().moved(5e5, now, np.array([2, 8]))
    on_b = (now.configs.type_C == 1) & (now.configs.gpus_C == 2)
    assert (fair.gpus[0], fair.goodput[0]) == (2, now.goodput_JC[0, on_b].max())
    held = Castor(rho_max=0.9).allocate(seen).allocations["late"]
    assert {node[0] for node, _ in held.slots} == {gets_type}
    columns = np.flatnonzero(now.configs.type_C == "ab".index(gets_type))
    goodput = dict(
        zip(
            now.configs.gpus_C[columns].tolist(),
            now.goodput_JC[0, columns].tolist(),
            strict=True,
        )
    )
    assert goodput[held.num_replicas] >= fair.goodput[0]


def test_a_fair_share_goes_before_the_reservation_of_a_gang() -> None:
    old = timed("old", target=1e7, at=0.0)
    pressing = timed(
        "pressing", gpus=(4, 4), target=3e4, at=3_990.0, deadline_at=3_995.0
    )
    seen = ClusterView(at=4_000.0, nodes=nodes(4), jobs=(old, pressing))
    assert counts(Castor().allocate(seen)) == {"pressing": 4}
    assert counts(Castor(rho_max=0.9).allocate(seen)).get("old", 0) >= 2


def test_fair_shares_bound_what_is_lost() -> None:
    """The guarantee, simulated: n jobs stay, each late job gets its share, the quotient
    rises no more.
    """
    clocks = FairClocks()
    at = 0.0
    step = 60.0
    done = {f"j{number}": 0.0 for number in range(4)}
    ends: dict[str, float] = {}
    whole = 2e5
    while len(ends) < 4 and at < 1e5:
        jobs = [
            timed(name, progress=min(amount, whole * 0.999), target=whole)
            for name, amount in done.items()
        ]
        seen = view(nodes(4), *jobs, at=at)
        now = situation_of(seen)
        fair, clocks = clocks.moved(at, now, np.array([4]))
        late_J = fair.least >= 1.0
        alone_J = now.goodput_JC[:, now.configs.gpus_C == 1][:, 0]
        for row, each in enumerate(now.jobs):
            served = (
                late_J[row] or each.id == "j0"
            )  # greed: all but the reserved shares goes to j0
            done[each.id] += step * float(alone_J[row]) * served
            if done[each.id] >= whole and each.id not in ends:
                ends[each.id] = at + step
        at += step
    fair_s = ends["j0"]
    assert max(ends.values()) <= 1.0 * fair_s + 30.0 + 20 * step


def test_reasons_say_when_a_job_ends_and_what_more_gpus_are_worth() -> None:
    policy = Castor()
    jobs = timed("a"), timed("b")
    why = policy.allocate(view(nodes(4), *jobs)).reasons["a"]
    assert re.search(r"; about \d+ (s|min|h) .*left at its measured speed; ", why)
    assert re.search(
        r"; \d more GPUs? would (not end it sooner|end it (in about|\d+ s sooner))", why
    )
    policy._kept.state = learned(policy._kept.state)
    why = policy.allocate(view(nodes(4), *jobs, at=30.0)).reasons["a"]
    assert re.search(r"; ends in about .* \(90 %: .* to .*\); ", why)
    assert (
        policy.predictions["a"].low_at
        < policy.predictions["a"].end_at
        < policy.predictions["a"].high_at
    )


def learned(state: State) -> State:
    """Return the state after twenty ends and starts that came when they were
    predicted.
    """
    errors = ((600.0, 0.0),) * ERRORS_MIN
    return replace(
        state,
        predictions=replace(state.predictions, errors=errors),
        starts=replace(state.starts, errors=errors),
    )


def test_a_start_is_predicted_until_its_interval_has_passed() -> None:
    policy = Castor(expect=False)
    running = timed("running", gpus=(4, 4), target=1e5, held=on(n0=4))
    waits = timed("waits", gpus=(4, 4), target=1e7, at=10.0)
    policy._kept.state = learned(policy._kept.state)
    first = policy.allocate(view(nodes(4), running, waits, at=60.0))
    assert re.search(r"starts (soon|in about)", first.reasons["waits"])
    assert "90 %: " in first.reasons["waits"]
    passed = policy.starts["waits"].high_at + 60.0
    late = policy.allocate(view(nodes(4), running, waits, at=passed))
    assert late.reasons["waits"] == ""


def test_no_start_is_predicted_where_the_quota_forbids_it() -> None:
    policy = Castor()
    policy._kept.state = learned(policy._kept.state)
    poor = job("poor", tenant="t")
    plan = policy.allocate(view(nodes(1), poor, quotas={"t": 0}))
    assert plan.reasons["poor"] == ""


def test_the_diagnostics_have_the_gap_of_the_round() -> None:
    plan = Castor().allocate(
        view(nodes(4, 4), *(timed(f"j{number}") for number in range(6)))
    )
    assert plan.diagnostics["gap"] == pytest.approx(0.0, abs=1e-9)
    assert plan.diagnostics["objective"] <= plan.diagnostics["bound"] + 1e-12
    assert plan.diagnostics["price"] > 0.0


def test_each_job_goes_to_the_gpu_type_where_it_gains_most() -> None:
    batch = BatchLimits(initial=64, max_total=64, min_atomic=8)
    params = timed("x").measured.by_type["gpu"]
    quick = replace(params, params=replace(params.params, alpha_c=0.005, beta_c=0.0001))
    same = replace(params, params=replace(params.params, alpha_c=0.045))
    picky = timed("picky", gpus=(1, 1), batch=batch, by_type={"a": params, "b": quick})
    easy = timed("easy", gpus=(1, 1), batch=batch, by_type={"a": params, "b": same})
    cluster = (*nodes(1, kind="a", name="a"), *nodes(1, kind="b", name="b"))
    plan = Castor().allocate(view(cluster, easy, picky))
    assert plan.allocations["picky"].slots == (("b0", 1),)
    assert plan.allocations["easy"].slots == (("a0", 1),)


def two_types(fast: TypeProfile, *, moved: bool) -> tuple[ClusterView, JobView]:
    """Return a cluster of two types, and a job that was timed on 4 GPUs of a, and holds
    them if it moved.
    """
    held = on(a0=4)
    slow = timed("x").measured.by_type["gpu"]
    one = timed(
        "x",
        gpus=(4, 4),
        target=1e8,
        held=held if moved else WAITING,
        by_type={"a": slow, "b": fast},
    )
    return view(
        (*nodes(4, kind="a", name="a"), *nodes(4, kind="b", name="b")), one
    ), one


def test_the_reason_names_a_new_gpu_type() -> None:
    slow = timed("x").measured.by_type["gpu"]
    fast = replace(slow, params=replace(slow.params, alpha_c=0.001, beta_c=0.0001))
    for moved, said in (
        (True, "moves with its 4 GPUs from a to b; "),
        (False, "starts on 4 GPUs of b; "),
    ):
        seen, one = two_types(fast, moved=moved)
        assert Castor().allocate(seen).reasons[one.id].startswith(said)


def test_gpus_of_a_type_that_was_timed_alone_do_not_synchronise_for_free() -> None:
    """A fit to one GPU knows no link: synchronisation takes what it does where the job
    trained on several.
    """
    known = timed("x").measured.by_type["gpu"]
    linked = replace(known, params=replace(known.params, alpha_r=1.0, alpha_n=1.0))
    alone = replace(
        known,
        num_replicas_profiled=1,
        params=replace(known.params, alpha_r=0.0, alpha_n=0.0),
    )
    found = {}
    for name, types in (
        ("alone", {"a": linked, "b": alone}),
        ("both", {"a": linked, "b": linked}),
    ):
        one = timed("x", gpus=(1, 4), by_type=types)
        seen = view((*nodes(4, kind="a", name="a"), *nodes(4, kind="b", name="b")), one)
        found[name] = situation_of(seen).goodput_JC
    assert found["alone"].tolist() == found["both"].tolist()


def test_large_rounds_stay_lawful_and_near_the_bound() -> None:
    rng = np.random.default_rng(0)
    jobs = [
        timed(f"j{number:03d}", target=float(rng.lognormal(13.0, 1.5)), gpus=(1, 64))
        for number in range(300)
    ]
    plan = Castor().allocate(view(nodes(*[8] * 32), *jobs))
    assert sum(counts(plan).values()) == 256
    assert plan.diagnostics["gap"] < 0.01


def test_a_job_whose_rescales_take_long_moves_too_where_gpus_are_free() -> None:
    held = timed("slow to move", target=1e9, held=on(n0=1))
    assert given(replace(held, rescale_s=250.0)) == {"slow to move": 4}
    # One that is nearly done does not.
    assert given(
        replace(
            held, rescale_s=250.0, measured=replace(held.measured, progress_target=1e4)
        )
    ) == {"slow to move": 1}


def test_nodes_that_come_and_go_are_seen_in_the_next_round() -> None:
    policy = Castor()
    jobs = (timed("a", target=1e8, gpus=(8, 8)), timed("b", target=1e8, gpus=(4, 4)))
    assert counts(policy.allocate(view(nodes(4, 4, 4), *jobs))) == {"a": 8, "b": 4}
    assert counts(policy.allocate(view(nodes(4), *jobs))) == {"b": 4}
    # And what frozen jobs hold is not given twice.
    ice = timed("ice", contract=RescaleContract.FROZEN, gpus=(4, 4), held=on(n1=4))
    plan = policy.allocate(view(nodes(4, 4), jobs[1], ice))
    assert {
        name: allocation.slots for name, allocation in plan.allocations.items()
    } == {
        "b": (("n0", 4),),
        "ice": (("n1", 4),),
    }


def on_type_a(name: str, held: Allocation = WAITING, target: float = 1e6) -> JobView:
    """Return a job of four GPUs of type a."""
    one = timed(name, gpus=(4, 4), target=target, held=held, by_type=faster_a(1.0))
    return replace(
        one,
        spec=replace(one.spec, replicas=replace(one.spec.replicas, gpu_types=("a",))),
    )


def test_ends_are_predicted_by_the_gpu_type_of_the_job() -> None:
    one = timed("x", gpus=(4, 4), by_type=faster_a(1.0), held=on(b0=4))
    beside_one_a = Castor(expect=False)
    alone = Castor(expect=False)
    beside_one_a.allocate(beside_eight(1, one))
    alone.allocate(view(nodes(4, 4, kind="b", name="b"), one))
    assert beside_one_a.predictions["x"].end_at == pytest.approx(
        alone.predictions["x"].end_at, rel=0.02
    )


def test_a_job_for_one_gpu_type_is_predicted_to_wait_for_that_type() -> None:
    """Eight GPUs of another type are free all the time, which were taken for those that
    it waits for.
    """
    policy = Castor(expect=False, makespan_jobs=0.0)
    plan = policy.allocate(
        beside_eight(4, on_type_a("runs", on(a0=4)), on_type_a("waits", target=4e6))
    )
    assert counts(plan) == {"runs": 4}
    assert policy.starts["waits"].end_at == pytest.approx(
        policy.predictions["runs"].end_at, rel=0.05
    )


def test_a_job_that_is_expected_in_part_counts_in_part() -> None:
    """In the sum of completion times, and for the last end."""
    seen = beside_eight(
        4, *[on_type_a(f"j{number}", target=1e6) for number in range(3)]
    )
    now = situation_of(seen)
    fluid = gpu_curves(now, np.array([4, 8]))
    part = Expected(fluid.jobs, 0.25 * now.left, np.array([40.0, 80.0, 120.0]), 0.25)
    never_J = np.full(3, np.inf)
    fluid_jobs = _fluid_jobs(now, fluid, part)
    goal = _objective(now, part, Aims(0.0, 0.0, never_J, never_J))
    assert goal.weight_J.tolist() == [1.0] * 3 + [0.25] * 3
    assert goal.chance_J.tolist() == [1.0] * 3 + [0.25] * 3
    assert fluid_jobs.arrives_P[3:6].tolist() == [40.0, 80.0, 120.0]


def test_on_several_gpu_types_all_of_two_hours_are_expected_until_nobody_comes_any_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[tuple[bool, bool]] = []
    as_it_is = Arrivals.expected

    def expected(self: Arrivals, at: float, *, in_part: bool, over: float) -> Expected:
        found = as_it_is(self, at, in_part=in_part, over=over)
        asked.append((in_part, len(found.left_J) == 0))
        return found

    monkeypatch.setattr(Arrivals, "expected", expected)
    jobs = [
        timed(f"j{number}", target=1e7, at=60.0 * number, by_type=faster_a(3.0))
        for number in range(60)
    ]
    several = Castor()
    one_type = Castor()
    for at in (3_600.0, 8_000.0):
        several.allocate(replace(beside_eight(4, *jobs), at=at))
        one_type.allocate(view(nodes(4, 4, kind="b", name="b"), *jobs, at=at))
    assert asked == [(True, False), (False, False), (True, True), (False, False)]
    assert one_type._kept.state.silence.came == {}


def test_a_gpu_type_that_is_lost_takes_the_expected_jobs_along() -> None:
    policy, stays = (
        Castor(),
        timed("stays", gpus=(4, 4), target=1e8, by_type=faster_a(1.0)),
    )
    gone = [on_type_a(f"gone{number}") for number in range(4)]
    for at, jobs in ((0.0, [stays, *gone]), (60.0, [stays])):
        policy.allocate(replace(beside_eight(4, *jobs), at=at))
    without_a = view(nodes(4, 4, kind="b", name="b"), stays, at=120.0)
    assert counts(policy.allocate(without_a)) == {"stays": 4}
    arrivals = policy._kept.state.arrivals
    assert list(arrivals.recent) == ["stays"], "its curves are of other GPU types"
    assert counts(policy.allocate(replace(beside_eight(4, stays), at=180.0))) == {
        "stays": 4
    }


def test_predicted_starts_learn_from_past_errors() -> None:
    """Jobs that wait for one that holds all GPUs; of those that were taken back nothing
    is learned.
    """
    policy = Castor(expect=False)
    running = timed("running", gpus=(4, 4), target=1e5, held=on(n0=4))
    waits = timed("waits", gpus=(4, 4), target=1e7, at=10.0)
    first = policy.allocate(view(nodes(4), running, waits, at=60.0))
    assert counts(first) == {"running": 4}
    said = policy.starts["waits"]
    assert said.low_at <= said.end_at <= said.high_at
    assert "start" not in first.reasons["waits"], "nothing is known of past starts"
    policy.allocate(view(nodes(4), running, at=120.0))
    assert not policy.starts
    assert not policy._kept.state.starts.errors
    policy.allocate(view(nodes(4), running, waits, at=180.0))
    policy.allocate(view(nodes(4), waits, at=900.0))
    assert not policy.starts
    assert len(policy._kept.state.starts.errors) == 1
    said_s, log_ratio = policy._kept.state.starts.errors[0]
    assert said_s == pytest.approx(said.end_at - 60.0, rel=0.5)
    assert log_ratio > 0.0  # it waited for 12 minutes
