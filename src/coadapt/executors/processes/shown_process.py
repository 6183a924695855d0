"""The command and environment that /proc shows of a forked process. Linux only.

Processes of a job are found by /proc/PID/environ and /proc/PID/cmdline
(job_processes.py). These show the memory in which the kernel put what a process was
started with, which a fork has in common with its parent. So the parent is started with
one long argument and one long variable, and each fork writes its own into their memory.
Everything else there stays: libraries may hold pointers to it.
"""

import ctypes
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from coadapt.model.contract_env import RESERVED_ENV_PREFIX

ROOM_ENV = "COADAPT_ROOM"
ROOM_BYTES = 64 * 1024  # the kernel allows 128 KiB per string
ROOM_ARGUMENT = "x" * 8 * 1024
# of /proc/PID/stat, counted from the state: where arguments and environment begin
ARG_START_FIELD = 45
ENV_START_FIELD = 47


@dataclass(frozen=True, slots=True)
class Room:
    """Memory that /proc shows: its address and size in bytes."""

    address: int
    size: int

    @classmethod
    def of(cls, path: str, field: int, begin: bytes, size: int) -> "Room":
        """Return the memory of the `size` bytes at `begin` in a file of /proc/self.

        Raises ValueError if they are not there, or the kernel hides where they are.
        """
        start = int(
            Path("/proc/self/stat").read_text().rpartition(")")[2].split()[field]
        )
        offset = Path(path).read_bytes().index(begin)
        if start == 0:
            raise ValueError(f"the kernel hides the address of {path}")
        return cls(start + offset, size)

    def write(self, parts: Sequence[str]) -> None:
        """Write as many of `parts` as fit, each with a NUL after it."""
        data = b""
        for part in parts:
            item = os.fsencode(part) + b"\0"
            if len(data) + len(item) <= self.size:
                data += item
        ctypes.memmove(self.address, data.ljust(self.size, b"\0"), self.size)


@dataclass(frozen=True, slots=True)
class Shown:
    """What /proc shows of this process, as far as it can be replaced."""

    arguments: Room
    environment: Room

    @classmethod
    def find(cls) -> "Shown":
        """Return the memory of ROOM_ARGUMENT and ROOM_ENV. Raises ValueError."""
        argument = ROOM_ARGUMENT.encode()
        variable = f"{ROOM_ENV}=".encode()
        return cls(
            Room.of("/proc/self/cmdline", ARG_START_FIELD, argument, len(argument)),
            Room.of("/proc/self/environ", ENV_START_FIELD, variable, ROOM_BYTES),
        )

    def replace(self, command: Sequence[str], envs: Mapping[str, str]) -> None:
        """Take `envs` for the environment. Show it and `command`."""
        os.environ.clear()
        os.environ.update(envs)
        # The names by which processes of a job are found come first.
        names = sorted(envs, key=lambda name: not name.startswith(RESERVED_ENV_PREFIX))
        self.environment.write([f"{name}={envs[name]}" for name in names])
        self.arguments.write(command)
