"""The scheduler that a demo starts as a process: whether it answers, and its end."""

import signal
import subprocess
from contextlib import suppress
from pathlib import Path

from coadapt.cli.client import RefusedError, UnreachableError, find_client
from coadapt.executors.processes.job_processes import kill_marked

STOP_TIMEOUT_S = 10.0


class DemoError(RuntimeError):
    """The demo cannot go on; the text says why."""


def answers(state: Path) -> bool:
    """Return whether the scheduler of the state directory `state` answers."""
    try:
        find_client(state).get("/v1/healthz")
    except (UnreachableError, RefusedError, FileNotFoundError, ValueError):
        return False
    return True


def end(process: subprocess.Popen[bytes] | None, state: Path) -> None:
    """End the scheduler, and every process of every job of its state directory."""
    if process is not None and process.poll() is None:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    for folder in sorted((state / "jobs").glob("*")):
        with suppress(OSError):
            kill_marked(folder / "checkpoints")
