"""A process that waits to become a replica, and what a launcher needs of any replica's
process.
"""

import json
import os
import signal
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

MESSAGE_BYTES_MAX = 256 * 1024


class Process(Protocol):
    """The part of subprocess.Popen that is needed of a launcher or a replica."""

    @property
    def pid(self) -> int: ...

    def poll(self) -> int | None: ...


@dataclass(slots=True)
class Spare:
    """A process, a child of the launcher, that waits to become a replica."""

    pid: int
    line: socket.socket
    command: tuple[str, ...]
    _code: int | None = None

    def start(self, workdir: str, envs: Mapping[str, str], output: int) -> bool:
        """Let it become the replica. `output` is the file for what it prints. Return
        False if the process is gone, or the message is too large.
        """
        message = {"command": self.command, "workdir": workdir, "envs": dict(envs)}
        with self.line:
            try:
                socket.send_fds(self.line, [json.dumps(message).encode()], [output])
            except OSError:
                return False
        return True

    def poll(self) -> int | None:
        """Return the exit code, None while the process lives."""
        if self._code is None:
            try:
                pid, status = os.waitpid(self.pid, os.WNOHANG)
            except ChildProcessError:  # as after a kill: how it ended is not known
                self._code = -signal.SIGKILL
            else:
                self._code = os.waitstatus_to_exitcode(status) if pid else None
        return self._code
