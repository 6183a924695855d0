"""A job's log over all its generations as one stream of bytes, followed while the job
lives.
"""

import asyncio
from collections.abc import AsyncIterator, Callable

from coadapt.runtime.ports import LogPart

POLL_S = 0.25


async def stream_logs(
    read: Callable[[int], LogPart], offset: int, ended: Callable[[], bool] | None
) -> AsyncIterator[bytes]:
    """Yield what `read` has from byte `offset` on.

    ended: whether no more will come, asked before a last look; None: do not wait for
    more.
    """
    while True:
        last = ended is None or await asyncio.to_thread(ended)
        while (part := await asyncio.to_thread(read, offset)).data:
            offset = part.next_offset
            yield part.data
        if last:
            return
        await asyncio.sleep(POLL_S)
