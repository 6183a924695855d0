"""The loop: order of events, durability before handling, alarms, and recovery from the journal."""

from collections.abc import Callable, Sequence

import pytest

from coadapt.core.commands import JobCommand, Resize, Retract, Start, Stop
from coadapt.core.config import SchedulerConfig
from coadapt.core.events import (
    Event,
    JobSubmitted,
    NodeJoined,
    Outcome,
    ReplicasExited,
    ReplicasStarted,
)
from coadapt.core.lifecycle import JobState
from coadapt.core.scheduler import Scheduler
from coadapt.model import Allocation, BatchLimits, ClusterView, JobSpec, Node, Plan, ReplicaLimits
from coadapt.runtime import runtime as runtime_module
from coadapt.runtime.memory_store import MemoryStore, NullStore
from coadapt.runtime.ports import Cancel, Post, Store
from coadapt.runtime.runtime import Runtime
from coadapt.runtime.solver import InlineSolver

SPEC = JobSpec(name="job", batch=BatchLimits(initial=8), replicas=ReplicaLimits(max=4))


class HandClock:
    """A clock that the test moves by hand."""

    def __init__(self) -> None:
        self.at = 0.0
        self.alarms: list[tuple[float, Callable[[], None]]] = []

    def now(self) -> float:
        return self.at

    def call_at(self, when: float, callback: Callable[[], None], *, last: bool = False) -> Cancel:
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

    resizes_in_place = True

    def __init__(self, clock: HandClock) -> None:
        self.clock = clock
        self.orders: list[JobCommand] = []

    def execute(self, command: JobCommand, post: Post) -> None:
        self.orders.append(command)
        at, job, generation = self.clock.now(), command.job, command.generation
        match command:
            case Start() | Resize():
                post(ReplicasStarted(at=at, job=job, generation=generation))
            case Retract():
                raise AssertionError("there is never anything to take back")
            case Stop():
                post(ReplicasExited(at=at, job=job, generation=generation, outcome=Outcome.STOPPED))


class EqualShares:
    """Gives each job the same number of the GPUs of node n0."""

    def allocate(self, view: ClusterView) -> Plan:
        share = view.num_gpus // max(len(view.jobs), 1)
        return Plan(allocations={job.id: Allocation(slots=(("n0", share),)) for job in view.jobs})


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
        Scheduler(SchedulerConfig()), clock=clock, executor=executor, store=store, solver=solver, **observers
    )
    return runtime, clock, executor


def opening(num_jobs: int = 2) -> list[Event]:
    jobs = [JobSubmitted(at=0.0, job=f"j{index}", spec=SPEC) for index in range(num_jobs)]
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


def test_observers_see_every_event_with_its_commands() -> None:
    seen: list[tuple[str, int]] = []
    runtime, clock, _ = build(
        NullStore(), observers=[lambda event, commands, _: seen.append((type(event).__name__, len(commands)))]
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


@pytest.mark.parametrize("events_per_snapshot", [1, 3, 10_000])
def test_recovery_gives_the_same_state_and_repeats_the_orders(
    events_per_snapshot: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runtime_module, "EVENTS_PER_SNAPSHOT", events_per_snapshot)
    store = MemoryStore()
    runtime, clock, _ = build(store)
    runtime.post_all(opening())
    clock.ring()
    before = runtime.scheduler.state

    revived, clock, executor = build(store)
    clock.at = 70.0
    revived.recover()
    orders = [(type(order).__name__, order.job, order.generation) for order in executor.orders]
    assert orders == [("Start", "j0", 1), ("Start", "j1", 1)]
    assert {job: record.state for job, record in revived.scheduler.state.jobs.items()} == {
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
