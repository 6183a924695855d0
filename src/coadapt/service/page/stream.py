"""Server-sent events: whether anything has changed, and that the scheduler is there."""

import asyncio
from collections.abc import AsyncIterator

from coadapt.service.page.source import PageSource

# A page that hears nothing for a few of these says that the scheduler is away.
BEAT_S = 1.0


async def beats(source: PageSource, apart_s: float = BEAT_S) -> AsyncIterator[str]:
    """Yield an event at once and then every `apart_s` seconds: `changed` or `beat`,
    with the last event's number.
    """
    before = -1
    while True:
        number = source.num_events()
        kind = "beat" if number == before else "changed"
        yield f"event: {kind}\ndata: {number}\n\n"
        before = number
        await asyncio.sleep(apart_s)
