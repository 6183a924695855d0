"""Processes of a Slurm that is all on this machine: whose they are, and how a node dies
with them.
"""

import os
import signal
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from tests.executors.slurm.daemons import SlurmCluster

# What stands on the scheduler's machine, which is this one too.
NEAR = ("processes.launcher", "slurm.proxy", "srun")


def processes(*words: str) -> list[int]:
    """Return the ids of those with all of `words` in their command line."""
    pids = [int(path.name) for path in Path("/proc").glob("[0-9]*")]
    return [pid for pid in pids if all(word in command(pid) for word in words)]


def command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return ""


def kill_node(slurm: SlurmCluster, node: str, marked: Iterable[int]) -> None:
    """Kill -9 a node's daemon, its steps, and of a job's processes (`marked`) those
    that are there.
    """
    slurm.kill(node)
    far = [pid for pid in marked if not any(near in command(pid) for near in NEAR)]
    for pid in (*_steps_of(slurm, node), *far):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _steps_of(slurm: SlurmCluster, node: str) -> list[int]:
    """Return Slurm's own processes above the steps of `node`, and the runners in
    them.
    """
    found = []
    for pid in (*processes("slurmstepd"), *processes("coadapt.executors.slurm.runner")):
        with suppress(OSError):
            environ = Path(f"/proc/{pid}/environ").read_bytes()
            here = (
                f"SLURMD_NODENAME={node}".encode() in environ
                or f"spool-{node}".encode() in environ
            )
            if (
                here
                and str(slurm.folder).encode() in environ
                and "srun" not in command(pid)
            ):
                found.append(pid)
    return found
