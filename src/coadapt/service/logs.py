"""A job's log over all its generations as one stream of bytes, followed while the job lives."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path

CHUNK_BYTES = 64 * 1024
POLL_S = 0.25


async def stream_logs(
    files: Callable[[], Sequence[Path]], offset: int, ended: Callable[[], bool] | None
) -> AsyncIterator[bytes]:
    """Yield the files' bytes from `offset` of their concatenation.

    files: asked again at each look, oldest first; new ones may come at the end. ended: whether no more will
    come, asked before a last look; None: do not wait for more.
    """
    while True:
        last = ended is None or await asyncio.to_thread(ended)
        async for chunk in _from(files(), offset):
            offset += len(chunk)
            yield chunk
        if last:
            return
        await asyncio.sleep(POLL_S)


async def _from(files: Sequence[Path], offset: int) -> AsyncIterator[bytes]:
    for path in files:
        size = path.stat().st_size
        while offset < size:
            chunk = await asyncio.to_thread(_read, path, offset, min(size - offset, CHUNK_BYTES))
            if not chunk:
                return  # somebody cut the file
            offset += len(chunk)
            yield chunk
        offset -= size


def _read(path: Path, offset: int, count: int) -> bytes:
    with path.open("rb") as file:
        file.seek(offset)
        return file.read(count)
