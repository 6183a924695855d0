"""A job's living processes, told apart, and killed from outside."""

import os
import signal
from contextlib import suppress
from pathlib import Path

from coadapt.executors.processes.job_processes import marked_processes

LAUNCHER = b"coadapt.executors"


def pids_of(checkpoints: Path, *, launcher: bool) -> list[int]:
    """Return the job's processes that are its launcher, or all that are not."""
    found = []
    for pid in marked_processes(checkpoints):
        with suppress(
            FileNotFoundError, ProcessLookupError
        ):  # it has just ended by itself
            if (LAUNCHER in Path(f"/proc/{pid}/cmdline").read_bytes()) == launcher:
                found.append(pid)
    return found


def kill_of(checkpoints: Path, *, launcher: bool) -> None:
    """Kill -9 what `pids_of` finds, except what ends first: a launcher ends all as soon
    as one is gone.
    """
    for pid in pids_of(checkpoints, launcher=launcher):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
