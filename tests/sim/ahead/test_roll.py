"""Forecasts: the core rolled forward from a live state; courses known by hand."""

import itertools
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from coadapt.core.commands import Solve
from coadapt.core.config import SchedulerConfig
from coadapt.core.events import JobSubmitted, NodeJoined
from coadapt.core.hindrances import Hindrances
from coadapt.core.lifecycle import JobState
from coadapt.core.scheduler import Scheduler
from coadapt.core.state import JobRecord, Order, Running, SchedulerState, Status
from coadapt.goodput.table import goodput_table
from coadapt.model import (
    Allocation,
    BatchConfig,
    BatchLimits,
    ClusterView,
    GradStats,
    Grant,
    InputError,
    JobSpec,
    Measured,
    Node,
    Plan,
    ReplicaLimits,
    RescaleContract,
    ThroughputParams,
    TypeProfile,
    Usage,
)
from coadapt.model.prices import Prices
from coadapt.policies import create_policy
from coadapt.policies.fifo import Fifo
from coadapt.runtime.memory_store import NullStore
from coadapt.runtime.ports import Post
from coadapt.runtime.runtime import Runtime
from coadapt.runtime.solver import InlineSolver
from coadapt.sim.ahead import estimate, remainder
from coadapt.sim.ahead import roll as roll_module
from coadapt.sim.ahead.arrivals import DAY_S, Arrivals, Submission
from coadapt.sim.ahead.estimate import Range, estimates
from coadapt.sim.ahead.forward_world import REPORT_S, START_S, ForwardWorld
from coadapt.sim.ahead.remainder import (
    EndedWork,
    Remainder,
    Source,
    Work,
    remainder_of,
)
from coadapt.sim.ahead.roll import Course, Question, TimeLimits, policy_now, roll
from coadapt.sim.ahead.scenario import Scenario
from coadapt.sim.clock import VirtualClock
from tests.policies.choices import short_choices

AT = 1_000.0
CONFIG = SchedulerConfig(round_s=60.0, reaction_s=0.0)
WORK = EndedWork(jobs=[Work("", 1, 4_000.0)])


