"""A thread of the launcher that writes the output of replicas to disk, and keeps each
log within a limit.
"""

# Why output goes through a pipe
#
# A replica that writes to a file by itself can fill the disk within seconds (`yes`),
# and so stop the journal and the scheduler. A file to which another process appends
# cannot be limited from outside. Checks of its size limit nothing, because a fast
# writer writes gigabytes between two checks. A file size limit of the process
# (RLIMIT_FSIZE) also affects its checkpoints. Truncating a file while a process writes
# it loses lines. So the launcher reads the output and writes it to disk. If the
# launcher is killed, its replicas end with it anyway. The scheduler may stop and start
# at any time.
#
# A log is a sequence of bytes, stored in segments of half the limit. Only the last two
# segments exist. The first is NAME.log from byte 0, later ones are NAME.log.START,
# named by the number of their first byte. So no file is ever renamed. A reader with the
# number of a byte finds it, or sees that it is gone, whatever happens meanwhile
# (replica_log.py).

import contextlib
import errno
import fcntl
import os
import selectors
import sys
import termios
import threading
from collections.abc import Callable
from pathlib import Path

from coadapt.executors.processes.records.own_files import (
    kind_of,
    make_folder,
    open_plain,
)
from coadapt.executors.processes.records.replica_log import segment, segments

READ_BYTES = 256 * 1024
# The size of the pipes. A replica that prints while the launcher is busy must not wait.
# An unprivileged user's pipe cannot be larger.
PIPE_BYTES = 1024 * 1024
SEGMENTS_KEPT = 2


class LogPump:
    """Writes the output that arrives in its pipes to logs, in its own thread.

    limit_bytes: the largest size of each log. room: returns whether the disk has room
    for output now. Output without room is dropped and counted.
    """

    def __init__(self, limit_bytes: int, room: Callable[[], bool]) -> None:
        self._segment_bytes = max(limit_bytes // SEGMENTS_KEPT, 1)
        self._room = room
        self._lock = threading.Lock()
        self._selector = selectors.DefaultSelector()
        self._wake = os.pipe()
        self._selector.register(self._wake[0], selectors.EVENT_READ)
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="log-pump", daemon=True)
        self._thread.start()

    def open(self, log: Path) -> int:
        """Return a file descriptor whose output goes to `log`; the caller closes it
        once a process has it.
        """
        reader, writer = os.pipe()
        os.set_blocking(reader, False)
        with contextlib.suppress(
            OSError
        ):  # the user's pipes are limited: the default size works as well
            fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        with self._lock:
            self._selector.register(
                reader, selectors.EVENT_READ, _Log(log, self._segment_bytes)
            )
        os.write(self._wake[1], b"x")
        return writer

    def drain(self) -> None:
        """Write all output until now to the logs."""
        with self._lock:
            for key in [
                key for key in self._selector.get_map().values() if key.data is not None
            ]:
                # Only what is in the pipe now: a replica that keeps printing has no
                # end.
                left = _waiting_bytes(key.fd)
                while left > 0 and (count := self._pass_on(key)):
                    left -= count

    def close(self) -> None:
        """Write the remaining output, after all replicas have ended."""
        self.drain()
        self._closed.set()
        os.write(self._wake[1], b"x")
        self._thread.join()
        self._selector.close()

    def _run(self) -> None:
        while not self._closed.is_set():
            for key, _ in self._selector.select():
                if key.data is None:
                    os.read(self._wake[0], READ_BYTES)
                    continue
                with self._lock:
                    if key.fd in self._selector.get_map():
                        self._pass_on(key)

    def _pass_on(self, key: selectors.SelectorKey) -> int:
        """Write the content of one pipe to its log. Return the number of bytes."""
        try:
            data = os.read(key.fd, READ_BYTES)
        except BlockingIOError:
            return 0
        if not data:
            self._selector.unregister(key.fd)
            os.close(key.fd)
            key.data.close()
            return 0
        if self._room():
            key.data.write(data)
        else:
            key.data.drop(len(data))
        return len(data)


class _Log:
    """One log on disk, open at its last segment."""

    def __init__(self, log: Path, segment_bytes: int) -> None:
        self._log = log
        self._segment_bytes = segment_bytes
        self._dropped = 0
        start, path = segments(log)[-1] if segments(log) else (0, log)
        self._file = _append(path)
        self._start = start
        self._size = os.fstat(self._file).st_size

    def write(self, data: bytes) -> None:
        if self._dropped:
            note = (
                f"[coadapt: {self._dropped} bytes of output were dropped: the disk "
                f"was nearly full]\n"
            )
            data = note.encode() + data
            self._dropped = 0
        rest = memoryview(data)
        try:
            if os.fstat(self._file).st_nlink == 0:  # the job removed it
                self._begin_again()
            while rest:
                if self._size >= self._segment_bytes:
                    self._turn_over()
                written = os.write(self._file, rest[: self._segment_bytes - self._size])
                self._size += written
                rest = rest[written:]
        except OSError:  # the disk is full after all: a replica does not wait for room
            self.drop(len(rest))

    def drop(self, count: int) -> None:
        self._dropped += count

    def close(self) -> None:
        os.close(self._file)

    def _begin_again(self) -> None:
        """Continue in a new file at the same path. Its folder may be new too."""
        path = segment(self._log, self._start)
        make_folder(path.parent)
        following = _append(path)
        os.close(self._file)
        self._file = following
        self._size = os.fstat(following).st_size

    def _turn_over(self) -> None:
        """Begin a new segment, and delete all but the previous one."""
        self._start = self._start + self._size
        self._size = 0
        following = _append(segment(self._log, self._start))
        os.close(self._file)
        self._file = following
        for _, path in segments(self._log)[:-SEGMENTS_KEPT]:
            with contextlib.suppress(OSError):
                path.unlink()


def _waiting_bytes(pipe: int) -> int:
    return int.from_bytes(fcntl.ioctl(pipe, termios.FIONREAD, bytes(4)), sys.byteorder)


def _append(path: Path) -> int:
    """Return a descriptor that appends to the plain file `path`. Raises OSError with
    the path.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW
    handle = open_plain(path, flags)
    if handle is None:
        what = kind_of(path) or "nothing, and no file can be made"
        raise OSError(errno.EINVAL, f"{what} where a log belongs", str(path))
    return handle
