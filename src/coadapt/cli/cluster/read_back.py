"""What a live scheduler did so far, from its files: the index of jobs, and the
journal's latest snapshot.
"""

import sqlite3
from pathlib import Path

from coadapt.core.config import SchedulerConfig
from coadapt.core.scheduler import Scheduler
from coadapt.runtime.history import History
from coadapt.runtime.index_writer import IndexWriter
from coadapt.runtime.job_history import whole_history
from coadapt.runtime.job_index import JobIndex
from coadapt.runtime.journal import Journal


def read_back(
    journal_path: Path, index_path: Path, config: SchedulerConfig
) -> tuple[Scheduler, History]:
    """Return the scheduler as the journal leaves it, and the history of all jobs that
    are known.

    The files are left as they are, so that a scheduler may be running on them: what the
    index does not have yet is added to a copy in memory.
    """
    index = JobIndex(":memory:")
    if index_path.exists():
        with sqlite3.connect(f"file:{index_path}?mode=ro", uri=True) as source:
            index.copy_from(source)
    journal = Journal.at_path(journal_path)
    try:
        state, upto = journal.latest_snapshot() or (None, 0)
        scheduler = Scheduler(config, state)
        writer = IndexWriter(index, journal.whole, config)
        writer.restored(scheduler.state, upto)
        for number, event in journal.numbered_events(after=upto):
            writer.observe(number, event, scheduler.handle(event), scheduler.state)
    finally:
        journal.close()
    return scheduler, whole_history(index, scheduler.state)
