"""The live host of the core. Any thread may post events; one thread writes them to the
journal in groups and handles them.
"""

import asyncio
import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, replace
from typing import TypeVar

from coadapt.core.commands import BuyNodes, GiveBack, JobCommand
from coadapt.core.config import SchedulerConfig
from coadapt.core.events import (
    Event,
    OffersConfigured,
    PlanReady,
    PricesConfigured,
    SchedulerConfigured,
    SchedulerRestarted,
    TimerFired,
)
from coadapt.core.node_buying import SIZING_S
from coadapt.core.scheduler import Scheduler
from coadapt.core.state import JobRecord, SchedulerState
from coadapt.model import ApplicationTimes, JobId, Node, NodeId
from coadapt.model.errors import StoreAwayError
from coadapt.model.offer import Offer
from coadapt.model.prices import Prices
from coadapt.runtime.background_snapshots import picture_of
from coadapt.runtime.ports import (
    Executor,
    NodeProvider,
    Post,
    SizeSolver,
    Solver,
    Store,
)
from coadapt.runtime.runtime import Observer, Runtime
from coadapt.runtime.solver import describe
from coadapt.runtime.wall_clock import WallClock
from coadapt.service.fair_lock import FairLock
from coadapt.service.plan_watch import PlanWatch

# Most events that wait. If the queue is full, the disk cannot keep up, and callers are
# asked to retry.
QUEUE_MAX = 10_000
# Most entries of the queue that are written in one commit. A commit of a group costs
# about as much as one of a single event, but larger groups would delay the first.
GROUP_MAX = 500
# Time after which `close` takes effect, s.
IDLE_S = 0.05
NOTICES_KEPT = 100
# Period at which a waiting request checks that the journal can still be written, s.
LOOK_S = 0.5
MAY_STILL_COME = "; what was asked for may still be done once it is back"
# From this number of jobs on, an event about all jobs takes longer than readers should
# wait. They then read a copy of the state before the event.
MANY_JOBS = 1_000
ABOUT_ALL = (PlanReady, TimerFired, SchedulerRestarted)
# Time that a reader waits for the lock before it reads that copy, s.
PATIENCE_S = 0.005

T = TypeVar("T")
Announce = Callable[[Mapping[NodeId, Node], Post], None]

logger = logging.getLogger(__name__)


class OverloadedError(RuntimeError):
    """Too many events wait to be written. Retry later."""


class EndedError(RuntimeError):
    """The scheduler is stopping, and the event was not written."""


