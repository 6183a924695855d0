"""A store whose snapshots are written beside the events: the loop only waits for a copy to be taken."""

# Why a shallow copy will do
#
# All values of the state are frozen and replaced whole; only the state itself, its dictionaries and the
# records of jobs change. So copies of those are a picture of the moment, and turning them into text, which
# takes seconds at 10,000 jobs, needs nobody to wait. What the snapshot stands for is in the journal already:
# one that comes late, or not at all, costs a longer replay and nothing else. So while one is written, the
# next is left out. An error of one is raised at the next: a disk that cannot be written ends the scheduler.

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace

from coadapt.core.events import Event
from coadapt.core.state import JobRecord, SchedulerState
from coadapt.runtime.disk_reserve import is_disk_full
from coadapt.runtime.ports import Store


class SnapshotsAside(Store):
    """The store `store`, but for its snapshots, which a thread writes; on a full disk events go first."""

    def __init__(
        self,
        store: Store,
        committed: Callable[[float], None] = lambda _: None,
        make_room: Callable[[], None] = lambda: None,
    ) -> None:
        """`committed` is told how long each commit of events took, in seconds. `make_room` is called when the
        disk is full; then it is tried once more.
        """
        self._store = store
        self._committed = committed
        self._make_room = make_room
        self._writer = ThreadPoolExecutor(max_workers=1, thread_name_prefix="snapshot")
        self._writing: Future[None] | None = None

    @property
    def last_number(self) -> int:
        return self._store.last_number

    def append(self, events: Sequence[Event]) -> None:
        begun = time.perf_counter()
        try:
            self._store.append(events)
        except Exception as error:
            if not is_disk_full(error):
                raise
            self._make_room()
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
        """Wait until what is being written is written. Raises what went wrong with it, but for a full disk:
        it was left out then, and a restart replays more events.
        """
        if self._writing is None:
            return
        try:
            self._writing.result()
        except Exception as error:
            if not is_disk_full(error):
                raise

    def close(self) -> None:
        """End the thread, once it has written what it is at."""
        self._writer.shutdown()


def picture_of(state: SchedulerState) -> SchedulerState:
    """Return a copy that stays as it is while `state` goes on."""
    jobs = {name: copy_of(job) for name, job in state.jobs.items()}
    ended, tenants = dict(state.ended), dict(state.tenants)
    picture = replace(
        state, nodes=dict(state.nodes), jobs=jobs, ended=ended, tenants=tenants
    )
    picture.active = [jobs[job.id] for job in state.active]
    return picture


def copy_of(job: JobRecord) -> JobRecord:
    """Return a copy of a job's record that stays as it is."""
    # By hand, a tenth of what copy.copy takes: all 10,000 are copied while the loop waits.
    made = object.__new__(JobRecord)
    made.id, made.spec, made.submitted_at, made.ended_at = (
        job.id,
        job.spec,
        job.submitted_at,
        job.ended_at,
    )
    made.status, made.target, made.order, made.running = (
        job.status,
        job.target,
        job.order,
        job.running,
    )
    made.failed_rescales = job.failed_rescales
    made.growth = job.growth
    made.unfit_nodes = job.unfit_nodes
    made.heard_at = job.heard_at
    made.measured, made.usage = job.measured, job.usage
    return made
