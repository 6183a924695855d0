"""Read what a replica printed, over all its generations, as one run of bytes.
log_pump.py writes it.
"""

import os
from collections.abc import Iterable
from pathlib import Path

from coadapt.executors.processes.records.own_files import names_in, open_plain
from coadapt.runtime.ports import LogPart

CHUNK_BYTES = 64 * 1024
# How often a segment may disappear between listing the folder and reading the file.
ATTEMPTS = 5


def segment(log: Path, start: int) -> Path:
    """Return the file of `log` that begins with its byte number `start`."""
    return log.with_name(f"{log.name}.{start}") if start else log


def segments(log: Path) -> list[tuple[int, Path]]:
    """Return, in order, the first byte number and the path of each file of `log` that
    still exists.
    """
    first = f"{log.name}."
    names = names_in(log.parent)
    later = (name.removeprefix(first) for name in names if name.startswith(first))
    starts = sorted(int(text) for text in later if text.isascii() and text.isdecimal())
    starts = [0] * (log.name in names) + starts
    return [(start, segment(log, start)) for start in starts]


def read_log(logs: Iterable[Path], offset: int) -> LogPart:
    """Return up to CHUNK_BYTES of the logs, one after the other, from byte `offset`
    on.
    """
    before = 0  # bytes of the logs before this one
    for log in logs:
        at, data = _read(log, offset - before)
        if data:
            return LogPart(data=data, next_offset=before + at + len(data))
        before += at
    return LogPart(data=b"", next_offset=offset)


def tail(log: Path, count: int) -> bytes:
    """Return the last `count` bytes of a log, or all of it."""
    data = b""
    for _, path in reversed(segments(log)):
        handle = open_plain(path)
        if handle is None:
            continue
        with open(handle, "rb") as file:
            file.seek(max(file.seek(0, os.SEEK_END) - count, 0))
            data = file.read(count) + data
        if len(data) >= count:
            break
    return data[-count:]


def _read(log: Path, offset: int) -> tuple[int, bytes]:
    """Return the first kept bytes of one log from `offset` on, and where they begin. If
    there are none, the log's end and no bytes.
    """
    for _ in range(ATTEMPTS):
        end = 0
        try:
            for start, path in segments(log):
                end = start + path.stat().st_size
                if offset < end:
                    # The bytes between `offset` and this segment are not kept any more.
                    at = max(offset, start)
                    return at, _part(path, at - start, min(CHUNK_BYTES, end - at))
        except OSError:
            # the oldest segment has just disappeared, or the job replaced it
            continue
        return end, b""
    return offset, b""


def _part(path: Path, at: int, count: int) -> bytes:
    """Return `count` bytes of a plain file from byte `at` on, none if `path` is not a
    plain file.
    """
    handle = open_plain(path)
    if handle is None:
        return b""
    with open(handle, "rb") as file:
        file.seek(at)
        return file.read(count)
