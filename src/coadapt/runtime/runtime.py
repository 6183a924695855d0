"""The loop: journal an event, let the core handle it, carry out its commands. One loop, two clocks."""

from collections import deque
from collections.abc import Callable, Sequence
from typing import assert_never

from coadapt.core.commands import Command, Resize, Retract, SetAlarm, Solve, Start, Stop
from coadapt.core.events import Event, SchedulerRestarted, TimerFired
from coadapt.core.scheduler import Scheduler
from coadapt.core.state import SchedulerState
from coadapt.runtime.ports import Cancel, Clock, Executor, Solver, Store

Observer = Callable[[Event, Sequence[Command], SchedulerState], None]

# A snapshot of a busy cluster costs some milliseconds; replaying this many events costs about 0.1 s.
EVENTS_PER_SNAPSHOT = 5_000


class Runtime:
    """Runs `scheduler` over its ports, on one thread: a live host hands over what other threads post."""

    def __init__(
        self,
        scheduler: Scheduler,
        *,
        clock: Clock,
        executor: Executor,
        store: Store,
        solver: Solver,
        observers: Sequence[Observer] = (),
    ) -> None:
        self.scheduler = scheduler
        self.clock = clock
        self.executor = executor
        self.store = store
        self.solver = solver
        self.observers = observers
        self._inbox: deque[Event] = deque()
        self._draining = False
        self._cancel_alarm: Cancel | None = None
        self._num_events = 0

    def recover(self) -> None:
        """Bring the scheduler to the state that the journal tells, then let it repeat its orders.

        Commands that come out of the replay were carried out before; only the repeats of the last step are.
        """
        snapshot = self.store.latest_snapshot()
        if snapshot is not None:
            state, self._num_events = snapshot
            self.scheduler = Scheduler(self.scheduler.config, state)
        for event in self.store.events(after=self._num_events):
            self.observe(event, self.scheduler.handle(event))
            self._num_events += 1
        if self._num_events:
            self.post(SchedulerRestarted(at=self.clock.now()))

    def post(self, event: Event) -> None:
        """Take an event in; it is journaled and handled before the outermost call returns."""
        self.post_all((event,))

    def post_all(self, events: Sequence[Event]) -> None:
        """Take events in as one group: one commit for all that wait."""
        self._inbox.extend(events)
        if self._draining:
            return
        self._draining = True
        try:
            while self._inbox:
                batch = list(self._inbox)
                self._inbox.clear()
                self.store.append(batch)
                for event in batch:
                    self._handle(event)
        finally:
            self._draining = False

    def observe(self, event: Event, commands: Sequence[Command]) -> None:
        for observer in self.observers:
            observer(event, commands, self.scheduler.state)

    def _handle(self, event: Event) -> None:
        commands = self.scheduler.handle(event)
        self._num_events += 1
        self.observe(event, commands)
        for command in commands:
            self._execute(command)
        if self._num_events % EVENTS_PER_SNAPSHOT == 0:
            self.store.save_snapshot(self.scheduler.state, self._num_events)

    def _execute(self, command: Command) -> None:
        match command:
            case Solve():
                self.solver(command, self.post)
            case SetAlarm():
                if self._cancel_alarm is not None:
                    self._cancel_alarm()
                self._cancel_alarm = self.clock.call_at(command.at, self._ring, last=True)
            case Start() | Resize() | Retract() | Stop():
                self.executor.execute(command, self.post)
            case _:
                assert_never(command)

    def _ring(self) -> None:
        self._cancel_alarm = None
        self.post(TimerFired(at=self.clock.now()))
