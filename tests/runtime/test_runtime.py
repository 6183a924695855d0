"""The loop: order of events, durability before handling, alarms, and recovery from the
journal.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from coadapt.core.commands import (
    Command,
    JobCommand,
    Rescale,
    RetractRescale,
    Start,
    Stop,
)
from coadapt.core.config import SchedulerConfig
from coadapt.core.events import (
    Event,
    JobSubmitted,
    NodeJoined,
    Outcome,
    PlanReady,
    ReplicasExited,
    ReplicasStarted,
    SchedulerConfigured,
    TimerFired,
)
from coadapt.core.lifecycle import JobState
from coadapt.core.scheduler import Scheduler
from coadapt.core.state import SchedulerState
from coadapt.model import (
    Allocation,
    ApplicationTimes,
    BatchLimits,
    ClusterView,
    JobSpec,
    Node,
    Placement,
    Plan,
    ReplicaLimits,
    ThroughputParams,
    TimedStep,
)
from coadapt.runtime import journaled_scheduler
from coadapt.runtime.journal import Journal
from coadapt.runtime.memory_store import MemoryStore, NullStore
from coadapt.runtime.ports import Cancel, Post, Store
from coadapt.runtime.runtime import Observer, Runtime
from coadapt.runtime.solver import InlineSolver

SPEC = JobSpec(name="job", batch=BatchLimits(initial=8), replicas=ReplicaLimits(max=4))


class HandClock:
    """A clock that the test moves by hand."""

    def __init__(self) -> None:
        self.at = 0.0
        self.alarms: list[tuple[float, Callable[[], None]]] = []

    def now(self) -> float:
        return self.at

    def call_at(
        self, when: float, callback: Callable[[], None], *, last: bool = False
    ) -> Cancel:
        entry = (when, callback)
        self.alarms.append(entry)
        return lambda: self.alarms.remove(entry)

    def ring(self) -> None:
        """Go to the next alarm and let it ring."""
        entry = min(self.alarms, key=lambda alarm: alarm[0])
        self.alarms.remove(entry)
        self.at = entry[0]
        entry[1]()


class ObedientExecutor:
    """Carries out every order at once, and remembers them."""

    rescales_in_place = True

    def __init__(self, clock: HandClock) -> None:
        self.clock = clock
        self.orders: list[JobCommand] = []

    def execute(self, command: JobCommand, post: Post) -> None:
        self.orders.append(command)
        at = self.clock.now()
        job = command.job
        generation = command.generation
        match command:
            case Start() | Rescale():
                post(ReplicasStarted(at=at, job=job, generation=generation))
            case RetractRescale():
                raise AssertionError("there is never anything to take back")
            case Stop():
                post(
                    ReplicasExited(
                        at=at, job=job, generation=generation, outcome=Outcome.STOPPED
                    )
                )


class EqualShares:
    """Gives each job the same number of the GPUs of node n0."""

    def allocate(self, view: ClusterView) -> Plan:
        share = view.num_gpus // max(len(view.jobs), 1)
        return Plan(
            allocations={
                job.id: Allocation(slots=(("n0", share),)) for job in view.jobs
            }
        )


class Broken:
    def allocate(self, view: ClusterView) -> Plan:
        raise RuntimeError("no idea\nsecond line")


def build(
    store: Store, policy: object = None, **observers: object
) -> tuple[Runtime, HandClock, ObedientExecutor]:
    clock = HandClock()
    executor = ObedientExecutor(clock)
    solver = InlineSolver(policy or EqualShares(), timer=lambda: 0.0)  # type: ignore[arg-type]
    runtime = Runtime(
        Scheduler(SchedulerConfig()),
        clock=clock,
        executor=executor,
        store=store,
        solver=solver,
        **observers,
    )
    return runtime, clock, executor


def opening(num_jobs: int = 2) -> list[Event]:
    jobs = [
        JobSubmitted(at=0.0, job=f"j{index}", spec=SPEC) for index in range(num_jobs)
    ]
    return [NodeJoined(at=0.0, node=Node(id="n0", num_gpus=4)), *jobs]


def test_an_event_is_durable_before_it_is_handled() -> None:
    class Watching(MemoryStore):
        def append(self, events: Sequence[Event]) -> None:
            assert "j0" not in runtime.scheduler.state.jobs
            super().append(events)

    runtime, _, _ = build(Watching())
    runtime.post(JobSubmitted(at=0.0, job="j0", spec=SPEC))
    assert "j0" in runtime.scheduler.state.jobs


def test_what_an_executor_posts_while_it_is_called_waits_its_turn() -> None:
    store = MemoryStore()
    runtime, clock, executor = build(store)
    runtime.post_all(opening())
    clock.ring()
    kinds = [type(event).__name__ for event in store.events()]
    assert kinds == [
        "NodeJoined",
        "JobSubmitted",
        "JobSubmitted",
        "TimerFired",
        "PlanReady",
        "ReplicasStarted",
        "ReplicasStarted",
    ]
    assert [order.job for order in executor.orders] == ["j0", "j1"]


def test_a_new_alarm_replaces_the_one_before() -> None:
    runtime, clock, _ = build(NullStore())
    runtime.post_all(opening())
    clock.ring()
    assert [when for when, _ in clock.alarms] == [120.0]


def test_a_policy_that_raises_is_a_failed_plan_and_the_next_round_comes() -> None:
    runtime, clock, executor = build(NullStore(), Broken())
    runtime.post_all(opening())
    clock.ring()
    assert runtime.scheduler.state.plan_error == "RuntimeError: no idea"
    assert executor.orders == []
    clock.ring()
    assert runtime.scheduler.state.round == 2


APPLICATION_TIMES = ApplicationTimes(
    gpu_type="gpu",
    placement=Placement((2,)),
    params=ThroughputParams(alpha_c=0.1, beta_c=0.01),
    steps=(TimedStep(atomic=8, accumulation=0, seconds=0.2),),
)


class Telling(EqualShares):
    """Tells all jobs what others timed."""

    def allocate(self, view: ClusterView) -> Plan:
        return replace(
            super().allocate(view),
            application_times={job.id: APPLICATION_TIMES for job in view.jobs},
        )


def test_shared_step_times_are_kept_until_the_next_plan_and_not_journaled() -> None:
    store = MemoryStore()
    runtime, _, _ = build(store, Telling())
    assert runtime.application_times_of("j0") is None
    runtime.post_all(opening())
    assert (
        runtime.application_times_of("j0") is runtime.application_times_of("j1") is None
    )  # no round was yet
    runtime.clock.ring()  # type: ignore[attr-defined]  # a HandClock
    assert runtime.application_times_of("j0") is APPLICATION_TIMES
    assert runtime.application_times_of("another") is None
    plans = [event.plan for event in store.events() if isinstance(event, PlanReady)]
    assert plans
    assert not any(plan.application_times for plan in plans)
    assert plans[-1].allocations


def test_observers_see_every_event_with_its_commands() -> None:
    seen: list[tuple[str, int]] = []
    runtime, clock, _ = build(
        NullStore(),
        observers=[
            lambda event, commands, _: seen.append(
                (type(event).__name__, len(commands))
            )
        ],
    )
    runtime.post_all(opening(1))
    clock.ring()
    assert seen == [
        ("NodeJoined", 0),
        ("JobSubmitted", 1),
        ("TimerFired", 2),
        ("PlanReady", 1),
        ("ReplicasStarted", 0),
    ]


class Growing(EqualShares):
    """Gives the one job two GPUs, and from the second round on three."""

    def allocate(self, view: ClusterView) -> Plan:
        share = 3 if view.jobs[0].usage.num_starts else 2
        return Plan(
            allocations={
                job.id: Allocation(slots=(("n0", share),)) for job in view.jobs
            }
        )


def test_an_executor_that_cannot_rescale_in_place_is_never_asked_to() -> None:
    store = MemoryStore()
    runtime, clock, executor = build(store, Growing())
    executor.rescales_in_place = False
    runtime.post_all(opening(1))
    config = SchedulerConfig(round_s=30.0, rescale_in_place=True, settle_s=0.0)
    # Settings that say otherwise change nothing about it.
    runtime.post(SchedulerConfigured(at=0.0, config=config))
    clock.ring()
    clock.ring()
    assert [type(order).__name__ for order in executor.orders] == [
        "Start",
        "Stop",
        "Start",
    ]
    assert runtime.scheduler.config == replace(config, rescale_in_place=False)
    # Who replays the journal knows nothing of the executor, and decides alike.
    twin = Scheduler(SchedulerConfig())
    for event in store.events():
        twin.handle(event)
    assert twin.state == runtime.scheduler.state


@pytest.mark.parametrize("events_per_snapshot", [1, 3, 10_000])
def test_recovery_gives_the_same_state_and_repeats_the_orders(
    events_per_snapshot: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journaled_scheduler, "EVENTS_PER_SNAPSHOT", events_per_snapshot)
    store = MemoryStore()
    runtime, clock, _ = build(store)
    runtime.post_all(opening())
    clock.ring()
    before = runtime.scheduler.state

    revived, clock, executor = build(store)
    clock.at = 70.0
    revived.recover()
    orders = [
        (type(order).__name__, order.job, order.generation) for order in executor.orders
    ]
    assert orders == [("Start", "j0", 1), ("Start", "j1", 1)]
    assert {
        job: record.state for job, record in revived.scheduler.state.jobs.items()
    } == {
        "j0": JobState.RUNNING,
        "j1": JobState.RUNNING,
    }
    assert revived.scheduler.state.jobs["j0"].ordered == before.jobs["j0"].ordered
    assert [when for when, _ in clock.alarms] == [120.0]


def test_recovery_from_an_empty_journal_is_a_fresh_start() -> None:
    store = MemoryStore()
    runtime, _, _ = build(store)
    runtime.recover()
    assert list(store.events()) == []


# -- mishaps
# --------------------------------------------------------------------------------------

broken_rounds: set[int] = set()
broken_timers: set[str] = set()


class Told:
    """Keeps what it is told of."""

    def __init__(self) -> None:
        self.refused: list[int] = []
        self.failed: list[object] = []

    def event_refused(self, number: int, event: Event, error: Exception) -> None:
        self.refused.append(number)

    def observer_failed(self, observer: Observer, error: Exception) -> None:
        self.failed.append(observer)


@pytest.fixture
def poisonous(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the core raise amid its work: after it has changed the state in several
    places.
    """
    handle = Scheduler.handle

    def careless(self: Scheduler, event: Event) -> list[Command]:
        name = event.job if isinstance(event, JobSubmitted) else ""
        if name.startswith("poison"):
            handle(self, event)
            self.state.jobs.pop("j0", None)
            self.state.round = -1
            raise OverflowError("integer division result too large for a float")
        if isinstance(event, PlanReady) and event.round in broken_rounds:
            self.state.solve_at = None
            raise ValueError("half taken in")
        if isinstance(event, TimerFired) and broken_timers:
            self.state.round_due_at = None
            raise ValueError("no round")
        return handle(self, event)

    monkeypatch.setattr(Scheduler, "handle", careless)
    broken_rounds.clear()
    broken_timers.clear()


