"""Group commit of training reports: many reports wait for one write to the disk."""

# At most one group is on its way to the disk; what comes meanwhile is the next. So a
# report that comes alone is written at once, and the busier the scheduler is, the more
# reports share a write. Groups are also some milliseconds apart. Otherwise a few busy
# jobs would keep the disk writing all the time, for reports whose loss does no harm.
#
# The group, and not the report, goes through the loop's queue and comes back from it:
# to wake a thread costs as much as to take a report in.

import asyncio
import time
from collections import deque
from concurrent.futures import Future
from contextlib import suppress

from coadapt.core.events import TrainingReported
from coadapt.model import JobId
from coadapt.model.errors import StoreAwayError
from coadapt.service.live_loop import (
    EndedError,
    EventRefusedError,
    LiveLoop,
    OverloadedError,
)
from coadapt.service.reports.budget import ReportBudget

# Half of what a commit takes on a disk of 10 ms, so it costs next to no throughput: 100
# commits a second.
APART_S = 0.01
GROUP_MAX = 500  # 20 ms of the loop's time
WAITING_MAX = 10_000


class _Group:
    """Reports that go together, and what became of them once `handled` is set."""

    __slots__ = ("error", "events", "handled", "refused", "since")

    def __init__(self, since: float) -> None:
        self.events: list[TrainingReported] = []
        self.since = since
        self.handled = asyncio.Event()
        self.refused: dict[int, EventRefusedError] = {}
        self.error: BaseException | None = None


class ReportGroups:
    """Hands reports over to `live` in groups; for coroutines."""

    def __init__(self, live: LiveLoop, budget: ReportBudget | None = None) -> None:
        """budget: what is taken in of each job; None: all."""
        self._live = live
        self._line: _Line | None = None
        self._budget = budget

    def num_waiting(self) -> int:
        """Return how many reports were not handed over yet; for any thread."""
        return 0 if self._line is None else self._line.num_waiting()

    @property
    def num_dropped(self) -> int:
        """How many reports were dropped, beyond their jobs' budgets."""
        return 0 if self._budget is None else self._budget.dropped

    def take(self, job: JobId, num_bytes: int) -> None:
        """Raise TooManyReportsError where `num_bytes` are beyond what is kept of the
        job.
        """
        if self._budget is not None:
            self._budget.take(job, num_bytes)

    async def commit(self, event: TrainingReported, num_bytes: int = 0) -> None:
        """Return once the report, which came as `num_bytes`, is durable and handled.

        Raises OverloadedError, EndedError or StoreAwayError if nothing was kept of it,
        EventRefusedError, and what broke the loop. Raises TooManyReportsError where the
        job reports more than is kept.
        """
        self.take(event.job, num_bytes)
        loop = asyncio.get_running_loop()
        line = self._line
        if line is None or line.loop is not loop:
            line = self._line = _Line(self._live, loop)
        await line.commit(event)


class _Line:
    """Groups of one asyncio loop: a server has one, each request of a test its own."""

    def __init__(self, live: LiveLoop, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._live = live
        self._waiting: deque[_Group] = deque()
        self._on_its_way = False
        self._next_at = loop.time()

    def num_waiting(self) -> int:
        return sum(len(group.events) for group in tuple(self._waiting))

    async def commit(self, event: TrainingReported) -> None:
        group = self._open_group()
        place = len(group.events)
        group.events.append(event)
        await group.handled.wait()
        if group.error is not None:
            raise group.error
        if group.refused and place in group.refused:
            raise group.refused[place]

    def _open_group(self) -> _Group:
        if self._waiting and len(self._waiting[-1].events) < GROUP_MAX:
            return self._waiting[-1]
        if len(self._waiting) * GROUP_MAX >= WAITING_MAX:
            raise OverloadedError(f"{WAITING_MAX} reports wait to be written")
        self._waiting.append(_Group(time.monotonic()))
        if len(self._waiting) == 1 and not self._on_its_way:
            self._call_next()
        return self._waiting[-1]

    def _call_next(self) -> None:
        self._on_its_way = True
        if self.loop.time() < self._next_at:
            self.loop.call_at(self._next_at, self._hand_over)
        else:
            self.loop.call_soon(self._hand_over)

    def _hand_over(self) -> None:
        group = self._waiting.popleft()
        self._next_at = self.loop.time() + APART_S
        try:
            future = self._live.commit_all(group.events, group.since)
        except (OverloadedError, EndedError, StoreAwayError) as error:
            group.error = error
            self._end(group)
            return

        def settled(done: "Future[dict[int, EventRefusedError]]") -> None:
            with suppress(
                RuntimeError
            ):  # the loop was closed meanwhile, and no caller waits
                self.loop.call_soon_threadsafe(self._settle, group, done)

        future.add_done_callback(settled)

    def _settle(
        self, group: _Group, done: "Future[dict[int, EventRefusedError]]"
    ) -> None:
        group.error = done.exception()
        if group.error is None:
            group.refused = done.result()
        self._end(group)

    def _end(self, group: _Group) -> None:
        group.handled.set()
        self._on_its_way = False
        if self._waiting:
            self._call_next()
