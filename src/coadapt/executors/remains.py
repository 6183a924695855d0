"""Find and end the processes of a job that its launcher left behind. Linux only (/proc).

Every process that a launcher starts inherits the job's private checkpoint directory in its environment, which
marks it whatever session or process group it moved to.
"""

import os
import signal
import time
from pathlib import Path

from coadapt.model.contract_env import ENV_CHECKPOINT_DIR

# SIGKILL cannot be refused; a process that outlives this is stuck in the kernel and frees nothing anyway.
KILL_WAIT_S = 5.0
POLL_S = 0.01


def marked_processes(checkpoints: Path) -> list[int]:
    """Return the ids of living processes, except this one, that carry the mark of `checkpoints`."""
    mark = f"{ENV_CHECKPOINT_DIR}={checkpoints}".encode()
    return [
        int(entry.name)
        for entry in Path("/proc").iterdir()
        if entry.name.isdigit() and int(entry.name) != os.getpid() and mark in _environ(entry)
    ]


def kill_marked(checkpoints: Path) -> int:
    """End all marked processes and wait until they are gone; return how many there were."""
    deadline = time.monotonic() + KILL_WAIT_S
    found = set[int]()
    while (alive := marked_processes(checkpoints)) and time.monotonic() < deadline:
        found.update(alive)
        for pid in alive:
            _kill(pid)
        time.sleep(POLL_S)
    return len(found)


def _environ(process: Path) -> list[bytes]:
    try:
        # A zombie has an empty environment: it holds nothing and only waits to be reaped.
        return (process / "environ").read_bytes().split(b"\0")
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return []


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return
