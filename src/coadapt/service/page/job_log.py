"""A replica's log for the page: its end, and the lines that contain a text."""

from collections.abc import Callable, Iterator

from coadapt.model.wire import Json
from coadapt.runtime.ports import LogPart

TAIL_BYTES = 64 * 1024
# The part of a log that is searched, counted from its end, and most lines shown.
SEARCHED_BYTES = 64 * 1024 * 1024
LINES_SHOWN = 500
# What a chunk of a log has, see replica_log.py: the search for its end doubles from
# there.
FIRST_STEP = 64 * 1024
LINE_BYTES_MAX = 4_000

Read = Callable[[int], LogPart]


def log_end(read: Read) -> int:
    """Return the number of bytes of a log."""
    low = 0
    high = FIRST_STEP
    while read(high).data:
        low = high
        high *= 2
    while low < high:
        middle = (low + high) // 2
        if read(middle).data:
            low = middle + 1
        else:
            high = middle
    return low


def log_values(read: Read, search: str) -> dict[str, Json]:
    """Return the end of a log, or with `search` the last lines that contain it,
    whatever their case.
    """
    end = log_end(read)
    if not search:
        begin = max(end - TAIL_BYTES, 0)
        text = b"".join(_parts(read, begin, end)).decode(errors="replace")
        return {"end": end, "begin": begin, "text": text, "num_found": None}
    begin = max(end - SEARCHED_BYTES, 0)
    found: list[str] = []
    wanted = search.casefold()
    for line in _lines(_parts(read, begin, end)):
        if wanted in line.casefold():
            found.append(line)
    text = "\n".join(found[-LINES_SHOWN:])
    return {"end": end, "begin": begin, "text": text, "num_found": len(found)}


def _parts(read: Read, begin: int, end: int) -> Iterator[bytes]:
    offset = begin
    while offset < end:
        part = read(offset)
        if not part.data:
            return
        yield part.data
        offset = part.next_offset


def _lines(parts: Iterator[bytes]) -> Iterator[str]:
    rest = b""
    for part in parts:
        *whole, rest = (rest + part).split(b"\n")
        rest = rest[-LINE_BYTES_MAX:]
        for line in whole:
            yield line[-LINE_BYTES_MAX:].decode(errors="replace")
    if rest:
        yield rest.decode(errors="replace")
