"""A scheduler and the journal that rebuilds it: each event is durable first."""

# An event that cannot be handled
#
# An event is durable before it is handled. So one that makes `handle` raise would end
# each restart as well, and a bug that a single report can reach would be an outage
# without end. A host that must live on gives `on_refused`; such an event is set aside
# then. What `handle` did before it raised is unknown, so the state is rebuilt from the
# last snapshot and the events after it, which is rare enough to be dear; then the
# refusal is written, and a snapshot, so that a second event of the kind costs no
# replay. The state is as if the event had never come, now and after each restart.
#
# To handle a copy, and keep it if all goes well, would copy 10,000 jobs for each event.
# A simulation sets nothing aside: there a bug is to end the run.

import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace

from coadapt.core.commands import Command
from coadapt.core.events import Event, PlanReady
from coadapt.core.scheduler import Scheduler
from coadapt.core.state import SchedulerState
from coadapt.model import ApplicationTimes, JobId
from coadapt.runtime.ports import Store
from coadapt.runtime.solver import describe

# A snapshot of a busy cluster costs some milliseconds; replaying this many events costs
# about 0.1 s.
EVENTS_PER_SNAPSHOT = 5_000

OnRestored = Callable[[SchedulerState, int], None]
OnRefused = Callable[[int, Event, Exception], None]


class JournaledScheduler:
    """Keeps `scheduler` and `store` in step. Events have the numbers 1, 2, … of the
    store.
    """

    def __init__(
        self, scheduler: Scheduler, store: Store, on_refused: OnRefused | None
    ) -> None:
        """`on_refused` receives each event that is set aside; None: what the scheduler
        raises is raised.
        """
        self.scheduler = scheduler
        self.store = store
        self._on_refused = on_refused
        self._first_config = scheduler.config
        self._num_events = 0
        self.application_times: Mapping[JobId, ApplicationTimes] = {}

    def replay(
        self, restored: OnRestored = lambda *_: None
    ) -> Iterator[tuple[Event, list[Command]]]:
        """Bring the scheduler to the state that the store tells; yield each event and
        what followed.

        `restored` is called with the state from which the replay begins, and its
        event's number.
        """
        self.scheduler, upto = self._from_snapshot()
        restored(self.scheduler.state, upto)
        for number, event in self.store.numbered_events(after=upto):
            self._num_events = number
            commands = self._handle(number, event)
            if commands is not None:
                yield event, commands
        self._num_events = self.store.last_number

    @property
    def num_events(self) -> int:
        """The number of the event that was handled last."""
        return self._num_events

    @property
    def empty(self) -> bool:
        """Whether no event ever came."""
        return self._num_events == 0

    def write(self, events: Iterable[Event]) -> list[Event]:
        """Make events durable, and return them; each is then to be handled, in order.

        Step times that a plan shares among jobs of an application are kept apart: each
        plan has all of them, so no journal needs them.
        """
        lasting = [self._without_application_times(event) for event in events]
        self.store.append(lasting)
        return lasting

    def _without_application_times(self, event: Event) -> Event:
        if not isinstance(event, PlanReady):
            return event
        self.application_times = event.plan.application_times
        return (
            replace(event, plan=replace(event.plan, application_times={}))
            if self.application_times
            else event
        )

    def handle(self, event: Event) -> list[Command] | None:
        """Return what follows from the next event that was written, None if it was set
        aside.
        """
        self._num_events += 1
        return self._handle(self._num_events, event)

    def save_if_due(self) -> None:
        """Write a snapshot, now and then; to be called once an event's orders were
        carried out.
        """
        if self._num_events % EVENTS_PER_SNAPSHOT == 0:
            self.store.save_snapshot(self.scheduler.state, self._num_events)

    def _handle(self, number: int, event: Event) -> list[Command] | None:
        try:
            return self.scheduler.handle(event)
        except MemoryError:
            raise
        except Exception as error:
            if self._on_refused is None:
                raise
            self.store.refuse(
                number, describe(error), "".join(traceback.format_exception(error))
            )
            self._rebuild(number)
            self._on_refused(number, event, error)
            return None

    def _rebuild(self, number: int) -> None:
        """Bring back the state before event `number`, which was refused; its orders
        were carried out then.
        """
        self.scheduler, upto = self._from_snapshot()
        for earlier, event in self.store.numbered_events(after=upto):
            if earlier > number:
                break
            self.scheduler.handle(event)
        self.store.save_snapshot(self.scheduler.state, number)

    def _from_snapshot(self) -> tuple[Scheduler, int]:
        # A test may have given a scheduler of a class of its own.
        create = type(self.scheduler)
        snapshot = self.store.latest_snapshot()
        if snapshot is None:
            return create(self._first_config), 0
        return create(self._first_config, snapshot[0]), snapshot[1]
