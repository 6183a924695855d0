"""The files that the scheduler keeps about each job. They are counted, and deleted some
time after the job has ended.
"""

import logging
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path

from coadapt.executors.processes.records.generation_dir import JOBS, RECORDS, JobDir
from coadapt.executors.processes.records.own_files import (
    is_there,
    names_in,
    path_is_dir,
)
from coadapt.model import JobId
from coadapt.objects import ObjectFolder

LOCK = "lock"
# A launcher may outlive its replicas by this time.
LAUNCHER_ENDS_S = 2.0

logger = logging.getLogger(__name__)


class StateDirFiles:
    """Files under `<state>/jobs`; the port JobFiles of runtime/retention.py."""

    def __init__(self, state_dir: Path) -> None:
        self._state_dir = state_dir

    def sizes(self, *, logs_only: bool) -> dict[JobId, int]:
        jobs = {
            name
            for folder in (JOBS, RECORDS)
            for name in names_in(self._state_dir / folder)
            if path_is_dir(self._state_dir / folder / name)
        }
        return {job: self._bytes(job, logs_only=logs_only) for job in sorted(jobs)}

    def size(self, job: JobId) -> int:
        return self._bytes(job, logs_only=False)

    def remove(self, job: JobId, *, logs_only: bool) -> bool:
        directory = JobDir.of(self._state_dir, job)
        if not (path_is_dir(directory.path) or is_there(directory.records)):
            return True
        try:
            with directory.lock() as had:
                if not had:
                    return False
                for path in _ours(directory, logs_only=logs_only):
                    _delete(path)
                if not logs_only:
                    _delete_if_empty(directory)
                    _delete(directory.records)
        except OSError as error:  # deletion is tried again at the next cleaning
            logger.warning("files of job %s cannot be removed: %s", job, error)
            return False
        return True

    def remove_checkpoints(self, job: JobId, url: str) -> None:
        """Remove the checkpoints of a job that has ended, if they are not needed. They
        are below the URL of an object store, or in the job's directory if the URL is
        empty. Files that cannot be removed stay, which is logged.
        """
        try:
            if url:
                ObjectFolder(url).remove(job)
                return
            directory = JobDir.of(self._state_dir, job)
            if directory.path.is_symlink():
                return
            with directory.lock(LAUNCHER_ENDS_S) as had:
                if had:
                    for name in names_in(directory.checkpoints):
                        _delete(directory.checkpoints / name)
        except Exception as error:  # noqa: BLE001 - a store's errors are of many kinds
            logger.warning("checkpoints of job %s are not removed: %s", job, error)

    def _bytes(self, job: JobId, *, logs_only: bool) -> int:
        directory = JobDir.of(self._state_dir, job)
        size = sum(_size(path) for path in _ours(directory, logs_only=logs_only))
        if not logs_only and not directory.records.is_symlink():
            size += sum(_size(path) for path in _records(directory))
        return size


def _ours(directory: JobDir, *, logs_only: bool) -> Iterator[Path]:
    """Yield the files that may be deleted: all but the checkpoints, which belong to the
    job.

    If the job replaced its directory by a link, nothing of it is yielded.
    """
    if directory.path.is_symlink():
        return
    if logs_only:
        yield from [directory.logs] * path_is_dir(directory.logs)
        return
    for name in names_in(directory.path):
        if name != directory.checkpoints.name:
            yield directory.path / name


def _records(directory: JobDir) -> Iterator[Path]:
    """Yield the records about a job, except its lock, which has no content."""
    for name in names_in(directory.records):
        if name != LOCK:
            yield directory.records / name


def _size(path: Path) -> int:
    """Return the bytes of all files at and below `path`. A file that cannot be read
    counts 0.
    """
    total = 0
    waiting = [path]
    while waiting:
        at = waiting.pop()
        try:
            found = at.lstat()
        except OSError:
            continue
        if stat.S_ISDIR(found.st_mode):
            waiting += [at / name for name in names_in(at)]
        else:
            total += found.st_size
    return total


def _delete(path: Path) -> None:
    """Remove a file, a link or a folder. Raises OSError."""
    if path_is_dir(path) and not path.is_symlink():
        shutil.rmtree(path)
    elif is_there(path):
        path.unlink()


def _delete_if_empty(directory: JobDir) -> None:
    if directory.path.is_symlink() or not names_in(directory.checkpoints):
        _delete(directory.path)
