"""On a Ray node: an actor above one process of a job."""

import os
import selectors
import socket
import subprocess
import time

import ray

from coadapt.executors.processes import line as lines
from coadapt.executors.processes.job_processes import (
    adopt_orphans,
    kill_descendants,
    terminate,
)

READ_BYTES = 256 * 1024
# How long one call waits for output. It is also the longest delay of a stop.
WAIT_S = 0.2
# The output that a dead process left in its pipe is there at once. Other processes may
# keep the pipe open, but these are not waited for.
DRAIN_S = 0.5


class Runner:
    """Runs a command in its own session. Ray ends this process when the proxy is gone.

    envs: the whole environment of the command. workdir: None for the directory that Ray
    has brought, which is the present one. If Ray assigned a GPU, the command sees only
    this GPU. LOCAL_RANK is then 0, because libraries use it as the number of their
    device.
    """

    def __init__(
        self, command: list[str], envs: dict[str, str], workdir: str | None
    ) -> None:
        adopt_orphans()
        gpus = ray.get_gpu_ids()
        if gpus:
            given = {
                "CUDA_VISIBLE_DEVICES": ",".join(str(gpu) for gpu in gpus),
                "LOCAL_RANK": "0",
            }
            envs = {**envs, **given}
        self._line = _call(envs.pop(lines.ENV_LINE, ""))
        self._process = subprocess.Popen(
            command,
            cwd=workdir or os.getcwd(),
            env=envs,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        assert self._process.stdout is not None
        self._output = self._process.stdout.fileno()
        os.set_blocking(self._output, False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._output, selectors.EVENT_READ)

    def read(self) -> tuple[bytes, int | None]:
        """Return the output since the last call, perhaps after a wait, and the exit
        code once all output was read.
        """
        data = self._read(WAIT_S)
        code = self._process.poll()
        if data or code is None:
            return data, None
        deadline = time.monotonic() + DRAIN_S
        while more := self._read(max(deadline - time.monotonic(), 0.0)):
            data += more
        kill_descendants()
        return data, code

    def terminate(self) -> None:
        """Order the process to save its state and end."""
        if self._process.poll() is None:
            terminate(self._process.pid)

    def _read(self, wait_s: float) -> bytes:
        if not self._selector.get_map():
            time.sleep(wait_s)
            return b""
        if not self._selector.select(wait_s):
            return b""
        data = os.read(self._output, READ_BYTES)
        if not data:
            self._selector.unregister(self._output)
        return data


def _call(where: str) -> socket.socket | None:
    """Return the connection to the proxy, which stays open and is never used, None if
    the proxy cannot be reached.
    """
    if not where:
        return None
    try:
        return lines.call(where)
    except OSError:
        return None