class EventRefusedError(RuntimeError):
    """The scheduler could not handle an event because of a bug. The event was set
    aside, and the state is unchanged.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class _Waiting:
    """Events that were posted together at instant `since` (monotonic s), and their
    future, if a caller waits.

    The future's result has the errors of refused events, by their index in `events`.
    """

    events: Sequence[Event]
    future: "Future[dict[int, EventRefusedError]] | None"
    since: float


class LiveLoop:
    """Runs the runtime. Any thread may call `post`, `commit` and `read`; `run` needs a
    thread of its own.

    It implements the runtime's Mishaps. If an event cannot be handled, the waiting
    caller gets an error. If an observer fails, it is switched off. Both are logged and
    listed by `notices`.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        *,
        clock: WallClock,
        executor: Executor,
        store: Store,
        solver: Solver,
        observers: Sequence[Observer] = (),
        restored: Callable[[SchedulerState, int], None] = lambda *_: None,
        waited: Callable[[float], None] = lambda _: None,
    ) -> None:
        """Make a loop. observers, restored: see Runtime. waited: called with the
        seconds from posting each event to the end of its handling.
        """
        self._trouble: Callable[[], str] = str
        self._plans: PlanWatch | None = None
        self._ended = threading.Event()
        self._queue: queue.Queue[_Waiting] = queue.Queue(QUEUE_MAX)
        self._waited = waited
        self._clock = clock
        self._runtime = _Runtime(
            scheduler,
            clock=clock,
            executor=_Relay(executor, self.post),
            store=store,
            solver=lambda command, _: solver(command, self.post),
            observers=observers,
            mishaps=self,
            restored=restored,
        )
        self._runtime.turns = self._turn
        self._refused: dict[int, EventRefusedError] = {}
        self._notices: deque[str] = deque(maxlen=NOTICES_KEPT)
        self._lock = FairLock()
        self._picture: SchedulerState | None = None
        self._closed = threading.Event()

    def buy_nodes(self, sizer: SizeSolver, provider: NodeProvider) -> None:
        """Have `sizer` decide how many nodes there are, and `provider` bring them; to
        be called before `recover`.
        """
        self._runtime.buy_nodes(
            lambda command, _: sizer(command, self.post),
            _NodesRelay(provider, self.post),
        )

    def recover(
        self,
        config: SchedulerConfig,
        announce: Announce,
        prices: Prices | None = None,
        offers: Sequence[Offer] = (),
        sizing_s: float = SIZING_S,
    ) -> None:
        """Replay the journal, before `run`.

        announce: see LiveExecutor. The other arguments: the present settings.
        """
        self._runtime.recover()
        state = self._runtime.scheduler.state
        self._clock.advance(state.at)
        changes: list[Event] = []
        if not self._runtime.executor.rescales_in_place:
            config = replace(config, rescale_in_place=False)
        if config != state.config:
            changes.append(SchedulerConfigured(at=self._clock.now(), config=config))
        if prices != state.prices:
            changes.append(PricesConfigured(at=self._clock.now(), prices=prices))
        changes += self._changed_offers(state, offers, sizing_s)
        announce(dict(state.nodes), changes.append)
        self._runtime.post_all(changes)

    def _changed_offers(
        self, state: SchedulerState, offers: Sequence[Offer], sizing_s: float
    ) -> list[Event]:
        """Return the event that configures these offers, none if they are known."""
        buying = state.buying
        known = () if buying is None else tuple(buying.offers.values())
        now = tuple(sorted(offers, key=lambda offer: offer.id))
        if now == known and (buying is None or sizing_s == buying.sizing_s):
            return []
        at = self._clock.now()
        return [OffersConfigured(at=at, offers=now, sizing_s=sizing_s)]

    def run(self) -> None:
        """Handle events until `close`. An exception here is a bug or a failed disk, and
        ends the loop.
        """
        try:
            self._run()
        finally:
            self._ended.set()
            self._fail_waiting()

    def _run(self) -> None:
        while not self._closed.is_set():
            group = self._next_group()
            try:
                self._runtime.post_all(
                    [event for waiting in group for event in waiting.events]
                )
                self._clock.run_due()
            except BaseException as error:
                for waiting in group:
                    if waiting.future is not None:
                        waiting.future.set_exception(error)
                raise
            self._complete(group)

    def _fail_waiting(self) -> None:
        """Fail the futures of events that will not be handled any more."""
        with suppress(queue.Empty):
            while True:
                future = self._queue.get_nowait().future
                if future is not None and not future.done():
                    future.set_exception(EndedError("the scheduler is stopping"))

    def _complete(self, group: "list[_Waiting]") -> None:
        """Complete the futures of a handled group."""
        now = time.monotonic()
        refused = self._refused
        for waiting in group:
            for _ in waiting.events:
                self._waited(now - waiting.since)
            if waiting.future is not None:
                places = enumerate(waiting.events) if refused else ()
                errors = {
                    place: refused[id(event)]
                    for place, event in places
                    if id(event) in refused
                }
                waiting.future.set_result(errors)
        refused.clear()

    def event_refused(self, number: int, event: Event, error: Exception) -> None:
        job = f" of job {event.job}" if hasattr(event, "job") else ""
        text = (
            f"event {number}, {type(event).__name__}{job}, was set aside: the "
            f"scheduler could not handle it "
            f"({describe(error)}); nothing has changed"
        )
        self._notices.append(text)
        self._refused[id(event)] = EventRefusedError(text)
        logger.error("%s; see: coadapt doctor", text)

    def observer_failed(
        self, observer: Callable[..., object], error: Exception
    ) -> None:
        name = getattr(observer, "__name__", type(observer).__name__)
        text = (
            f"{name} is switched off until the next start: it failed "
            f"({describe(error)})"
        )
        self._notices.append(text)
        logger.error("%s; jobs are scheduled as before", text, exc_info=error)

    def notice(self, text: str) -> None:
        """Add a text for the operator to `notices`."""
        with self._lock:
            self._notices.append(text)

    def notices(self) -> list[str]:
        """Return internal errors since the start, the latest last."""
        trouble = self._trouble()
        late = self._plans.trouble(trouble) if self._plans is not None else ""
        now = late or trouble
        with self._lock:
            return [*self._notices, *[now] * bool(now)]

    def close(self) -> None:
        self._closed.set()

    def post(self, event: Event) -> None:
        """Post an event; block while the queue is full."""
        self._queue.put(_Waiting(events=(event,), future=None, since=time.monotonic()))

    def commit(self, event: Event) -> "Future[None]":
        """Post an event. The future is done once the event is durable and handled.

        The future's error is EventRefusedError, or the exception that ended the loop.
        Raises OverloadedError.
        """
        handled: Future[None] = Future()

        def complete(done: "Future[dict[int, EventRefusedError]]") -> None:
            error = done.exception() or done.result().get(0)
            if not handled.set_running_or_notify_cancel():
                return  # the caller has cancelled the future
            if error is not None:
                handled.set_exception(error)
            else:
                handled.set_result(None)

        self.commit_all((event,), time.monotonic()).add_done_callback(complete)
        return handled

    def commit_all(
        self, events: Sequence[Event], since: float
    ) -> "Future[dict[int, EventRefusedError]]":
        """Post events that belong together. The future is done once all are durable and
        handled.

        since: instant at which the first of them came, monotonic s. The future's result
        has the errors of refused events, by their index. Raises OverloadedError,
        StoreAwayError while the journal cannot be written, and EndedError once the
        scheduler is stopping.
        """
        if trouble := self._trouble():
            raise StoreAwayError(trouble)
        if self._ended.is_set():
            raise EndedError("the scheduler is stopping")
        future: Future[dict[int, EventRefusedError]] = Future()
        try:
            self._queue.put_nowait(_Waiting(events=events, future=future, since=since))
        except queue.Full:
            raise OverloadedError(f"{QUEUE_MAX} events wait to be written") from None
        if self._ended.is_set():  # the loop ended since the check above
            self._fail_waiting()
        return future

    def watch_trouble(self, trouble: Callable[[], str]) -> None:
        """Set the function that returns why the store cannot write; "" if it can."""
        self._trouble = trouble

    def watch_plans(self, plans: PlanWatch) -> None:
        """Set the watch of plans: `notices` then reports late plans."""
        self._plans = plans

    def trouble(self) -> str:
        """Return why the journal cannot be written now; "" if it can."""
        return self._trouble()

    def read(self, question: Callable[[SchedulerState], T]) -> T:
        """Return `question(state)`. The state includes all events that were answered.

        The question must not keep references to the state. While an event about all
        jobs is handled, it gets a copy of the state before that event.
        """
        while not self._lock.enter(PATIENCE_S):
            picture = self._picture
            if picture is not None:
                return question(picture)
        try:
            return question(self._runtime.scheduler.state)
        finally:
            self._lock.leave()

    def hold(self, question: Callable[[SchedulerState], T]) -> T:
        """Return `question(state)` between two events, so that it may also read what
        observers collect.
        """
        with self._lock:
            return question(self._runtime.scheduler.state)

    @contextmanager
    def _turn(self, event: Event) -> Iterator[None]:
        """Hold the lock while `event` is handled. If that takes long, readers get a
        copy of the state before it.
        """
        state = self._runtime.scheduler.state
        if len(state.jobs) >= MANY_JOBS and isinstance(event, ABOUT_ALL):
            self._picture = picture_of(state)
        with self._lock:
            yield
        self._picture = None

    def now(self) -> float:
        return self._clock.now()

    def peek(self, job: JobId) -> JobRecord | None:
        """Return a live job's record, to read its values. A single look-up in a
        dictionary needs no lock.
        """
        return self._runtime.scheduler.state.jobs.get(job)

    def application_times_of(self, job: JobId) -> ApplicationTimes | None:
        """Return the step times of other jobs that the last plan has for this job."""
        return self._runtime.application_times_of(job)

    def hazard_of(self, job: JobId) -> float:
        """Return the expected losses of any node of the job in an hour."""
        return self._runtime.hazard_of(job)

    def num_waiting(self) -> int:
        """Return the number of events that wait to be written."""
        return self._queue.qsize()

    def num_events(self) -> int:
        """Return the number of the last handled event, for observers."""
        return self._runtime.num_events

    def _next_group(self) -> "list[_Waiting]":
        alarm_at = self._clock.next_at()
        wait_s = (
            IDLE_S
            if alarm_at is None
            else min(max(alarm_at - self._clock.now(), 0.0), IDLE_S)
        )
        group: list[_Waiting] = []
        with suppress(queue.Empty):
            group.append(
                self._queue.get(timeout=wait_s) if wait_s else self._queue.get_nowait()
            )
            self._drain(group)
        return group

    def _drain(self, group: "list[_Waiting]") -> None:
        """Add waiting entries to the group."""
        while len(group) < GROUP_MAX and not self._queue.empty():
            group.append(self._queue.get_nowait())


