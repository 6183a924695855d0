"""Room on the disk that is the journal's alone: blocks that belong to its files before
they are needed.

The scheduler goes on writing down what happens when a job fills the disk.
"""

# Why the room lies inside the files
#
# A reserve in a file of its own has to be deleted before the journal can use its
# blocks, and then a job that fills the disk takes them within seconds. `fallocate` with
# FALLOC_FL_KEEP_SIZE gives blocks beyond its end to a file. No other file gets these
# blocks, SQLite writes into them as the file grows, and neither its size nor its
# content changes.
#
# A write goes to the write-ahead log first and to the database later, so both have such
# room, and so has the index of shared memory, which grows with the log. The history of
# jobs (jobs.sqlite) is another database, and has the like, so that it need not be
# switched off.
#
# The kernel drops all POSIX locks that a process has on a file once it closes any
# handle of that file, and SQLite's are such locks. So a handle that is opened here
# stays open until the databases are closed.
#
# Where the file system cannot do this (NFS, for instance) there is no reserve.

import ctypes
import errno
import os
import threading
from collections.abc import Mapping
from pathlib import Path

KIBIBYTE = 1024
MEBIBYTE = 1024 * KIBIBYTE
FALLOC_FL_KEEP_SIZE = 1  # linux/falloc.h
BLOCK_BYTES = 512  # of `st_blocks`, whatever the file system's own
# An event takes some 0.3 KiB in the journal, and as much in its log: this is for
# 100,000 of them.
JOURNAL_ROOM = {"": 32 * MEBIBYTE, "-wal": 16 * MEBIBYTE, "-shm": 128 * KIBIBYTE}
INDEX_ROOM = {"": 8 * MEBIBYTE, "-wal": 8 * MEBIBYTE, "-shm": 128 * KIBIBYTE}
# No room is taken where less than this is left for others afterwards.
LOW_BYTES = 16 * MEBIBYTE
LOOK_S = 1.0


class DiskReserve:
    """Room for the files in `wanted` (bytes of each). `look`, `run`, `release` are for
    one thread.
    """

    def __init__(
        self, wanted: Mapping[Path, int], *, low_bytes: int = LOW_BYTES
    ) -> None:
        self._wanted = dict(wanted)
        self._low_bytes = low_bytes
        self._handles: dict[Path, tuple[int, int]] = {}
        self._closed = threading.Event()

    def look(self) -> None:
        """Give each file the room that it lacks, if the disk has it."""
        for path, num_bytes in self._wanted.items():
            try:
                self._see_to(path, num_bytes)
            except OSError:
                # the file or its disk is away, the room is gone, or this file system
                # cannot
                continue

    def run(self) -> None:
        """Look, every now and then, until `close`."""
        while not self._closed.wait(LOOK_S):
            self.look()

    def close(self) -> None:
        self._closed.set()

    def release(self) -> None:
        """Close the handles; to be called once the databases are closed."""
        for handle, _ in self._handles.values():
            os.close(handle)
        self._handles.clear()

    def _see_to(self, path: Path, num_bytes: int) -> None:
        found = path.stat()
        lacking = found.st_size + num_bytes - found.st_blocks * BLOCK_BYTES
        # Half of it may be used before it is asked for again.
        if lacking < num_bytes // 2:
            return
        if free_bytes(path.parent) - lacking < self._low_bytes:
            return
        keep_blocks(self._handle(path, found.st_ino), found.st_size, num_bytes)

    def _handle(self, path: Path, inode: int) -> int:
        known = self._handles.get(path)
        if known is not None and known[1] == inode:
            return known[0]
        # The handle of a file that was replaced stays open: SQLite may still have locks
        # on it.
        handle = os.open(path, os.O_WRONLY | os.O_NOFOLLOW)
        if known is not None:
            self._handles[path.with_name(f"{path.name}.{known[1]}")] = known
        self._handles[path] = handle, inode
        return handle


def keep_blocks(handle: int, offset: int, num_bytes: int) -> None:
    """Give blocks for `num_bytes` from `offset` on to a file, without a change of its
    size. Raises OSError.
    """
    # Python has posix_fallocate only, which makes the file longer.
    libc = ctypes.CDLL(None, use_errno=True)
    fallocate = getattr(libc, "fallocate64", None) or getattr(libc, "fallocate", None)
    if fallocate is None:
        raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))
    fallocate.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)
    if fallocate(handle, FALLOC_FL_KEEP_SIZE, offset, num_bytes) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def is_disk_full(error: BaseException) -> bool:
    """Return whether something failed because a disk, or a quota of it, is full; SQLite
    says it in words.
    """
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return True
    return "database or disk is full" in str(error)


def free_bytes(folder: Path) -> int:
    """Return how many bytes this user may still write on the file system of `folder`.
    Raises OSError.
    """
    found = os.statvfs(folder)
    return found.f_bavail * found.f_frsize
