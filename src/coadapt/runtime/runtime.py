"""The loop: journal an event, let the core handle it, carry out its commands. One loop,
two clocks.
"""

# What must not be lost with an event that is set aside (journaled_scheduler.py says
# when and how)
#
# An alarm rings once: where none is set any more, the runtime sets one, or no round
# would ever come again. A plan that cannot be taken in counts as failed, with its
# reason. A caller that waits for the event gets the refusal. An observer that raises is
# switched off: it is a chart or a log, and no job waits for it.

from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Protocol, assert_never

from coadapt.core.commands import (
    BuyNodes,
    Command,
    GiveBack,
    Rescale,
    RetractRescale,
    SetAlarm,
    Size,
    Solve,
    Start,
    Stop,
)
from coadapt.core.events import (
    Event,
    PlanFailed,
    PlanReady,
    SchedulerConfigured,
    SchedulerRestarted,
    SizingFailed,
    TimerFired,
)
from coadapt.core.scheduler import Scheduler
from coadapt.core.state import SchedulerState
from coadapt.model import ApplicationTimes, JobId
from coadapt.runtime.journaled_scheduler import JournaledScheduler, OnRestored
from coadapt.runtime.ports import (
    Cancel,
    Clock,
    Executor,
    NodeProvider,
    SizeSolver,
    Solver,
    Store,
)

Observer = Callable[[Event, Sequence[Command], SchedulerState], None]

# After a refused event without an alarm: long enough that a round which fails each time
# costs little.
ALARM_AFTER_REFUSAL_S = 60.0

_NOTHING_TO_ENTER = nullcontext()


class Mishaps(Protocol):
    """Receives what went wrong inside a runtime that lives on."""

    def event_refused(self, number: int, event: Event, error: Exception) -> None:
        """Event `number` made the core raise; it was set aside, and the state is as if
        it had not come.
        """
        ...

    def observer_failed(
        self, observer: Callable[..., object], error: Exception
    ) -> None:
        """The observer raised; it is switched off."""
        ...


