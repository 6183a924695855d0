"""A control group with a memory limit, in which a test runs what is to exceed it."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from coadapt.executors.processes import oom_kills


class MemoryGroup:
    """A new control group of at most `limit_bytes`. Raises OSError where none can be
    made.
    """

    def __init__(self, limit_bytes: int) -> None:
        root, counters = oom_kills.VERSION_1
        limit = "memory.limit_in_bytes"
        if not root.is_dir():
            root, counters = oom_kills.VERSION_2
            limit = "memory.max"
        self._folder = root / f"coadapt-test-{os.getpid()}"
        self._counters = self._folder / counters
        self._folder.mkdir()
        (self._folder / limit).write_text(str(limit_bytes))

    @property
    def join(self) -> Path:
        """The file through which a process joins, by writing its number."""
        return self._folder / "cgroup.procs"

    def kills(self) -> int:
        """Return how many of its processes the kernel has killed, 0 where the kernel
        does not count them.
        """
        lines = self._counters.read_text().splitlines()
        counts = dict(line.split(" ", 1) for line in lines)
        return int(counts.get(oom_kills.COUNTER, 0))

    def close(self) -> None:
        """Remove the group, whose processes have ended."""
        self._folder.rmdir()


@contextmanager
def memory_group(limit_bytes: int) -> Iterator[MemoryGroup]:
    """Make a group for a test, which skips where none can be made."""
    try:
        group = MemoryGroup(limit_bytes)
    except OSError as error:
        pytest.skip(f"no control group can be made here: {error}")
    try:
        yield group
    finally:
        group.close()
