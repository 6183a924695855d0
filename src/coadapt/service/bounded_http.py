"""HTTP by httptools, with an end to how long a request's head may be, how long it may
take to come, and how many come at once.
"""

# httptools (llhttp, as Node.js has it) reads HTTP in C, at an eighth of the CPU of h11,
# which is written in Python. But h11 refuses a head of more than 64 kB, and httptools
# takes whatever comes: a client without a token could send headers until the memory is
# full. So what arrives is counted while a head is being read.
# What comes in one read is parsed before it is counted, and asyncio reads at most 256
# kB at once.
#
# uvicorn closes connections on which nothing comes after an answer, but waits for ever
# for the first request, and for the rest of one: a client without a token could take
# all file descriptors, byte by byte.
#
# Nor does it count connections. A client that reaches the port could have more of them
# than this process may have files open (1,024 is usual), and then the scheduler cannot
# read a job's files and ends. So half of these are for connections, and a newcomer
# beyond takes the place of the connection that has gone longest without an answer: a
# lawful request is here and gone within milliseconds, one that only stays is older.
#
# Requests that come together wait in memory, and 256 kB hold some 10,000 short ones:
# PIPELINED_MAX.

import asyncio
import resource
from typing import cast

from uvicorn.protocols.http.httptools_impl import (
    HttpToolsProtocol,
    RequestResponseCycle,
)

HEAD_BYTES_MAX = 65_536
# From its first byte, or the connection's beginning, to its last: 1 MB at 140 kbit/s.
REQUEST_S = 60.0
# Requests that wait behind the one that is answered, on one connection. No client of
# ours sends any.
PIPELINED_MAX = 100
# More serve no cluster: reports come and go, followed logs stay. Each is some 10 kB.
CONNECTIONS_MAX = 4_000


def connections_max() -> int:
    """Return how many connections there may be at once: half of the files that this
    process may open.
    """
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return (
        CONNECTIONS_MAX
        if files == resource.RLIM_INFINITY
        else min(files // 2, CONNECTIONS_MAX)
    )


class BoundedHttp(HttpToolsProtocol):
    """uvicorn's protocol with limits. A connection is answered 400 and closed if the
    head of its request is too long, if the request takes too long to arrive, or if
    another connection needs its place.
    """

    _in_head = False
    _head_bytes = 0
    _limit: asyncio.TimerHandle | None = None
    _idle_since = (
        0.0  # of the loop's clock: when it was made, or its last request was here whole
    )

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as its parent
        super().connection_made(transport)
        self._idle_since = self.loop.time()
        self._await_request()
        if len(self.connections) > connections_max():
            self._make_room()

    def connection_lost(self, exc: Exception | None) -> None:
        self._request_is_here()
        super().connection_lost(exc)

    def on_message_begin(self) -> None:
        if len(self.pipeline) >= PIPELINED_MAX:
            raise ValueError(
                f"more than {PIPELINED_MAX} requests wait"
            )  # the parser stops: 400, and closed
        self._in_head = True
        if self._limit is None:
            self._await_request()
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._in_head = False
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._request_is_here()
        self._idle_since = self.loop.time()
        super().on_message_complete()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._head_bytes = self._head_bytes + len(data) if self._in_head else 0
        if self._head_bytes > HEAD_BYTES_MAX:
            self._refuse(
                f"the head of a request may have at most {HEAD_BYTES_MAX} bytes"
            )

    def _make_room(self) -> None:
        """Close the connection that has waited the longest; this one, where all others
        are being answered.
        """
        others = cast("set[BoundedHttp]", self.connections - {self})
        idle = [
            each
            for each in others
            if not each.is_answering and not each.transport.is_closing()
        ]
        oldest = min(idle, key=lambda each: each._idle_since, default=self)
        oldest.transport.abort()

    @property
    def is_answering(self) -> bool:
        """Whether an answer is being sent here, and its client reads it."""
        answer = cast("RequestResponseCycle | None", self.cycle)
        return (
            answer is not None
            and not answer.response_complete
            and not self.flow.write_paused
        )

    def _await_request(self) -> None:
        self._limit = self.loop.call_later(REQUEST_S, self._too_late)

    def _request_is_here(self) -> None:
        if self._limit is not None:
            self._limit.cancel()
            self._limit = None

    def _too_late(self) -> None:
        answer = cast(
            "RequestResponseCycle | None", self.cycle
        )  # None before the first request
        if (
            self.flow.read_paused
        ):  # the server does not read: the answer to the request before takes long
            self._await_request()
        elif (
            answer is not None
            and answer.response_started
            and not answer.response_complete
        ):
            self.transport.close()
        else:
            self._refuse(f"a request must be here whole within {REQUEST_S:g} s")

    def _refuse(self, why: str) -> None:
        if not self.transport.is_closing():
            self.send_400_response(why)