def poison(name: str = "poison") -> JobSubmitted:
    return JobSubmitted(at=0.0, job=name, spec=SPEC)


@pytest.mark.usefixtures("poisonous")
@pytest.mark.parametrize("events_per_snapshot", [1, 2, 10_000])
def test_a_refused_event_leaves_the_state_as_if_it_had_never_come(
    events_per_snapshot: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journaled_scheduler, "EVENTS_PER_SNAPSHOT", events_per_snapshot)
    states = []
    told = Told()
    for extra in ([], [poison()], [poison("poison-1"), poison("poison-2")]):
        runtime, clock, _ = build(MemoryStore(), mishaps=told)
        runtime.post_all(opening())
        clock.ring()
        runtime.post_all([*extra, JobSubmitted(at=0.0, job="j9", spec=SPEC)])
        clock.ring()
        states.append(runtime.scheduler.state)
    assert states[0] == states[1] == states[2]
    assert told.refused == [8, 8, 9]


@pytest.mark.usefixtures("poisonous")
def test_what_was_set_aside_stays_aside_over_restarts(tmp_path: Path) -> None:
    journal = Journal.at_path(tmp_path / "journal.db")
    runtime, clock, _ = build(journal, mishaps=Told())
    runtime.post_all([*opening(), poison()])
    clock.ring()
    told = Told()
    for start in range(3):
        revived, _, _ = build(Journal.at_path(tmp_path / "journal.db"), mishaps=told)
        revived.recover()
        assert sorted(revived.scheduler.state.jobs) == ["j0", "j1"], start
    assert told.refused == []
    assert [refusal.number for refusal in journal.refusals()] == [4]