@pytest.fixture(autouse=True)
def exact(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take what is left of jobs as it is, without an error."""
    for name in dir(remainder):
        if name.startswith("SPREAD_"):
            monkeypatch.setattr(remainder, name, 0.0)


def spec(name: str, gpus: int = 1, **fields: object) -> JobSpec:
    return JobSpec(
        name=name,
        batch=BatchLimits(initial=8, max_total=8),
        replicas=ReplicaLimits(min=gpus, max=gpus, requested=gpus),
        **fields,  # type: ignore[arg-type]
    )


def live_state(*jobs: tuple[str, JobSpec]) -> SchedulerState:
    """Return the state of a scheduler with four GPUs under which these jobs came."""
    clock = VirtualClock(0.0)
    scheduler = Scheduler(CONFIG)
    known: dict[str, Remainder] = {}
    world = ForwardWorld(clock, scheduler.state, known)
    runtime = Runtime(
        scheduler,
        clock=clock,
        executor=world,
        store=NullStore(),
        solver=InlineSolver(create_policy("fifo"), clock.now),
    )
    runtime.post(NodeJoined(at=0.0, node=Node(id="a", num_gpus=4)))
    for number, (name, each) in enumerate(jobs):
        record = JobRecord(id=name, spec=each, submitted_at=float(number))
        known[name] = remainder_of(record, scheduler.state.nodes, 0.0, EndedWork())
        world.expect(name, 1e9)
        clock.run(until=float(number))
        runtime.post(JobSubmitted(at=float(number), job=name, spec=each))
    clock.run(until=AT)
    scheduler.state.at = AT
    scheduler.state.config = CONFIG
    return scheduler.state


def asked(state: SchedulerState, **fields: object) -> Question:
    given: dict[str, object] = {"policy": "fifo", "ended": WORK, **fields}
    return Question(state=state, at=AT, **given)  # type: ignore[arg-type]


def test_two_jobs_that_do_not_fit_run_one_after_the_other() -> None:
    state = live_state(("wide", spec("wide", 4)), ("next", spec("next", 2)))
    course = roll(asked(state), seed=0)
    # It has held 4 GPUs for 1,000 s, as long as the job that ended took: it is taken to
    # need as much again.
    left = 4_000.0
    assert course.starts_s["wide"] == 0.0
    assert course.ends_s["wide"] == pytest.approx(left / 4, rel=1e-6)
    assert course.starts_s["next"] == pytest.approx(course.ends_s["wide"], abs=1.0)
    took = course.ends_s["next"] - course.starts_s["next"]
    assert took == pytest.approx(START_S + 4_000.0 / 2, rel=1e-6)


def test_the_live_state_is_left_as_it_is() -> None:
    state = live_state(("wide", spec("wide", 4)), ("next", spec("next", 2)))
    before = {job.id: (job.status, job.order, job.spec) for job in state.active}
    scenario = Scenario(priorities={"next": 9}, nodes=1, first=("next",))
    roll(asked(state, scenario=scenario), seed=0)
    assert {job.id: (job.status, job.order, job.spec) for job in state.active} == before
    assert list(state.nodes) == ["a"]
    assert state.at == AT


def test_more_nodes_start_a_waiting_job_at_once() -> None:
    state = live_state(("wide", spec("wide", 4)), ("next", spec("next", 2)))
    course = roll(asked(state, scenario=Scenario(nodes=1)), seed=0)
    assert course.starts_s["next"] == 0.0
    some = roll(asked(state, scenario=Scenario(gpus=2)), seed=0)
    assert some.starts_s["next"] == 0.0
    few = roll(asked(state, scenario=Scenario(gpus=1)), seed=0)
    assert few.starts_s["next"] > 0.0


def test_without_a_job_the_next_one_starts_at_once() -> None:
    state = live_state(("wide", spec("wide", 4)), ("next", spec("next", 2)))
    course = roll(asked(state, scenario=Scenario(without=("wide",))), seed=0)
    assert "wide" not in course.ends_s
    assert course.starts_s["next"] == pytest.approx(0.0, abs=1.0)


def test_a_quota_keeps_a_job_waiting() -> None:
    state = live_state(
        ("mine", spec("mine", 2, tenant="t")), ("next", spec("next", 2, tenant="t"))
    )
    free = roll(asked(state), seed=0)
    assert free.starts_s["next"] == 0.0
    state = live_state(("mine", spec("mine", 2, tenant="t")))
    new = {"new": spec("new", 2, tenant="t")}
    barred = roll(asked(state, scenario=Scenario(quotas={"t": 2}, submit=new)), seed=0)
    assert barred.starts_s["new"] == pytest.approx(barred.ends_s["mine"], abs=1.0)
    allowed = roll(asked(state, scenario=Scenario(submit=new)), seed=0)
    assert allowed.starts_s["new"] == 0.0


def test_a_course_ends_once_only_jobs_are_left_that_cannot_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else each of a hundred courses would play 14 days of rounds of which none changes
    anything.
    """
    asked_for: list[int] = []
    allocate = InlineSolver.__call__

    def counted(self: InlineSolver, command: Solve, post: Post) -> None:
        asked_for.append(command.round)
        allocate(self, command, post)

    state = live_state(
        ("mine", spec("mine", 2)), ("barred", spec("barred", 2, tenant="t"))
    )
    monkeypatch.setattr(InlineSolver, "__call__", counted)
    course = roll(asked(state, scenario=Scenario(quotas={"t": 1})), seed=0)
    assert "mine" in course.ends_s
    assert "barred" not in course.ends_s
    assert len(asked_for) < course.ends_s["mine"] / CONFIG.round_s + 100


def test_a_job_that_came_first_goes_first() -> None:
    state = live_state(
        ("wide", spec("wide", 4)), ("one", spec("one", 4)), ("two", spec("two", 4))
    )
    now = roll(asked(state), seed=0)
    assert now.starts_s["one"] < now.starts_s["two"]
    then = roll(asked(state, scenario=Scenario(first=("two",))), seed=0)
    assert then.starts_s["two"] < then.starts_s["one"]


def test_another_policy_decides_otherwise() -> None:
    state = live_state(("wide", spec("wide", 4)), ("next", spec("next", 1)))
    fifo = roll(asked(state), seed=0)
    assert fifo.starts_s["next"] > 0.0
    # Least attained service first: the new one preempts.
    las = roll(asked(state, scenario=Scenario(policy="las")), seed=0)
    assert las.starts_s["next"] < fifo.starts_s["next"]


def test_jobs_that_come_later_take_their_part() -> None:
    """They have the whole cluster before a job that came earlier, under a policy that
    prefers new ones.
    """
    state = live_state(("old", spec("old", 4)))
    state.at = DAY_S
    coming = [
        Submission(at=number * 600.0, spec=spec("new", 4), gpu_s=2_000.0)
        for number in range(12)
    ]
    arrivals = Arrivals(since=0.0, submissions=coming)
    question = Question(state=state, at=DAY_S, policy="las", ended=WORK)
    alone = roll(question, seed=0)
    among = roll(replace(question, arrivals=arrivals), seed=0)
    assert alone.ends_s["old"] + 500.0 < among.ends_s["old"]
    # Of them nothing is asked.
    assert list(among.ends_s) == list(among.starts_s) == ["old"]


def test_the_cost_of_a_course_is_that_of_the_gpus_held() -> None:
    state = live_state(("wide", spec("wide", 4)), ("next", spec("next", 2)))
    assert roll(asked(state), seed=0).cost == 0.0
    state.prices = Prices(currency="EUR", default=3.0)
    course = roll(asked(state), seed=0)
    held_gpu_s = 4 * course.ends_s["wide"]
    held_gpu_s += 2 * (course.ends_s["next"] - course.starts_s["next"])
    assert course.cost == pytest.approx(3.0 * held_gpu_s / 3_600.0, rel=1e-3)


def test_a_course_tells_no_job_why_it_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    looked_at: list[float] = []

    class Counted(Hindrances):
        def __init__(self, view: ClusterView, *given: Any) -> None:
            looked_at.append(view.at)
            super().__init__(view, *given)

    monkeypatch.setattr("coadapt.core.scheduler.Hindrances", Counted)
    state = live_state(("wide", spec("wide", 4)), ("next", spec("next", 2)))
    looked_at.clear()
    roll(asked(state), seed=0)
    assert looked_at
    assert max(looked_at) <= AT + 2 * CONFIG.round_s


@pytest.mark.parametrize(
    ("scenario", "named"),
    [
        (Scenario(nodes=-1), "--nodes"),
        (Scenario(without=("nobody",)), "nobody"),
        (Scenario(priorities={"nobody": 1}), "nobody"),
    ],
)
def test_a_scenario_that_does_not_fit_is_refused(
    scenario: Scenario, named: str
) -> None:
    state = live_state(("wide", spec("wide", 4)))
    with pytest.raises(InputError, match=named):
        roll(asked(state, scenario=scenario), seed=0)


# -- what is left of a job -------------------------------------------------------------


NODES = {"a": Node(id="a", num_gpus=4)}


def record(measured: Measured, gpu_s: float = 100.0) -> JobRecord:
    job = JobRecord(id="j", spec=spec("j"), submitted_at=0.0)
    job.measured = measured
    job.usage = Usage(attained_service_gpu_s=gpu_s, accounted_at=0.0)
    return job


def test_progress_at_its_mean_speed() -> None:
    found = remainder_of(
        record(Measured(progress=25.0, progress_target=100.0)), NODES, 0.0, EndedWork()
    )
    assert (found.source, found.draws) == (Source.MEAN_SPEED, (300.0,))


def training(measured: Measured, since: float, reported_at: float) -> JobRecord:
    """Return a job on two GPUs, which it has held since `since` (s)."""
    job = record(measured, gpu_s=0.0)
    grant = Grant(allocation=Allocation(slots=(("a", 2),)))
    job.usage = Usage(accounted_at=since, started_at=since)
    job.status = Status(state=JobState.RUNNING)
    job.order = Order(generation=1, grant=grant)
    job.running = Running(
        generation=1, grant=grant, since=since, reported_at=reported_at
    )
    return job


def test_a_mean_speed_is_that_of_training_and_not_of_its_start() -> None:
    job = training(
        Measured(progress=25.0, progress_target=100.0), since=0.0, reported_at=150.0
    )
    job.usage = job.usage.after_cost(1, 50.0, {})
    # A quarter took 100 s on 2 GPUs. Of the 300 s after the report 10 have passed.
    found = remainder_of(job, NODES, 160.0, EndedWork())
    assert (found.source, found.draws) == (Source.MEAN_SPEED, (580.0,))


def test_a_present_speed_grows_with_the_noise() -> None:
    measured = Measured(
        progress=1_000.0,
        progress_target=9_000.0,
        step_time_s=1.0,
        batch=BatchConfig(total=80, atomic=40, accumulation=0),
        grad=GradStats(sqr=1.0, var=1.0),
    )
    job = training(measured, since=0.0, reported_at=100.0)
    found = remainder_of(job, NODES, 110.0, EndedWork())
    assert found.source is Source.PRESENT_SPEED
    scale = 80 / job.spec.batch.initial
    slowest = 2.0 / (1.0 + scale)
    for draw in found.draws:
        assert 2 * (8_000 / 80 - 10) < draw < 2 * (8_000 / (80 * slowest) - 10)
    assert list(found.draws) == sorted(found.draws, reverse=True)
    # Where efficiency is 1 there is nothing to gain.
    same = replace(
        measured,
        batch=BatchConfig(
            total=job.spec.batch.initial,
            atomic=job.spec.batch.initial // 2,
            accumulation=0,
        ),
    )
    found = remainder_of(
        training(same, since=0.0, reported_at=100.0), NODES, 110.0, EndedWork()
    )
    expected = 2 * (8_000 / job.spec.batch.initial - 10)
    assert found.draws == pytest.approx([expected] * len(found.draws))


def test_a_stopped_job_has_the_speed_of_its_last_report() -> None:
    measured = Measured(
        progress=1_000.0,
        progress_target=9_000.0,
        step_time_s=2.0,
        # Three GPUs, and a last shard that is smaller.
        batch=BatchConfig(total=100, atomic=20, accumulation=1),
        grad=GradStats(sqr=0.0, var=1.0),
    )
    job = record(measured, gpu_s=50_000.0)
    # The time since it was stopped is no training.
    found = remainder_of(job, NODES, 40_000.0, EndedWork())
    assert found.source is Source.PRESENT_SPEED
    expected = 3 * 8_000 / 50.0
    assert found.draws == pytest.approx([expected] * len(found.draws))


def test_a_share_that_a_script_reports() -> None:
    told = Measured(metrics={"progress_percentage": 50.0})
    found = remainder_of(record(told), NODES, 0.0, EndedWork())
    assert (found.source, found.draws) == (Source.MEAN_SPEED, (100.0,))


def test_like_jobs_that_needed_more_than_it_has_used() -> None:
    work = EndedWork(jobs=[Work("", 1, each) for each in (50.0, 150.0, 400.0)])
    found = remainder_of(record(Measured()), NODES, 0.0, work)
    assert (found.source, found.draws) == (Source.LIKE_OTHERS, (50.0, 300.0))


def test_jobs_of_its_application_say_how_long_it_is_else_those_of_its_size() -> None:
    many = [Work("yolo", 8, 9_000.0 + number) for number in range(remainder.ALIKE_MAX)]
    work = EndedWork(jobs=[*many, Work("bert", 1, 700.0), Work("gpt", 2, 800.0)])
    assert lengths(work, spec("a", application="bert"), 100.0) == [700.0]
    # No longer one of its application is known.
    assert 800.0 in lengths(work, spec("a", application="bert"), 750.0)
    wide = lengths(work, spec("a", 8), 100.0)
    assert sorted(wide) == [job.gpu_s for job in many]
    assert lengths(work, spec("a"), 100.0)[:2] == [700.0, 800.0]


def lengths(work: EndedWork, job: JobSpec, gpu_s: float) -> list[float]:
    return [each.gpu_s for each in work.longer_than(job, gpu_s)]


def test_what_others_needed_is_that_of_the_nearest_sizes() -> None:
    random = np.random.default_rng(3)
    jobs = [
        Work(str(random.choice(["", "bert"])), int(gpus), float(gpu_s))
        for gpus, gpu_s in zip(
            random.choice([1, 2, 3, 8], 200),
            random.lognormal(6.0, 2.0, 200),
            strict=True,
        )
    ]
    work = EndedWork(jobs=jobs)
    for gpus in (1, 2, 5):
        for used in (0.0, 400.0, 1e9):
            longer = [job for job in jobs if job.gpu_s > used]
            longer.sort(key=lambda job: abs(math.log(job.gpus / gpus)))
            expected = [job.gpu_s for job in longer[: remainder.ALIKE_MAX]]
            assert lengths(work, spec("a", gpus), used) == expected


@pytest.mark.parametrize(
    "contract", [RescaleContract.FIXED, RescaleContract.ADAPTIVE, RescaleContract.SELF]
)
def test_a_job_without_step_times_has_the_rate_of_the_table(
    contract: RescaleContract,
) -> None:
    limits = BatchLimits(initial=8, max_total=12, min_atomic=2)
    known = replace(
        record(Measured(progress=30.0)),
        spec=JobSpec(name="j", batch=limits, contract=contract),
    )
    found = remainder_of(known, NODES, 0.0, EndedWork())
    for count in (1, 2, 3, 4, 5, 6, 7, 9):
        allocation = Allocation(slots=(("a", count),))
        table = goodput_table([found.view], [1], [count], gpu_type="gpu")
        # A size that the batch forbids has the mean rate: 0.3 a GPU-second.
        expected = table.goodput_JC[0, 0] or 0.3 * count
        assert found.rate(allocation, NODES) == pytest.approx(expected)


TIMES = ThroughputParams(
    alpha_c=0.5, beta_c=0.0625, alpha_r=0.0, beta_r=0.0, alpha_n=0.0, beta_n=0.0
)
TIMED = Measured(
    progress=6_000.0,
    progress_target=6_400.0,
    by_type={"gpu": TypeProfile(params=TIMES, num_replicas_profiled=4)},
    grad=GradStats(sqr=1.0, var=0.0),
)


def test_a_job_like_one_that_ended_reports_what_that_one_did() -> None:
    """castor took each job that began in a future for one of unknown length."""
    work = EndedWork(jobs=[Work("", 1, 4_000.0, TIMED)])
    found = remainder_of(record(Measured(), gpu_s=0.0), NODES, 0.0, work)
    job, left = found.drawn(np.random.default_rng(0), 0.0, NODES)
    one = Allocation(slots=(("a", 1),))
    assert left / job.rate(one, NODES) == pytest.approx(4_000.0)
    assert job.view.measured.by_type == TIMED.by_type
    assert (job.view.measured.progress, job.view.measured.progress_target) == (0, left)


@pytest.mark.parametrize(
    ("own", "other"),
    [
        # It reports itself, without an end: no end will come.
        (Measured(progress=5.0, grad=GradStats(sqr=1.0, var=0.0)), TIMED),
        (Measured(), Measured(progress=6_000.0, progress_target=6_400.0)),
    ],
)
def test_other_jobs_report_no_more_than_they_did(
    own: Measured, other: Measured
) -> None:
    work = EndedWork(jobs=[Work("", 1, 4_000.0, other)])
    found = remainder_of(record(own, gpu_s=0.0), NODES, 0.0, work)
    job, _ = found.drawn(np.random.default_rng(0), 0.0, NODES)
    assert job.view.measured == own


ADAPTIVE = replace(
    spec("j", 4, application="bert", contract=RescaleContract.ADAPTIVE),
    batch=BatchLimits(initial=8, max_total=512),
)
NOISE_NOW = 0.1
NOISE_THEN = 10.0


def halfway() -> JobRecord:
    """Return an adaptive job that was timed and reports little noise, and an end."""
    job = record(TIMED)
    job.spec = ADAPTIVE
    job.measured = replace(
        TIMED, progress_target=50_000.0, grad=GradStats(sqr=2.0, var=2.0 * NOISE_NOW)
    )
    return job


def ended_with(noise: float, application: str = "bert") -> Work:
    grad = GradStats(sqr=0.5, var=0.5 * noise)
    return Work(application, 1, 4_000.0, replace(TIMED, grad=grad))


def test_the_noise_of_a_job_grows_to_that_with_which_jobs_like_it_ended() -> None:
    work = EndedWork(jobs=[ended_with(NOISE_THEN)])
    found = remainder_of(halfway(), NODES, AT, work)
    job, _ = found.drawn(np.random.default_rng(0), 0.0, NODES)
    for share, noise in ((0.5, 1.0), (1.0, NOISE_THEN)):
        # Halfway between the logarithms, and at the end.
        job = job.grown(share)
        grad = job.view.measured.grad
        assert grad is not None
        assert grad.var / grad.sqr == pytest.approx(noise)
    assert job.grown(0.999) is job


@pytest.mark.parametrize(
    "work",
    [
        EndedWork(),
        EndedWork(jobs=[ended_with(NOISE_THEN, "yolo")]),
        EndedWork(jobs=[Work("bert", 1, 4_000.0)]),
    ],
)
def test_without_a_past_the_noise_stays(work: EndedWork) -> None:
    found = remainder_of(halfway(), NODES, AT, work)
    job, _ = found.drawn(np.random.default_rng(0), 0.0, NODES)
    assert job.grown(1.0) is job


def test_a_job_is_faster_in_a_future_as_its_noise_grows() -> None:
    state = live_state(("j", ADAPTIVE))
    [job] = state.active
    job.measured = halfway().measured
    job.running = replace(job.running, reported_at=AT)
    work = EndedWork(jobs=[ended_with(NOISE_THEN)])
    grows = roll(asked(state, ended=work), seed=0).ends_s["j"]
    stays = roll(asked(state, ended=EndedWork()), seed=0).ends_s["j"]
    known, left = remainder_of(job, NODES, AT, work).drawn(
        np.random.default_rng(0), 0.0, NODES
    )
    num_parts = 1_000
    expected = 0.0
    for part in range(num_parts):
        known = known.grown((part + 0.5) / num_parts)
        expected += left / num_parts / known.rate(job.trains_on, NODES)
    assert grows == pytest.approx(expected, rel=0.03)
    assert grows < 0.9 * stays


def seen_by_the_policy(
    monkeypatch: pytest.MonkeyPatch, question: Question
) -> tuple[Course, list[ClusterView]]:
    """Return a course under fifo and the views of its rounds."""
    seen: list[ClusterView] = []

    class Recording(Fifo):
        def allocate(self, view: ClusterView) -> Plan:
            seen.append(view)
            return super().allocate(view)

    monkeypatch.setattr(roll_module, "create_policy", lambda _: Recording())
    return roll(question, seed=0), seen


def test_the_policy_learns_of_a_job_that_starts_what_it_reports(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    state = live_state(("wide", spec("wide", 4)), ("next", spec("next", 2)))
    work = EndedWork(jobs=[Work("", 1, 4_000.0, TIMED)])
    course, seen = seen_by_the_policy(monkeypatch, asked(state, ended=work))
    first = next(
        view.at - AT - course.starts_s["next"]
        for view in seen
        for job in view.jobs
        if job.id == "next" and job.measured.progress_target is not None
    )
    assert 0.0 < first <= START_S + REPORT_S + CONFIG.round_s


def test_a_job_trains_since_its_last_report(monkeypatch: pytest.MonkeyPatch) -> None:
    state = live_state(("wide", spec("wide", 4)))
    [job] = state.active
    job.measured = replace(TIMED, progress=0.0)
    whole = roll(asked(state), seed=0)
    reported_at = job.running.reported_at
    assert reported_at is not None
    job.running = replace(job.running, reported_at=reported_at - 40.0)
    course, seen = seen_by_the_policy(monkeypatch, asked(state))
    assert whole.ends_s["wide"] - course.ends_s["wide"] == pytest.approx(40.0)
    # Its next report is due, and no older one is repeated.
    known = [each.measured.progress for view in seen for each in view.jobs]
    assert known[1] > 0.0


def test_a_start_costs_what_starts_cost_the_other_jobs() -> None:
    state = live_state(("wide", spec("wide", 4)), ("next", spec("next", 2)))
    wide, _ = state.active
    wide.usage = wide.usage.after_cost(9, 90.0, {})
    mean_s = wide.usage.costs.mean_s
    assert mean_s not in (None, START_S)
    course = roll(asked(state), seed=0)
    took = course.ends_s["next"] - course.starts_s["next"]
    assert took == pytest.approx(mean_s + 4_000.0 / 2, rel=1e-6)


def test_a_guess_where_nothing_is_known() -> None:
    found = remainder_of(record(Measured(), gpu_s=5_000.0), NODES, 0.0, EndedWork())
    assert (found.source, found.draws) == (Source.GUESS, (5_000.0,))
    short = remainder_of(record(Measured(), gpu_s=1.0), NODES, 0.0, EndedWork())
    assert short.draws == (remainder.GUESS_MIN_GPU_S,)


# -- intervals -------------------------------------------------------------------------


def test_an_interval_beyond_the_horizon_is_infinite() -> None:
    found = Range.of([1.0, 2.0, math.inf])
    assert (found.median, found.high) == (2.0, math.inf)
    assert Range.of([math.inf] * 3).low == math.inf
    assert Range.of([5.0]).median == 5.0


def test_nine_in_ten_of_the_next_draws_lie_within_twenty() -> None:
    """Interpolated between the second of twenty and the last but one it would be eight
    in ten.
    """
    random = np.random.default_rng(1)
    within = []
    for _ in range(4_000):
        found = Range.of(random.random(20).tolist())
        within.append(found.low <= random.random() <= found.high)
    assert 0.88 <= sum(within) / len(within) <= 0.92


def test_a_budget_that_is_over_leaves_one_course_of_each_scenario(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(estimate, "roll", lambda asked, seed, *_: roll(asked, seed))
    state = live_state(("wide", spec("wide", 4)), ("next", spec("next", 2)))
    scenarios = [Scenario(), Scenario(name="+1", nodes=1)]
    found = estimates(asked(state), scenarios, 4, 1, budget_s=0.0)
    assert [each.num_rolls for each in found] == [1, 1]
    assert found[1].jobs["next"].starts.median == 0.0
    assert found[0].jobs["next"].starts.median > 0.0


def test_courses_that_are_cut_are_computed_equally_far(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    state = live_state(
        ("short", spec("short", 1)), ("wide", spec("wide", 4)), ("next", spec("next"))
    )
    cut_s = {"as it is": 2_000.0, "+1": 6_000.0}

    def cut(question: Question, seed: int, limits: TimeLimits, _: object) -> Course:
        assert limits == (5.0, 5.0)
        whole = roll(question, seed)
        ahead_s = cut_s[question.scenario.name]
        return replace(whole.until(ahead_s), ahead_s=ahead_s)

    monkeypatch.setattr(estimate, "roll", cut)
    scenarios = [Scenario(), Scenario(name="+1", nodes=1)]
    found = estimates(asked(state), scenarios, 1, 1, budget_s=10.0)
    assert [each.ahead_s for each in found] == [2_000.0, 2_000.0]
    now, more = found
    # With one node more all start at once; each needs 4,000 s of a GPU.
    assert now.jobs.keys() == more.jobs.keys() == {"short", "wide", "next"}
    assert now.jobs["wide"].ends.median == math.inf
    assert more.jobs["wide"].ends.median < 1_100.0
    assert more.mean_end.median < now.mean_end.median <= 2_000.0


def test_a_course_stops_where_its_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """The limit was not looked at in the first two rounds, which took a minute among
    10,000 jobs.
    """
    state = live_state(("wide", spec("wide", 4)), ("next", spec("next", 2)))
    whole = roll(asked(state), seed=0)
    ahead_s = []
    for seconds in (*range(0, 60, 4), 1_000):
        # Each look at the clock is a second after the one before.
        ticks = itertools.count()
        monkeypatch.setattr(roll_module.time, "monotonic", lambda: float(next(ticks)))  # noqa: B023
        found = roll(asked(state), seed=0, limits=TimeLimits(wall_s=seconds))
        ahead_s.append(found.ahead_s)
        assert found.starts_s == whole.until(found.ahead_s).starts_s
        assert found.ends_s == whole.until(found.ahead_s).ends_s
        assert found.names == {"wide", "next"}
    assert ahead_s == sorted(ahead_s)
    assert ahead_s[0] == 0.0
    assert any(0.0 < each < 2.0 * CONFIG.round_s for each in ahead_s)
    assert ahead_s[-1] == math.inf


def test_a_course_that_took_its_share_stops_if_it_reached_a_day_ahead() -> None:
    """Twenty futures of three policies were to fit; four did, 300 hours ahead each."""
    state = live_state(("wide", spec("wide", 4)), ("next", spec("next", 2)))
    short = asked(state)
    longer = asked(state, ended=EndedWork(jobs=[Work("", 1, 4e6)]))
    for question, is_cut in ((short, False), (longer, True)):
        whole = roll(question, seed=0)
        found = roll(question, seed=0, limits=TimeLimits(share_s=0.0))
        assert math.isfinite(found.ahead_s) is is_cut
        assert found.ends_s == whole.until(found.ahead_s).ends_s
    assert DAY_S - 1.0 <= found.ahead_s < 1.1 * DAY_S
    assert found.names == {"wide", "next"}


def test_a_course_that_is_cut_at_once_may_start_what_is_submitted() -> None:
    state = live_state(("wide", spec("wide", 4)))
    question = asked(state, scenario=Scenario(submit={"new": spec("new", 1)}))
    found = roll(question, seed=0, limits=TimeLimits(wall_s=0.0))
    assert (found.ahead_s, found.names) == (0.0, {"wide", "new"})


def record_rounds(
    monkeypatch: pytest.MonkeyPatch, *, fails_at: float | None = None
) -> list[float]:
    """Let each policy of a course be fifo, which fails in the round at `fails_at` (s);
    return the list of the instants of the rounds, to which it adds.
    """
    seen: list[float] = []

    class Recording(Fifo):
        def allocate(self, view: ClusterView) -> Plan:
            seen.append(view.at)
            if view.at == fails_at:
                raise RuntimeError("as it did then")
            return super().allocate(view)

    monkeypatch.setattr(roll_module, "create_policy", lambda _: Recording())
    return seen


def test_the_policy_in_force_sees_its_last_rounds_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """gavel began a new turn in each forecast, and starts came minutes too early."""
    seen = record_rounds(monkeypatch, fails_at=300.0)
    state = live_state(("wide", spec("wide", 4)))
    past = [ClusterView(at=at, nodes=(), jobs=()) for at in (240.0, 300.0, 360.0)]
    course = roll(asked(state, past=past), seed=0)
    assert seen[:3] == [240.0, 300.0, 360.0]
    assert min(seen[3:]) >= AT
    assert course.ends_s
    seen.clear()
    other = Scenario(policy="srtf")
    roll(asked(state, past=past, scenario=other), seed=0)
    assert min(seen) >= AT
    seen.clear()
    # Once for all courses.
    estimates(asked(state, past=past), [Scenario(), other, Scenario()], 3, 1)
    assert sum(at < AT for at in seen) == len(past)


def test_of_a_past_that_takes_too_long_the_newest_rounds_are_shown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen = record_rounds(monkeypatch)
    monkeypatch.setattr(roll_module, "PAST_WALL_S", -1.0)
    monkeypatch.setattr(roll_module, "PAST_NEWEST", 2)
    past = [ClusterView(at=float(at), nodes=(), jobs=()) for at in range(5)]
    policy_now(asked(live_state(), past=past))
    assert seen == [3.0, 4.0]


@pytest.mark.parametrize("name", short_choices())
def test_a_course_leaves_the_policy_as_it_is(name: str) -> None:
    state = live_state(("wide", spec("wide", 4)), ("next", spec("next", 2)))
    question = asked(state, policy=name, past=[Scheduler(CONFIG, state).view()])
    policy = policy_now(question)
    first = roll(question, seed=0, policy=policy)
    assert roll(question, seed=0, policy=policy) == first == roll(question, seed=0)


def test_many_jobs_have_fewer_decisions(monkeypatch: pytest.MonkeyPatch) -> None:
    state = live_state(*((f"{number}", spec(f"{number}")) for number in range(8)))
    few = roll(asked(state), seed=0)
    monkeypatch.setattr(roll_module, "JOBS_FEW", 4)
    monkeypatch.setattr(roll_module, "REACTION_PER_JOB_S", 70.0)
    many = roll(asked(state), seed=0)
    waited = sorted(many.starts_s.values())[4] - sorted(few.starts_s.values())[4]
    assert 0.0 < waited <= 280.0


def test_with_many_jobs_a_forecast_does_not_settle_jobs() -> None:
    """With 10,000 jobs that settle, one round takes minutes."""
    few = roll_module._slower(CONFIG, roll_module.JOBS_SETTLING_MAX)
    many = roll_module._slower(CONFIG, roll_module.JOBS_SETTLING_MAX + 1)
    assert few.settle_s == CONFIG.settle_s > 0.0
    assert many.settle_s == 0.0


@pytest.mark.processes
def test_other_processes_compute_the_same() -> None:
    state = live_state(("wide", spec("wide", 4)), ("next", spec("next", 2)))
    question = asked(
        state, ended=EndedWork(jobs=[Work("", 1, 5_000.0), Work("", 1, 9_000.0)])
    )
    here = estimates(question, [Scenario(), Scenario(name="+1", nodes=1)], 4, 1)
    there = estimates(question, [Scenario(), Scenario(name="+1", nodes=1)], 4, 2)
    assert [each.scenario for each in there] == ["as it is", "+1"]
    assert here[1].jobs["next"].starts == Range(median=0.0, low=0.0, high=0.0)
    assert there[1].jobs["next"].starts == here[1].jobs["next"].starts
