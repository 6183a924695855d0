"""A process here that represents a process of a Slurm step: it prints that process's
output, and ends in the same way.

To the launcher it is the replica. Started as `python -m … ADDRESS SUSPECT srun …`.
Tokens travel in the environment only: command lines are for everybody to read.
"""

# Why srun alone is not enough: on SIGTERM it kills its step at once, without time to
# save. And if srun itself is killed, its step notices that only when it next prints. So
# the runner keeps a connection to this process.

import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import FrameType
from typing import IO

from coadapt.executors.processes import line as lines
from coadapt.executors.processes.proxy_process import Begun, end_as

LOOK_S = 0.1
# The time for a step to begin. Python starts on a node that may be busy, from a disk
# that may be slow.
BEGIN_S = 120.0
# The time for the last output, once the end is known.
DRAIN_S = 10.0
# The time for srun to print the reason, once the connection is broken.
WHY_S = 2.0
VISIBLE = "CUDA_VISIBLE_DEVICES"
SAID_BYTES = 4096


def main(address: str, suspect: str, *command: str) -> None:
    """Run `command`, an srun of a runner, and end as its replica does; never returns.

    address: the address to which the runner connects. suspect: a file that is created
    if the node may be the cause.
    """
    signal.signal(signal.SIGTERM, _on_signal)
    begun = Begun()
    exchange = lines.Exchange(address)
    envs = {**os.environ, **exchange.envs, lines.ENV_WORKDIR: os.getcwd()}
    if VISIBLE in envs:
        envs[lines.ENV_DEVICES] = envs.pop(VISIBLE)
    with tempfile.TemporaryFile() as said:
        srun = subprocess.Popen(
            command, env=envs, stdin=subprocess.DEVNULL, stderr=said
        )
        line = _answered(exchange, srun)
        if line is not None:
            begun.tell()
        code = None if line is None else _follow(line)
        _see_off(srun, DRAIN_S if code is not None else WHY_S)
        if code is None:
            Path(suspect).touch()
            _print_why(said)
    end_as(-signal.SIGKILL if code is None else code)


_stop_asked = False


def _on_signal(_number: int, _frame: FrameType | None) -> None:
    global _stop_asked  # noqa: PLW0603  # a signal handler has no other state
    _stop_asked = True


def _answered(
    exchange: lines.Exchange, srun: "subprocess.Popen[bytes]"
) -> socket.socket | None:
    """Return the connection to the runner, None if the runner did not connect."""
    deadline = time.monotonic() + BEGIN_S
    while srun.poll() is None and time.monotonic() < deadline:
        ready, _, _ = select.select([exchange.server], [], [], LOOK_S)
        if ready and (line := exchange.answer()) is not None:
            exchange.server.close()
            return line
    return None


def _follow(line: socket.socket) -> int | None:
    """Pass on an order to stop. Return how the replica ended, None if the connection
    broke.
    """
    said = b""
    passed_on = False
    try:
        while not said.endswith(b"\n"):
            if _stop_asked and not passed_on:
                passed_on = True
                line.sendall(lines.STOP)
            ready, _, _ = select.select([line], [], [], LOOK_S)
            if ready:
                more = line.recv(16)
                if not more:
                    return None
                said += more
    except OSError:
        return None
    return int(said)


def _see_off(srun: "subprocess.Popen[bytes]", patience_s: float) -> None:
    try:
        srun.wait(patience_s)
    except subprocess.TimeoutExpired:
        srun.terminate()  # which ends the step
        try:
            srun.wait(patience_s)
        except subprocess.TimeoutExpired:
            srun.kill()


def _print_why(said: IO[bytes]) -> None:
    """Print srun's own messages. The replica's output arrives separately."""
    said.seek(0)
    text = said.read(SAID_BYTES).decode(errors="replace")
    known = [
        each for each in text.splitlines() if each.strip() and "cpu binding" not in each
    ]
    why = known[-1].strip() if known else "nothing was heard of it any more"
    sys.stdout.write(
        "\n".join((*known, f"error: this replica's step or node is lost: {why}\n"))
    )
    sys.stdout.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