class _Runtime(Runtime):
    """A runtime whose state other threads read."""

    turns: Callable[[Event], AbstractContextManager[None]]

    def turn(self, event: Event) -> AbstractContextManager[None]:
        return self.turns(event)


class _Relay:
    """An executor whose answers, which come from other threads, go through the
    queue.
    """

    def __init__(self, executor: Executor, post: Post) -> None:
        self._executor = executor
        self._post = post

    @property
    def rescales_in_place(self) -> bool:
        return self._executor.rescales_in_place

    def execute(self, command: JobCommand, post: Post) -> None:  # noqa: ARG002 - replaced by the queue's
        self._executor.execute(command, self._post)


class _NodesRelay:
    """The provider of nodes as the runtime sees it, with answers through the queue."""

    def __init__(self, provider: NodeProvider, post: Post) -> None:
        self._provider = provider
        self._post = post

    def buy(self, command: BuyNodes, post: Post) -> None:  # noqa: ARG002 - replaced by the queue's
        self._provider.buy(command, self._post)

    def give_back(self, command: GiveBack, post: Post) -> None:  # noqa: ARG002 - replaced by the queue's
        self._provider.give_back(command, self._post)


async def commit(live: "LiveLoop", event: Event) -> None:
    """Return once `event` is durable and handled.

    Raises StoreAwayError if the journal cannot be written now; the event may still be
    written later. Raises OverloadedError, EndedError and EventRefusedError; then the
    event had no effect.
    """
    handled = asyncio.wrap_future(live.commit(event))
    while not (await asyncio.wait({handled}, timeout=LOOK_S))[0]:
        if trouble := live.trouble():
            handled.cancel()
            raise StoreAwayError(trouble + MAY_STILL_COME)
    handled.result()
