"""Room on the disk that is the journal's alone: a file of it is given up once the disk is nearly full, or is
full all of a sudden.

The scheduler goes on writing down what happens for as long as that lasts, and says that the disk is full.
"""

import errno
import logging
import os
import threading
from pathlib import Path

# An event takes some 0.3 KiB in the journal and as much in its log, so this is for 100,000 of them.
RESERVE_BYTES = 64 * 1024 * 1024
# Below this the reserve is given up; it is taken again when twice as much and itself are free.
LOW_BYTES = 16 * 1024 * 1024
LOOK_S = 1.0
PRIVATE_FILE = 0o600

logger = logging.getLogger(__name__)


class DiskReserve:
    """A file without content beside the journal. `look` and `run` are for one thread, the rest for any."""

    def __init__(
        self,
        path: Path,
        *,
        reserve_bytes: int = RESERVE_BYTES,
        low_bytes: int = LOW_BYTES,
    ) -> None:
        self._path = path
        self._reserve_bytes = reserve_bytes
        self._low_bytes = low_bytes
        self._closed = threading.Event()
        self._giving = threading.Lock()

    def look(self) -> None:
        """Take the reserve where there is room for it, give it up where there is hardly any left."""
        free = free_bytes(self._path.parent)
        held = self._path.exists()
        if held and free < self._low_bytes:
            self.give_up()
        elif not held and free > self._reserve_bytes + 2 * self._low_bytes:
            self._take()

    def give_up(self) -> None:
        """Give the room to the journal, if there is any. Once this returns it is free."""
        with self._giving:  # while another thread does it the file is gone, and its room is not there yet
            free = free_bytes(self._path.parent)
            try:
                self._path.unlink()
            except FileNotFoundError:
                return
        logger.error(
            "the disk of %s is nearly full (%d MiB left): the journal lives on its reserve of %d MiB now",
            self._path.parent,
            free >> 20,
            self._reserve_bytes >> 20,
        )

    def run(self) -> None:
        """Look, every now and then, until `close`."""
        while not self._closed.wait(LOOK_S):
            self.look()

    def close(self) -> None:
        self._closed.set()

    def _take(self) -> None:
        handle = os.open(self._path, os.O_RDWR | os.O_CREAT, PRIVATE_FILE)
        try:
            os.posix_fallocate(handle, 0, self._reserve_bytes)
        except (
            OSError
        ):  # the room went away, or this file system cannot: then there is no reserve
            self._path.unlink(missing_ok=True)
        finally:
            os.close(handle)


def is_disk_full(error: BaseException) -> bool:
    """Return whether something failed because a disk, or a quota of it, is full; SQLite says it in words."""
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return True
    return "database or disk is full" in str(error)


def free_bytes(folder: Path) -> int:
    """Return how many bytes this user may still write on the file system of `folder`. Raises OSError."""
    found = os.statvfs(folder)
    return found.f_bavail * found.f_frsize
