"""A store whose snapshots are written beside the events: the loop only waits for a copy
to be taken.
"""

# Why a shallow copy will do
#
# All values of the state are frozen and replaced whole; only the state itself, its
# dictionaries, the records of jobs and what is bought change. So copies of those are a
# picture of the moment. Turning them into text takes seconds at 10,000 jobs, and delays
# nothing. The content of a snapshot is in the journal already: one that comes late, or
# not at all, costs a longer replay and nothing else. So while one is written, the next
# is left out. An error of one is raised at the next: a disk that cannot be written ends
# the scheduler.

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace

from coadapt.core.events import Event
from coadapt.core.state import JobRecord, SchedulerState
from coadapt.model.errors import StoreAwayError
from coadapt.runtime.ports import Store


class BackgroundSnapshots(Store):
    """The store `store`, but for its snapshots, which a thread writes."""

    def __init__(
        self,
        store: Store,
        committed: Callable[[float], None] = lambda _: None,
    ) -> None:
        """`committed` receives how long each commit of events took, in seconds."""
        self._store = store
        self._committed = committed
        self._writer = ThreadPoolExecutor(max_workers=1, thread_name_prefix="snapshot")
        self._writing: Future[None] | None = None

    @property
    def last_number(self) -> int:
        return self._store.last_number

    def append(self, events: Sequence[Event]) -> None:
        begun = time.perf_counter()
        self._store.append(events)
        self._committed(time.perf_counter() - begun)

    def events(self, after: int = 0) -> Iterator[Event]:
        return self._store.events(after)

    def numbered_events(self, after: int = 0) -> Iterator[tuple[int, Event]]:
        return self._store.numbered_events(after)

    def refuse(self, number: int, why: str, trace: str = "") -> None:
        self._store.refuse(number, why, trace)

    def save_snapshot(self, state: SchedulerState, upto: int) -> None:
        if self._writing is not None:
            if not self._writing.done():
                return
            self.finish()
        self._writing = self._writer.submit(
            self._store.save_snapshot, picture_of(state), upto
        )

    def latest_snapshot(self) -> tuple[SchedulerState, int] | None:
        self.finish()
        return self._store.latest_snapshot()

    def finish(self) -> None:
        """Wait until what is being written is written. Raises what went wrong with it,
        unless that may pass (a full disk, a lock): it was left out then, and a restart
        replays more events.
        """
        if self._writing is None:
            return
        with suppress(StoreAwayError):
            self._writing.result()

    def close(self) -> None:
        """End the thread, once it has written what it is at."""
        self._writer.shutdown()


def picture_of(state: SchedulerState) -> SchedulerState:
    """Return a copy that stays as it is while `state` goes on."""
    jobs = {name: copy_of(job) for name, job in state.jobs.items()}
    ended = dict(state.ended)
    tenants = dict(state.tenants)
    picture = replace(
        state,
        nodes=dict(state.nodes),
        away=dict(state.away),
        jobs=jobs,
        ended=ended,
        tenants=tenants,
        studies=dict(state.studies),
        spent=dict(state.spent),
        budget_levels=dict(state.budget_levels),
        buying=None if state.buying is None else state.buying.copy(),
    )
    picture.active = [jobs[job.id] for job in state.active]
    return picture


def copy_of(job: JobRecord) -> JobRecord:
    """Return a copy of a job's record that stays as it is."""
    # By hand, a tenth of what copy.copy takes: all 10,000 are copied while the loop
    # waits.
    made = object.__new__(JobRecord)
    made.id = job.id
    made.spec = job.spec
    made.submitted_at = job.submitted_at
    made.ended_at = job.ended_at
    made.status = job.status
    made.target = job.target
    made.order = job.order
    made.running = job.running
    made.failed_rescales = job.failed_rescales
    made.growth = job.growth
    made.unfit_nodes = job.unfit_nodes
    made.heard_at = job.heard_at
    made.lost_node = job.lost_node
    made.retry_at = job.retry_at
    made.measured = job.measured
    made.usage = job.usage
    made.bill = job.bill
    return made
