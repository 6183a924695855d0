"""What a live scheduler did so far, from its files: the index of jobs, and the
journal's latest snapshot.
"""

import sqlite3
from pathlib import Path

from coadapt.core.config import SchedulerConfig
from coadapt.core.lifecycle import ENDED
from coadapt.core.scheduler import Scheduler
from coadapt.core.state import SchedulerState
from coadapt.runtime.history import History
from coadapt.runtime.index_writer import IndexWriter
from coadapt.runtime.job_history import whole_history
from coadapt.runtime.job_index import JobIndex
from coadapt.runtime.journal import Journal
from coadapt.runtime.runtime import Observer


def read_back(
    journal_path: Path,
    index_path: Path,
    config: SchedulerConfig,
    num_ended: int | None = None,
) -> tuple[Scheduler, History]:
    """Return the scheduler as the journal leaves it, and the history of all jobs that
    are known: of the ended ones those `num_ended` that ended last, all by default.

    The files are left as they are, so that a scheduler may be running on them: what the
    index does not have yet is added to a copy in memory.
    """
    index = JobIndex(":memory:")
    scheduler, _ = read_back_into(index, journal_path, index_path, config)
    return scheduler, whole_history(index, scheduler.state, num_ended)


def read_back_into(
    index: JobIndex,
    journal_path: Path,
    index_path: Path,
    config: SchedulerConfig,
    observer: Observer = lambda *_: None,
    *,
    earlier_up_to: int = -1,
) -> tuple[Scheduler, int]:
    """Fill an empty index; return the scheduler as the journal leaves it, and the last
    event's number.

    `observer` sees the events after the journal's latest snapshot, which may be few.
    Where at most `earlier_up_to` jobs were live at the snapshot before it, `observer`
    sees the events after that one.
    """
    if index_path.exists():
        with sqlite3.connect(f"file:{index_path}?mode=ro", uri=True) as source:
            index.copy_from(source)
    journal = Journal.at_path(journal_path)
    try:
        state, upto = _beginning(journal, earlier_up_to)
        scheduler = Scheduler(config, state)
        writer = IndexWriter(index, journal.whole, config)
        writer.restored(scheduler.state, upto)
        for number, event in journal.numbered_events(after=upto):
            commands = scheduler.handle(event)
            writer.observe(number, event, commands, scheduler.state)
            observer(event, commands, scheduler.state)
        return scheduler, journal.last_number
    finally:
        journal.close()


def _beginning(
    journal: Journal, earlier_up_to: int
) -> tuple[SchedulerState | None, int]:
    """Return the state from which events are read, None for an empty one, and the
    number of the last event before them.
    """
    if earlier_up_to >= 0:
        state, upto = journal.earlier_snapshot() or (None, 0)
        if state is None:
            return state, upto
        live = [job for job in state.jobs.values() if job.state not in ENDED]
        if len(live) <= earlier_up_to:
            return state, upto
    return journal.latest_snapshot() or (None, 0)
