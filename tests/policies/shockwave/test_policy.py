"""Shockwave in rounds: windows, what follows a change of jobs, what it tells, what it
survives.
"""

import pickle
import time
from dataclasses import replace

import pytest

from coadapt.model import (
    Allocation,
    BatchConfig,
    BatchLimits,
    BatchMode,
    ClusterView,
    Forecast,
    Grant,
    JobSpec,
    JobView,
    Measured,
    ReplicaLimits,
    RescaleContract,
)
from coadapt.policies import create_policy
from coadapt.policies.checks.contract import check_policy
from coadapt.policies.predictors.dirichlet import Phase, Rule
from coadapt.policies.shockwave.forecasts import Ledger
from coadapt.policies.shockwave.policy import Shockwave
from tests.policies.stage import nodes, view

ROUND_S = 120.0
MODES = (BatchMode(total=32, epoch_s=60.0), BatchMode(total=64, epoch_s=30.0))


def paced(
    name: str,
    *,
    gpus: int = 1,
    done: float = 0.0,
    total: int = 32,
    epochs: int = 20,
    submitted: float = 0.0,
) -> JobView:
    """Return a job of `epochs` epochs of 1,000 samples, `done` of them over, now at
    batch `total`.
    """
    spec = JobSpec(
        name=name,
        batch=BatchLimits(initial=32, max_total=64),
        replicas=ReplicaLimits(min=gpus, max=gpus),
        contract=RescaleContract.SELF,
    )
    left_s = (epochs - done) * 30.0
    measured = Measured(
        progress=1000.0 * done,
        progress_target=1000.0 * epochs,
        batch=BatchConfig(total=total, atomic=total // gpus),
        forecast=Forecast(
            remaining_steps=left_s,
            step_time_s=(1.0,) * gpus,
            num_epochs=epochs,
            modes=MODES,
        ),
    )
    return JobView(id=name, spec=spec, submitted_at=submitted, measured=measured)


def at_round(number: int, *jobs: JobView, gpus: int = 2) -> ClusterView:
    return view(nodes(gpus), *jobs, at=number * ROUND_S)


def test_it_keeps_the_contract() -> None:
    Shockwave().allocate(at_round(0, paced("compiles the kernels")))
    check_policy(Shockwave, cases=20, seed=1, timer=time.process_time)


def test_a_window_is_planned_when_a_job_comes_and_every_so_many_rounds() -> None:
    policy = Shockwave(replan_rounds=3)
    jobs = [paced(f"job-{n}") for n in range(3)]
    solved = [
        policy.allocate(at_round(number, *jobs)).diagnostics["solved"]
        for number in range(1, 7)
    ]
    assert solved == [1, 1, 3, 3, 3, 6]
    after = policy.allocate(at_round(7, *jobs, paced("new"))).diagnostics["solved"]
    assert after == 7


def test_rounds_of_a_window_share_what_one_round_cannot() -> None:
    """Three equal jobs on two GPUs: each runs in about two thirds of the rounds."""
    policy = Shockwave(num_rounds=12, replan_rounds=12)
    jobs = [paced(f"job-{n}", epochs=40) for n in range(3)]
    runs = {job.id: 0 for job in jobs}
    for number in range(12):
        for job in policy.allocate(at_round(number, *jobs)).allocations:
            runs[job] += 1
    assert sum(runs.values()) == 24
    assert max(runs.values()) - min(runs.values()) <= 1


def test_every_job_is_told_where_the_window_has_it() -> None:
    policy = Shockwave(num_rounds=10)
    jobs = [paced(f"job-{n}") for n in range(3)]
    plan = policy.allocate(at_round(0, *jobs))
    assert sorted(plan.reasons) == ["job-0", "job-1", "job-2"]
    running = sorted(plan.allocations)
    waiting = [job for job in plan.reasons if job not in plan.allocations]
    assert all("of the next 10 rounds" in plan.reasons[job] for job in running)
    assert (
        "rounds from now" in plan.reasons[waiting[0]]
        or "round from now" in plan.reasons[waiting[0]]
    )


def test_a_job_of_unknown_length_gets_what_is_idle() -> None:
    unknown = replace(paced("unknown"), measured=Measured())
    plan = Shockwave().allocate(at_round(0, paced("known"), unknown))
    assert sorted(plan.allocations) == ["known", "unknown"]
    assert "its length is not known" in plan.reasons["unknown"]
    alone = Shockwave().allocate(at_round(0, paced("known"), unknown, gpus=1))
    assert sorted(alone.allocations) == ["known"]


def test_a_length_that_is_told_later_is_planned_with_from_then_on() -> None:
    """As of every live job, whose first report comes after its start: it failed with a
    KeyError.
    """
    policy = Shockwave(replan_rounds=50)
    silent = replace(paced("late"), measured=Measured())
    assert policy.allocate(at_round(1, silent)).diagnostics == {}
    told = policy.allocate(at_round(2, paced("late")))
    assert (told.diagnostics["solved"], list(told.allocations)) == (2, ["late"])
    assert policy.allocate(at_round(3, paced("late"))).diagnostics["solved"] == 2


def test_a_job_is_planned_once_nodes_are_there_for_it() -> None:
    policy = Shockwave(replan_rounds=50)
    wide = paced("wide", gpus=2)
    assert policy.allocate(at_round(1, wide, gpus=1)).diagnostics == {}
    assert policy.allocate(at_round(2, wide, gpus=2)).diagnostics["solved"] == 2
    lost = policy.allocate(at_round(3, wide, paced("narrow"), gpus=1))
    assert list(lost.allocations) == ["narrow"]
    assert sorted(
        policy.allocate(at_round(4, wide, paced("narrow"), gpus=3)).allocations
    ) == [
        "narrow",
        "wide",
    ]


def test_the_gap_to_the_bound_is_told_as_it_is() -> None:
    found = (
        Shockwave()
        .allocate(at_round(0, *(paced(f"job-{n}", gpus=1 + n % 2) for n in range(5))))
        .diagnostics
    )
    assert found["gap"] == pytest.approx(found["bound"] - found["objective"])
    assert found["gap"] >= 0.0


def test_equal_seeds_draw_equal_noise_and_state_survives_pickling() -> None:
    def plans(policy: Shockwave, numbers: range) -> list[object]:
        jobs = [paced(f"job-{n}", gpus=1 + n % 2, epochs=10 + n) for n in range(5)]
        return [
            policy.allocate(at_round(number, *jobs)).allocations for number in numbers
        ]

    one = Shockwave(seed=1, noise=0.1)
    same = Shockwave(seed=1, noise=0.1)
    assert plans(one, range(4)) == plans(same, range(4))
    copy = pickle.loads(pickle.dumps(one))
    assert plans(copy, range(4, 8)) == plans(one, range(4, 8))


def ledger(
    rule: Rule = Rule.RESTATEMENT,
    *,
    calibrate: bool = False,
    profiles: dict[str, tuple[int, ...]] | None = None,
) -> Ledger:
    return Ledger(
        rule=rule,
        calibrate=calibrate,
        whole_seconds=False,
        round_s=ROUND_S,
        profiles=profiles,
    )


def test_the_ledger_follows_modes_from_round_to_round() -> None:
    followed = ledger()
    followed.observe(at_round(0, paced("job")), 0)
    followed.observe(at_round(1, paced("job", done=2.5)), 1)
    followed.observe(at_round(2, paced("job", done=4.0, total=64)), 2)
    followed.observe(at_round(3, paced("job", done=8.0, total=64)), 3)
    record = followed._records["job"]
    assert record.phases == [Phase(0, 4), Phase(1, 4)]
    ahead = followed.ahead(paced("job", done=8.0, total=64))
    assert ahead is not None
    assert ahead.left_s == pytest.approx(12 * 30.0)  # the small batch has been left
    assert ahead.elapsed_s == pytest.approx(4 * 60.0 + 4 * 30.0)
    assert ahead.share == pytest.approx(8 / 20)


def test_counting_takes_a_job_that_grew_for_longer_than_restatement() -> None:
    left = {}
    for rule in Rule:
        followed = ledger(rule)
        for number, (done, total) in enumerate([(0.0, 32), (4.0, 64), (10.0, 64)]):
            followed.observe(
                at_round(number, paced("job", done=done, total=total)), number
            )
        ahead = followed.ahead(paced("job", done=10.0, total=64))
        assert ahead is not None
        left[rule] = ahead.left_s
    assert left[Rule.COUNTS] > left[Rule.RESTATEMENT] == pytest.approx(300.0)


def test_calibration_takes_waiting_for_a_wrong_profile() -> None:
    """As the released code does: a late job's first rate is taken back to instant 0."""
    factors = {}
    for calibrate in (False, True):
        followed = ledger(calibrate=calibrate)
        job = paced("late", epochs=4)
        held = replace(job, measured=replace(job.measured, step_time_s=1.92))
        running = replace(held, grant=Grant(allocation=Allocation(slots=(("n0", 1),))))
        followed.observe(at_round(100, running), 100)
        followed.ahead(running)
        factors[calibrate] = followed._records["late"].factor
    assert factors[False] == 1.0
    assert factors[True] > 1.4


def test_what_a_profile_says_is_believed_and_not_what_the_job_does() -> None:
    """As the released code does: 12 epochs of the small batch in the profile, though
    the job grew after 2.
    """
    profile = (32,) * 12 + (64,) * 8
    left = {}
    for told in (None, {"job": profile}):
        followed = ledger(Rule.COUNTS, profiles=told)
        for number, (done, total) in enumerate([(0.0, 32), (2.0, 64), (8.5, 64)]):
            followed.observe(
                at_round(number, paced("job", done=done, total=total)), number
            )
        ahead = followed.ahead(paced("job", done=8.5, total=64))
        assert ahead is not None
        left[told is None] = (ahead.left_s, ahead.elapsed_s, ahead.share)
    assert left[True][1:] == (pytest.approx(2 * 60.0 + 6 * 30.0), 8 / 20)
    assert left[False][1:] == (pytest.approx(8 * 60.0), 8 / 20)
    # By hand: 19 and 10 of 29, of 20 epochs, less the nine that are seen with the one
    # under way.
    few = 20 * 19 / 29 - 9
    many = 20 * 10 / 29
    assert left[False][0] == pytest.approx(
        (few * 60.0 + many * 30.0) * 12 / max(int(few + many + 1), 12)
    )


def test_a_profile_is_walked_to_the_phase_that_the_job_is_in() -> None:
    followed = ledger(Rule.COUNTS, profiles={"job": (32, 32, 64, 32)})
    expected = [
        ([], 0),
        ([Phase(0, 1)], 0),
        ([Phase(0, 2)], 1),
        ([Phase(0, 2), Phase(1, 1)], 0),
    ]
    for done, (phases, current) in enumerate(expected):
        followed.observe(at_round(done, paced("job", done=done, epochs=4)), done)
        record = followed._records["job"]
        assert (record.phases, record.current, record.done) == (phases, current, done)
    followed.observe(at_round(4, paced("job", done=4, epochs=4)), 4)
    ended = followed.ahead(paced("job", done=4, epochs=4))
    assert ended is not None
    assert (ended.left_s, ended.elapsed_s) == (1.0, 3 * 60.0 + 30.0)


def test_calibration_depends_on_how_often_it_is_done() -> None:
    """By hand: 3.75 samples per second held back over ten rounds are 4,500; the profile
    ends after 240 s.
    """
    factors = []
    for looks in (1, 2):
        followed = ledger(Rule.COUNTS, calibrate=True, profiles={"job": (32,) * 4})
        job = paced("job", epochs=4)
        held = replace(job, measured=replace(job.measured, step_time_s=32 / 3.75))
        running = replace(held, grant=Grant(allocation=Allocation(slots=(("n0", 1),))))
        followed.observe(at_round(10, running), 10)
        followed.ahead(running, looks)
        factors.append(followed._records["job"].factor)
    first = (4_000 + 960 / 60 * 1_000) / 4_500
    second = (4_000 + 960 / (60 * first) * 1_000) / 4_500
    assert factors == [pytest.approx(first), pytest.approx(second)]


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("round_s", 0.0),
        ("num_rounds", 0),
        ("replan_rounds", 0),
        ("makespan_weight", 0.0),
        ("noise", -1.0),
    ],
)
def test_bad_options_are_refused(option: str, value: float) -> None:
    with pytest.raises(ValueError, match=option):
        create_policy("shockwave", **{option: value})
    for profiles in (3, {"job": ()}):
        with pytest.raises(ValueError, match="profiles must be total batches"):
            create_policy("shockwave", profiles=profiles)
    with pytest.raises(
        ValueError, match="option rule: got 'guess'; allowed: counts, restatement"
    ):
        create_policy("shockwave", rule="guess")