class Runtime:
    """Runs `scheduler` over its ports, on one thread: a live host hands over what other
    threads post.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        *,
        clock: Clock,
        executor: Executor,
        store: Store,
        solver: Solver,
        observers: Sequence[Observer] = (),
        mishaps: Mishaps | None = None,
        restored: OnRestored = lambda *_: None,
    ) -> None:
        """Without `mishaps`, an error of the core or of an observer ends the run.

        restored: see JournaledScheduler.replay.
        """
        self.journaled = JournaledScheduler(
            scheduler, store, mishaps.event_refused if mishaps else None
        )
        self.clock = clock
        self.executor = executor
        self.solver = solver
        self._sizer: SizeSolver | None = None
        self._provider: NodeProvider | None = None
        self.observers = list(observers)
        self._mishaps = mishaps
        self._restored = restored
        self._inbox: deque[Event] = deque()
        self._draining = False
        self._cancel_alarm: Cancel | None = None

    @property
    def scheduler(self) -> Scheduler:
        """The scheduler of this moment."""
        return self.journaled.scheduler

    @property
    def num_events(self) -> int:
        """The number of the event that was handled last, which observers are notified
        of just now.
        """
        return self.journaled.num_events

    def buy_nodes(self, sizer: SizeSolver, provider: NodeProvider) -> None:
        """Have `sizer` decide how many nodes there are, and `provider` bring them.

        To be called before the first event that configures offers.
        """
        self._sizer = sizer
        self._provider = provider

    def recover(self) -> None:
        """Bring the scheduler to the state that the journal tells, then let it repeat
        its orders.

        Commands that come out of the replay were carried out before; only the repeats
        of the last step are.
        """
        for event, commands in self.journaled.replay(self._tell_restored):
            self.observe(event, commands)
        if not self.journaled.empty:
            self.post(SchedulerRestarted(at=self.clock.now()))

    def post(self, event: Event) -> None:
        """Take an event in; it is journaled and handled before the outermost call
        returns.
        """
        self.post_all((event,))

    def post_all(self, events: Sequence[Event]) -> None:
        """Take events in as one group: one commit for all that wait."""
        self._inbox.extend(
            events if self.executor.rescales_in_place else self._within_means(events)
        )
        if self._draining:
            return
        self._draining = True
        try:
            while self._inbox:
                batch = self.journaled.write(self._inbox)
                self._inbox.clear()
                for event in batch:
                    self._handle(event)
        finally:
            self._draining = False

    def application_times_of(self, job: JobId) -> ApplicationTimes | None:
        """Return what the last plan tells `job` of steps that others timed; for any
        thread.
        """
        return self.journaled.application_times.get(job)

    def hazard_of(self, job: JobId) -> float:
        """Return the expected losses of any of the job's nodes in an hour; for any
        thread.
        """
        state = self.scheduler.state
        record = state.jobs.get(job)
        buying = state.buying
        if record is None or buying is None:
            return 0.0
        return buying.hazard_per_h(node for node, _ in record.ordered.slots)

    def _within_means(self, events: Sequence[Event]) -> Sequence[Event]:
        """Return `events` without rescales in place, for an executor that restarts a
        job for each change.

        Settings that allow them are replaced, and settings without them are put first
        if the present ones allow them. They are in the journal, so that a replay
        decides as the scheduler did.
        """
        kept: list[Event] = []
        configured = bool(events) and isinstance(events[0], SchedulerConfigured)
        if self.scheduler.config.rescale_in_place and not configured:
            config = replace(self.scheduler.config, rescale_in_place=False)
            kept.append(SchedulerConfigured(at=self.clock.now(), config=config))
        for event in events:
            if isinstance(event, SchedulerConfigured):
                kept.append(
                    replace(event, config=replace(event.config, rescale_in_place=False))
                )
            else:
                kept.append(event)
        return kept

    def observe(self, event: Event, commands: Sequence[Command]) -> None:
        for observer in tuple(self.observers):
            try:
                observer(event, commands, self.scheduler.state)
            except Exception as error:
                if self._mishaps is None:
                    raise
                self.observers.remove(observer)
                self._mishaps.observer_failed(observer, error)

    def turn(self, event: Event) -> AbstractContextManager[None]:  # noqa: ARG002 - for those who override it
        """Return what is entered while `event` is handled and observed: the state
        changes only then.
        """
        return _NOTHING_TO_ENTER

    def _tell_restored(self, state: SchedulerState, number: int) -> None:
        try:
            self._restored(state, number)
        except Exception as error:
            if self._mishaps is None:
                raise
            # What it keeps has a gap then, which is no reason for jobs to wait.
            self._mishaps.observer_failed(self._restored, error)

    def _handle(self, event: Event) -> None:
        with self.turn(event):
            commands = self.journaled.handle(event)
            if commands is not None:
                self.observe(event, commands)
        if commands is None:
            self._go_on_without(event)
            return
        for command in commands:
            self._execute(command)
        self.journaled.save_if_due()

    def _go_on_without(self, event: Event) -> None:
        """See to it that a next round comes after an event that was set aside."""
        if isinstance(event, PlanReady):
            error = "the plan could not be taken in; see: coadapt doctor"
            self.post(PlanFailed(at=self.clock.now(), round=event.round, error=error))
        if self._cancel_alarm is None:
            when = self.clock.now() + ALARM_AFTER_REFUSAL_S
            self._cancel_alarm = self.clock.call_at(when, self._ring, last=True)

    def _execute(self, command: Command) -> None:
        match command:
            case Solve():
                self.solver(command, self.post)
            case SetAlarm():
                if self._cancel_alarm is not None:
                    self._cancel_alarm()
                self._cancel_alarm = self.clock.call_at(
                    command.at, self._ring, last=True
                )
            case Size():
                self._size(command)
            case BuyNodes():
                if self._provider is not None:
                    self._provider.buy(command, self.post)
            case GiveBack():
                if self._provider is not None:
                    self._provider.give_back(command, self.post)
            case Start() | Rescale() | RetractRescale() | Stop():
                self.executor.execute(command, self.post)
            case _:
                assert_never(command)

    def _size(self, command: Size) -> None:
        if self._sizer is not None:
            self._sizer(command, self.post)
            return
        error = "no sizer is chosen, so that the number of nodes stays as it is"
        self.post(SizingFailed(at=self.clock.now(), number=command.number, error=error))

    def _ring(self) -> None:
        self._cancel_alarm = None
        self.post(TimerFired(at=self.clock.now()))
