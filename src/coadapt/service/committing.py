"""Events of requests: each is durable and handled before it is answered, and none waits without an end."""

import asyncio

from coadapt.core.events import Event
from coadapt.model.errors import StoreAwayError
from coadapt.service.live_loop import LiveLoop

# How often a request looks whether the journal can still be written.
LOOK_S = 0.5
MAY_STILL_COME = "; what was asked for may still be done once it is back"


async def commit(live: LiveLoop, event: Event) -> None:
    """Return once `event` is durable and handled.

    Raises StoreAwayError where the journal cannot be written now; the event may still be written later.
    Raises OverloadedError, EndedError and EventRefusedError as well; nothing came of the event then.
    """
    handled = asyncio.wrap_future(live.commit(event))
    while not (await asyncio.wait({handled}, timeout=LOOK_S))[0]:
        if trouble := live.trouble():
            handled.cancel()
            raise StoreAwayError(trouble + MAY_STILL_COME)
    handled.result()
