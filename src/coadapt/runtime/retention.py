"""What a scheduler forgets: jobs that ended long ago, logs beyond a total, events that
no restart needs.
"""

# In which order, and why nothing is lost by a kill in between
#
# Of a job its files go first, then its rows in the index: cut off, the next prune finds
# it there and goes on. The checkpoints of a job stay, whatever its age: they are its
# result. Only jobs that the index knows as ended are looked at, and files stay as well
# while a process of the job holds its lock.
#
# Events go last (journal.py). An event that is younger than what is kept of jobs stays,
# and so does all that follows the older of the journal's two snapshots: what a restart
# reads is never touched.

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from coadapt.model import JobId

if TYPE_CHECKING:
    from coadapt.runtime.job_index import JobIndex
    from coadapt.runtime.journal import Journal

DAY_S = 86_400.0
MEBIBYTE = 1024 * 1024

JOB = "job"
LOGS = "logs"
EVENTS = "events"


@dataclass(frozen=True, slots=True, kw_only=True)
class Keep:
    """How long ended jobs are kept, and events beside them; how much of all logs
    together, in MiB.
    """

    days: float
    logs_mib: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """What one step of a prune deletes: a job, the logs of one, or events; num_bytes:
    of files.
    """

    what: str
    job: JobId = ""
    num_bytes: int = 0
    num_events: int = 0


class JobFiles(Protocol):
    """The files of jobs, as far as they are the scheduler's: logs and control notes, no
    checkpoints.
    """

    def sizes(self, *, logs_only: bool) -> Mapping[JobId, int]:
        """Return the bytes of each job that has files."""
        ...

    def size(self, job: JobId) -> int: ...

    def remove(self, job: JobId, *, logs_only: bool) -> bool:
        """Delete them; return False if the job lives, and nothing was touched."""
        ...


class Retention:
    """Forgets what is too old; a prune that is cut off is finished by the next one."""

    def __init__(self, index: "JobIndex", journal: "Journal", files: JobFiles) -> None:
        self._index = index
        self._journal = journal
        self._files = files

    def due(self, keep: Keep, at: float) -> Iterator[Step]:
        """Yield what is too old at `at` (s); nothing is touched."""
        before_at = at - keep.days * DAY_S
        old = [job.id for job in self._index.ended_before(before_at)]
        yield from (
            Step(what=JOB, job=job, num_bytes=self._files.size(job)) for job in old
        )
        yield from self._surplus_logs(keep, set(old))
        if count := self._journal.prunable(before_at):
            yield Step(what=EVENTS, num_events=count)

    def steps(self, keep: Keep, at: float) -> Iterator[Step]:
        """Delete what is too old at `at` (s), and yield each step once it is done."""
        num_events = 0
        for step in self.due(keep, at):
            if step.what == EVENTS:
                num_events = step.num_events
            elif self._files.remove(step.job, logs_only=step.what == LOGS):
                if step.what == JOB:
                    self._index.remove([step.job])
                yield step
        self._index.remove_rounds(at - keep.days * DAY_S)
        before = 0
        for done in self._journal.prune(num_events):
            yield Step(what=EVENTS, num_events=done - before)
            before = done

    def _surplus_logs(self, keep: Keep, gone: set[JobId]) -> Iterator[Step]:
        """Yield logs of ended jobs, the oldest first, until what is left together is
        small enough.
        """
        sizes = {
            job: size
            for job, size in self._files.sizes(logs_only=True).items()
            if job not in gone
        }
        surplus = sum(sizes.values()) - keep.logs_mib * MEBIBYTE
        if surplus <= 0:
            return
        ended = [
            job
            for job in map(self._index.ended, sorted(sizes))
            if job is not None and sizes[job.id]
        ]
        for job in sorted(ended, key=lambda job: (job.ended_at, job.id)):
            if surplus <= 0:
                return
            surplus -= sizes[job.id]
            yield Step(what=LOGS, job=job.id, num_bytes=sizes[job.id])
