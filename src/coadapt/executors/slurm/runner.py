"""The task of a Slurm step on a node: it runs one process of a job, and has a
connection to its proxy.

Started as `python -m … COMMAND…`. The command's output is the output of the step.
"""

import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from types import FrameType

from coadapt.executors.processes import line as lines
from coadapt.executors.processes.job_processes import (
    adopt_orphans,
    kill_descendants,
    terminate,
)
from coadapt.model.contract_env import EXIT_NO_WORKDIR, EXIT_STOPPED

# The longest delay with which an end, or a signal from Slurm, is noticed.
LOOK_S = 0.1
VISIBLE = "CUDA_VISIBLE_DEVICES"
# Libraries that find other variables of Slurm assume that this step is the whole job,
# with one process.
KEPT_ENVS = frozenset(
    {
        "SLURM_CONF",
        "SLURM_JOB_ID",
        "SLURM_CLUSTER_NAME",
        "SLURMD_NODENAME",
        "SLURM_TMPDIR",
    }
)
DROPPED_PREFIXES = (
    "SLURM_",
    "SLURMD_",
    "SRUN_",
    "SBATCH_",
    "PMI_",
    "PMIX_",
    "COADAPT_SLURM_",
)


def main(*command: str) -> None:
    """Run `command` until it ends, is ordered to stop, or the connection breaks. Never
    returns.
    """
    signal.signal(signal.SIGTERM, _on_signal)
    adopt_orphans()
    where = os.environ[lines.ENV_LINE].partition(" ")[0]
    try:
        line = lines.call()
    except OSError as error:
        sys.stderr.write(
            f"the scheduler's machine cannot be reached from this node at {where}: "
            f"{error}\n"
        )
        sys.exit(1)
    if (lacking := missing_workdir(os.environ.get(lines.ENV_WORKDIR, ""))) is not None:
        sys.stdout.write(f"error: {lacking}\n")
        sys.stdout.flush()
        os._exit(_say(line, EXIT_NO_WORKDIR))
    try:
        process = subprocess.Popen(
            command,
            env=replica_envs(os.environ),
            stdin=subprocess.DEVNULL,
            stderr=subprocess.STDOUT,  # that of a step carries the words of Slurm's own
            start_new_session=True,
        )
    except OSError as error:
        sys.stdout.write(
            f"cannot be started on {os.environ.get('SLURMD_NODENAME')}: {error}\n"
        )
        sys.stdout.flush()
        os._exit(_say(line, 127))
    code = _follow(process, line)
    kill_descendants()
    os._exit(0 if code is None else _say(line, code))


def missing_workdir(wanted: str) -> str | None:
    """Change to the replica's work directory. Return why that is impossible, None if it
    succeeds.
    """
    if not wanted:
        return None
    try:
        os.chdir(wanted)
    except OSError as error:
        node = os.environ.get("SLURMD_NODENAME", "this node")
        return (
            f"node {node} has no work directory {wanted} ({error.strerror}): nothing "
            f"was run there; "
            "mount it on each node, or take the node out of the pool"
        )
    return None


def replica_envs(given: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a replica, from the environment of its step.

    Slurm numbers the GPUs of a step in its own way. The plan's numbers are positions
    among these.
    """
    kept = {
        name: value
        for name, value in given.items()
        if name in KEPT_ENVS or not name.startswith(DROPPED_PREFIXES)
    }
    wanted = given.get(lines.ENV_DEVICES)
    if wanted is not None:
        of_step = given[VISIBLE].split(",") if given.get(VISIBLE) else []
        numbers = [
            int(number) for number in wanted.split(",") if number
        ]  # none: a slot of CPUs
        whole = len(of_step) > max(numbers, default=0)
        kept[VISIBLE] = ",".join(
            of_step[number] if whole else str(number) for number in numbers
        )
    return kept


_stop_asked = False


def _on_signal(_number: int, _frame: FrameType | None) -> None:
    global _stop_asked  # noqa: PLW0603  # a signal handler has no other state
    _stop_asked = True


def _follow(process: "subprocess.Popen[bytes]", line: socket.socket) -> int | None:
    """Return how the process ended, None if the proxy is gone."""
    passed_on = False
    while (code := process.poll()) is None:
        readable, _, _ = select.select([line], [], [], LOOK_S)
        asked = _heard(line) if readable else b""
        if asked is None:
            return None
        if (asked or _stop_asked) and not passed_on:
            passed_on = True
            terminate(process.pid)
    # Slurm's signal goes to every process of the step, so an error that it causes is
    # not the script's fault.
    return -signal.SIGTERM if _stop_asked and code not in (0, EXIT_STOPPED) else code


def _heard(line: socket.socket) -> bytes | None:
    try:
        return line.recv(1) or None
    except OSError:
        return None


def _say(line: socket.socket, code: int) -> int:
    """Report to the proxy how the process ended. Return the exit code of this
    process.
    """
    try:
        line.sendall(f"{code}\n".encode())
    except OSError:
        return 1
    return 0


if __name__ == "__main__":
    main(*sys.argv[1:])
