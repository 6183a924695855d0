"""Between what replicas print and the disk: a thread of the launcher that keeps each
log within a limit.
"""

# Why output goes through a pipe
#
# A replica that wrote to its file by itself could fill the disk within seconds (`yes`),
# and with it stop the journal and so the scheduler. Nobody can bound a file from
# outside that somebody else appends to: to look at its size now and then bounds nothing
# (a fast writer makes gigabytes between two looks), a file size limit of the process
# (RLIMIT_FSIZE) hits its checkpoints too, and to truncate a file below its writer loses
# lines. So the launcher reads what is printed and writes it down. A launcher that is
# killed takes its replicas with it anyway; the scheduler may come and go as before.
#
# A log is a run of bytes, kept in segments of half the limit, of which the last two
# exist: NAME.log from byte 0, then NAME.log.START, each named by the byte at which it
# begins. So nothing is ever renamed, and a reader who knows a byte's number finds it,
# or sees that it is gone, whatever happens meanwhile (replica_log.py).

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
# A replica that prints while the launcher is busy must not wait; more than this no
# user's pipe may hold.
PIPE_BYTES = 1024 * 1024
SEGMENTS_KEPT = 2


class LogPump:
    """Writes down what is printed into the pipes that it opened, from a thread of its
    own.

    limit_bytes: the most that is kept of each log. room: whether the disk has room for
    output now; what is printed meanwhile is dropped, and counted.
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
        ):  # a limit of the user's pipes: the usual size does as well
            fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        with self._lock:
            self._selector.register(
                reader, selectors.EVENT_READ, _Log(log, self._segment_bytes)
            )
        os.write(self._wake[1], b"x")
        return writer

    def drain(self) -> None:
        """Write down all that was printed until now."""
        with self._lock:
            for key in [
                key for key in self._selector.get_map().values() if key.data is not None
            ]:
                # As much as is there now: one that prints on and on has no end.
                left = _waiting_bytes(key.fd)
                while left > 0 and (count := self._pass_on(key)):
                    left -= count

    def close(self) -> None:
        """Write down what is left, once nobody prints any more."""
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
        """Write down what waits in one pipe; return how many bytes that were."""
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
        except (
            OSError
        ):  # the disk is full all the same: a replica does not wait for room
            self.drop(len(rest))

    def drop(self, count: int) -> None:
        self._dropped += count

    def close(self) -> None:
        os.close(self._file)

    def _begin_again(self) -> None:
        """Write on in a new file at the same path, in a folder that may be new."""
        path = segment(self._log, self._start)
        make_folder(path.parent)
        following = _append(path)
        os.close(self._file)
        self._file = following
        self._size = os.fstat(following).st_size

    def _turn_over(self) -> None:
        """Begin a new segment, and forget all but the one before it."""
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
    """Return a descriptor that appends to the plain file `path`. Raises OSError that
    names it.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW
    handle = open_plain(path, flags)
    if handle is None:
        what = kind_of(path) or "nothing, and no file can be made"
        raise OSError(errno.EINVAL, f"{what} where a log belongs", str(path))
    return handle
