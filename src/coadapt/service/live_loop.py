"""The live host of the core: what any thread posts is journaled in groups and handled by one thread."""

import logging
import queue
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import TypeVar

from coadapt.core.commands import JobCommand
from coadapt.core.config import SchedulerConfig
from coadapt.core.events import Event, NodeJoined, NodeLost, SchedulerConfigured
from coadapt.core.scheduler import Scheduler
from coadapt.core.state import SchedulerState
from coadapt.model import Node
from coadapt.runtime.ports import Executor, Post, Solver, Store
from coadapt.runtime.runtime import Observer, Runtime
from coadapt.runtime.wall_clock import WallClock

# A full queue means that the disk cannot keep up: callers are told to come back instead of being buffered.
QUEUE_MAX = 10_000
# One commit costs about as much for a group as for one event; larger groups would only delay the first.
GROUP_MAX = 500
# How soon `close` is noticed.
IDLE_S = 0.05

T = TypeVar("T")

logger = logging.getLogger(__name__)


class OverloadedError(RuntimeError):
    """Too many events wait to be written; try again later."""


class LiveLoop:
    """Turns the runtime. `post`, `commit` and `read` are for any thread, `run` for one of its own."""

    def __init__(
        self,
        scheduler: Scheduler,
        *,
        clock: WallClock,
        executor: Executor,
        store: Store,
        solver: Solver,
        observers: Sequence[Observer] = (),
    ) -> None:
        self._queue: queue.Queue[tuple[Event, Future[None] | None]] = queue.Queue(QUEUE_MAX)
        self._clock = clock
        self._runtime = Runtime(
            scheduler,
            clock=clock,
            executor=_Relay(executor, self.post),
            store=store,
            solver=lambda command, _: solver(command, self.post),
            observers=observers,
        )
        self._lock = threading.Lock()
        self._closed = threading.Event()

    def recover(self, nodes: Sequence[Node], config: SchedulerConfig) -> None:
        """Read the journal back, before `run`; `nodes` and `config` are those of now."""
        self._runtime.recover()
        state = self._runtime.scheduler.state
        self._clock.advance(state.at)
        at = self._clock.now()
        gone = sorted(state.nodes.keys() - {node.id for node in nodes})
        self._runtime.post_all(
            [
                *[SchedulerConfigured(at=at, config=config)] * (config != state.config),
                *(NodeLost(at=at, node=node) for node in gone),
                *(NodeJoined(at=at, node=node) for node in nodes if state.nodes.get(node.id) != node),
            ]
        )

    def run(self) -> None:
        """Handle events until `close`. What is raised here is a bug or a dead disk: nothing goes on then."""
        while not self._closed.is_set():
            group = self._next_group()
            try:
                with self._lock:
                    self._runtime.post_all([event for event, _ in group])
                    self._clock.run_due()
            except BaseException as error:
                for _, future in group:
                    if future is not None:
                        future.set_exception(error)
                raise
            for _, future in group:
                if future is not None:
                    future.set_result(None)

    def close(self) -> None:
        self._closed.set()

    def post(self, event: Event) -> None:
        """Hand an event over; wait while too many are waiting."""
        self._queue.put((event, None))

    def commit(self, event: Event) -> "Future[None]":
        """Hand an event over; the future is done once it is durable and handled. Raises OverloadedError."""
        future: Future[None] = Future()
        try:
            self._queue.put_nowait((event, future))
        except queue.Full:
            raise OverloadedError(f"{QUEUE_MAX} events wait to be written") from None
        return future

    def read(self, question: Callable[[SchedulerState], T]) -> T:
        """Return `question(state)` between two groups of events. It must not keep what it sees."""
        with self._lock:
            return question(self._runtime.scheduler.state)

    def now(self) -> float:
        return self._clock.now()

    def _next_group(self) -> list[tuple[Event, "Future[None] | None"]]:
        alarm_at = self._clock.next_at()
        wait_s = IDLE_S if alarm_at is None else min(max(alarm_at - self._clock.now(), 0.0), IDLE_S)
        group = []
        try:
            group.append(self._queue.get(timeout=wait_s) if wait_s else self._queue.get_nowait())
            while len(group) < GROUP_MAX:
                group.append(self._queue.get_nowait())
        except queue.Empty:
            pass
        return group


class _Relay:
    """The executor as the runtime sees it: answers come from other threads, so they go through the queue."""

    def __init__(self, executor: Executor, post: Post) -> None:
        self._executor = executor
        self._post = post

    @property
    def resizes_in_place(self) -> bool:
        return self._executor.resizes_in_place

    def execute(self, command: JobCommand, post: Post) -> None:  # noqa: ARG002 - replaced by the queue's
        self._executor.execute(command, self._post)
