"""The differences between a backup of the journal and the jobs' own directories."""

# A backup does not have the events after it. Three things on disk show them: the
# journal that is replaced, if it can be read, the history of jobs, and the records in
# the jobs' directories. A job that ended since is cancelled in the restored state,
# because otherwise it would be run again. A job that runs in a later generation than
# the restored state has would be ended by the scheduler. This needs --end-jobs.

import sqlite3
from collections.abc import Mapping
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote

from coadapt.core.events import Outcome
from coadapt.core.lifecycle import ENDED
from coadapt.core.scheduler import Scheduler
from coadapt.core.state import SchedulerState
from coadapt.executors.processes.job_processes import marked_processes
from coadapt.executors.processes.records.generation_dir import JOBS, RECORDS, JobDir
from coadapt.executors.processes.records.own_files import names_in
from coadapt.model import JobId
from coadapt.model.errors import StoreError
from coadapt.runtime.journal import Journal


@dataclass(slots=True, kw_only=True)
class Differences:
    """What differs, job by job, in a sentence each.

    ended: they ended after the backup, and must not run again. to_end: they run, and
    the restored books would have them ended. renumber: generations on disk that the
    restored books would give out again. unknown: they were submitted after the backup,
    and do not run.
    """

    ended: dict[JobId, str] = field(default_factory=dict)
    to_end: dict[JobId, str] = field(default_factory=dict)
    renumber: dict[JobId, str] = field(default_factory=dict)
    unknown: dict[JobId, str] = field(default_factory=dict)

    def lines(self) -> list[str]:
        found = {**self.ended, **self.to_end, **self.renumber, **self.unknown}
        return [f"{job} {text}" for job, text in sorted(found.items())]


def state_of(path: Path) -> SchedulerState:
    """Return the scheduler's state by the journal at `path`. Raises StoreError,
    InputError.
    """
    journal = Journal.at_path(path)
    try:
        snapshot = journal.latest_snapshot()
        after = 0 if snapshot is None else snapshot[1]
        scheduler = Scheduler()
        if snapshot is not None:
            scheduler = Scheduler(snapshot[0].config, snapshot[0])
        for event in journal.events(after):
            scheduler.handle(event)
        return scheduler.state
    finally:
        journal.close()


def ends_on_disk(journal: Path, index: Path) -> dict[JobId, str]:
    """Return how jobs ended by the journal that is replaced and by the history, as far
    as these are read.
    """
    ends: dict[JobId, str] = {}
    if index.exists():
        address = f"file:{quote(str(index))}?mode=rw"
        with suppress(sqlite3.Error), closing(sqlite3.connect(address, uri=True)) as db:
            ends.update(db.execute("SELECT id, state FROM ended").fetchall())
    if journal.exists() and journal.stat().st_size:
        with suppress(StoreError, ValueError):
            ends.update(_ends(state_of(journal)))
    return ends


def compare(
    state: SchedulerState, ends: Mapping[JobId, str], state_dir: Path
) -> Differences:
    """Return where `state` differs from what is on disk. ends: how jobs ended since."""
    found = Differences()
    there = {*names_in(state_dir / JOBS), *names_in(state_dir / RECORDS)}
    known_ends = _ends(state)
    for job in sorted({*there, *state.jobs}):
        if job not in known_ends:
            _compare_job(found, state, ends, JobDir.of(state_dir, job))
        elif marked_processes(JobDir.of(state_dir, job).checkpoints):
            found.to_end[job] = f"runs, but {known_ends[job]} before the backup"
    return found


def _compare_job(
    found: Differences, state: SchedulerState, ends: Mapping[JobId, str], files: JobDir
) -> None:
    job = files.path.name
    runs = bool(marked_processes(files.checkpoints))
    generations = files.generations()
    newest = generations[-1] if generations else None
    record = state.jobs.get(job)
    if record is None:
        how = f" and {ends[job]}" if job in ends else ""
        text = f"was submitted after the backup{how}; its files stay"
        if runs:
            found.to_end[job] = f"runs, but {text}"
        else:
            found.unknown[job] = text
        return
    known = record.order.generation
    end = ends.get(job)
    exit_record = None if newest is None else newest.exit_record()
    if exit_record is not None and exit_record.outcome is Outcome.SUCCEEDED:
        end = "succeeded"
        if newest is not None and newest.number == known:
            return  # the next start finds that by itself
    if end is not None:
        found.ended[job] = (
            f"{end} after the backup; it is not run again, and is shown as cancelled"
        )
    elif newest is not None and newest.number > known:
        text = f"was started {newest.number} times, {known} of them before the backup"
        if runs:
            found.to_end[job] = f"runs: it {text}"
        found.renumber[job] = f"{text}; it goes on from its checkpoint"


def _ends(state: SchedulerState) -> dict[JobId, str]:
    ended = {
        job.id: job.state.value for job in state.jobs.values() if job.state in ENDED
    }
    return {**{job: how.value for job, how in state.ended.items()}, **ended}
