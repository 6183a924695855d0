"""Handles what a scheduler finds when it starts: records in the layout of earlier
versions, and processes without a record.

An invalid job directory does not keep a scheduler from starting. It is logged and
skipped.
"""

import logging
import os
import time
from collections.abc import Collection
from pathlib import Path

from coadapt.executors.processes.job_processes import kill_pid, marked_jobs
from coadapt.executors.processes.records.generation_dir import (
    JOBS,
    JobDir,
    lock_is_free,
)
from coadapt.executors.processes.records.own_files import (
    is_there,
    names_in,
    path_is_dir,
)
from coadapt.model import JobId

# Earlier versions wrote their records where the job writes. A job's launcher of such a
# version that still lives continues to do so, because it has the paths in its memory.
# So its records stay there, and a link leads to them. The records of jobs that have
# ended are moved.
RECORD_FILES = ("order.json", "exit.json", "kept.json")
KILL_WAIT_S = 5.0
POLL_S = 0.02

logger = logging.getLogger(__name__)


def take_over_layout(state_dir: Path) -> None:
    """Move, or link, the records that an earlier version wrote below the jobs' own
    directories.
    """
    for name in names_in(state_dir / JOBS):
        job = JobDir.of(state_dir, name)
        if is_there(job.records) or not _has_old_records(job):
            continue
        try:
            job.records.parent.mkdir(mode=0o700, exist_ok=True)
            if lock_is_free(job.path / "lock"):
                move_records(job)
            else:
                job.records.symlink_to(os.path.relpath(job.path, job.records.parent))
        except OSError as error:
            logger.warning(
                "job %s of an earlier scheduler cannot be adopted: %s", name, error
            )


def move_records(job: JobDir) -> None:
    """Move the records that an earlier version wrote about a job of which no process
    runs. Raises OSError.
    """
    if job.records.is_symlink():
        job.records.unlink()
    job.make_records()
    for name in ("generations", "setup.done"):
        if is_there(job.path / name):
            (job.path / name).rename(job.records / name)


def end_unbooked(state_dir: Path, booked: Collection[JobId]) -> None:
    """End processes with the mark of a job that does not run according to its
    records.
    """
    deadline = time.monotonic() + KILL_WAIT_S
    logged: set[JobId] = set()
    while time.monotonic() < deadline:
        found = marked_jobs(state_dir / JOBS)
        strangers = {job: pids for job, pids in found.items() if job not in booked}
        if not strangers:
            return
        for job, pids in strangers.items():
            if job not in logged:
                logged.add(job)
                logger.warning(
                    "ended %d processes of job %s that no record mentions",
                    len(pids),
                    job,
                )
            for pid in pids:
                kill_pid(pid)
        time.sleep(POLL_S)


def _has_old_records(job: JobDir) -> bool:
    folder = job.path / "generations"
    if not path_is_dir(job.path):
        return False
    return any(
        is_there(folder / number / file)
        for number in names_in(folder)
        for file in RECORD_FILES
    )
