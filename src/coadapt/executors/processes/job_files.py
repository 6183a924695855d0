"""What the scheduler keeps on disk of each job, to be counted and deleted once the job has ended."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from coadapt.executors.processes.generation_dir import JobDir
from coadapt.model import JobId

LOCK = "lock"


class StateDirFiles:
    """Files under `<state>/jobs`; the port JobFiles of runtime/retention.py."""

    def __init__(self, state_dir: Path) -> None:
        self._state_dir = state_dir

    def sizes(self, *, logs_only: bool) -> dict[JobId, int]:
        folder = self._state_dir / "jobs"
        jobs = (
            sorted(entry.name for entry in os.scandir(folder) if entry.is_dir())
            if folder.is_dir()
            else []
        )
        return {job: self._bytes(job, logs_only=logs_only) for job in jobs}

    def size(self, job: JobId) -> int:
        return self._bytes(job, logs_only=False)

    def remove(self, job: JobId, *, logs_only: bool) -> bool:
        directory = JobDir.of(self._state_dir, job)
        if not directory.path.is_dir():
            return True
        with directory.lock() as had:
            if not had:
                return False
            for path in _ours(directory, logs_only=logs_only):
                _delete(path)
            if not logs_only:
                _delete_if_empty(directory)
        return True

    def _bytes(self, job: JobId, *, logs_only: bool) -> int:
        directory = JobDir.of(self._state_dir, job)
        return sum(_size(path) for path in _ours(directory, logs_only=logs_only))


def _ours(directory: JobDir, *, logs_only: bool) -> Iterator[Path]:
    """Yield what may be deleted: all but the checkpoints, which are the job's own."""
    if logs_only:
        yield from [directory.logs] * directory.logs.is_dir()
        return
    if directory.path.is_dir():
        kept = {directory.checkpoints.name, LOCK}
        yield from (
            path for path in sorted(directory.path.iterdir()) if path.name not in kept
        )


def _size(path: Path) -> int:
    if path.is_symlink() or not path.is_dir():
        return path.lstat().st_size
    return sum(
        entry.lstat().st_size
        for entry in path.rglob("*")
        if entry.is_symlink() or entry.is_file()
    )


def _delete(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _delete_if_empty(directory: JobDir) -> None:
    checkpoints = directory.checkpoints
    if checkpoints.is_dir() and any(checkpoints.iterdir()):
        return
    shutil.rmtree(directory.path)