@pytest.mark.usefixtures("poisonous")
def test_an_event_that_ended_a_scheduler_is_set_aside_by_the_next_one() -> None:
    """The one before had no mishaps, or was killed before it could write the
    refusal.
    """
    store = MemoryStore()
    store.append([*opening(), poison(), JobSubmitted(at=0.0, job="j9", spec=SPEC)])
    seen: list[str] = []
    revived, _, _ = build(
        store,
        mishaps=(told := Told()),
        observers=[lambda event, *_: seen.append(type(event).__name__)],
    )
    revived.recover()
    assert told.refused == [4]
    assert sorted(revived.scheduler.state.jobs) == ["j0", "j1", "j9"]
    assert seen == ["NodeJoined", *["JobSubmitted"] * 3, "SchedulerRestarted"]


@pytest.mark.usefixtures("poisonous")
def test_rounds_go_on_after_a_plan_and_an_alarm_that_were_refused() -> None:
    runtime, clock, executor = build(MemoryStore(), mishaps=(told := Told()))
    broken_rounds.add(1)
    runtime.post_all(opening(1))
    clock.ring()
    assert "the plan could not be taken in" in runtime.scheduler.state.plan_error
    assert executor.orders == []
    broken_timers.add("next")
    clock.ring()
    assert clock.alarms, "an alarm was refused, and none was left"
    broken_timers.clear()
    clock.ring()
    assert [order.job for order in executor.orders] == ["j0"]
    assert len(told.refused) == 2


@pytest.mark.usefixtures("poisonous")
def test_without_anybody_to_tell_a_bug_ends_the_run() -> None:
    runtime, _, _ = build(MemoryStore())
    with pytest.raises(OverflowError):
        runtime.post(poison())
    runtime, _, _ = build(MemoryStore(), observers=[lambda *_: 1 / 0])
    with pytest.raises(ZeroDivisionError):
        runtime.post_all(opening())


def test_an_observer_that_fails_is_switched_off_and_the_others_go_on() -> None:
    seen: list[str] = []

    def broken(
        event: Event, commands: Sequence[Command], state: SchedulerState
    ) -> None:
        raise OverflowError("a chart")

    def good(event: Event, commands: Sequence[Command], state: SchedulerState) -> None:
        seen.append(type(event).__name__)

    runtime, clock, _ = build(
        MemoryStore(), mishaps=(told := Told()), observers=[broken, good]
    )
    runtime.post_all(opening(1))
    clock.ring()
    assert told.failed == [broken]
    assert seen == [
        "NodeJoined",
        "JobSubmitted",
        "TimerFired",
        "PlanReady",
        "ReplicasStarted",
    ]
