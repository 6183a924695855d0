"""HTTP by httptools, with an end to how long the head of a request may be."""

# httptools (llhttp, as Node.js has it) reads HTTP in C, at an eighth of the CPU of h11, which is written in
# Python. But h11 refuses a head of more than 64 kB, and httptools takes whatever comes: a client without a
# token could send headers until the memory is full. So what arrives is counted while a head is being read.
# What comes in one read is parsed before it is counted, and asyncio reads at most 256 kB at once.

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

HEAD_BYTES_MAX = 65_536


class BoundedHttp(HttpToolsProtocol):
    """uvicorn's protocol; a connection whose request has a longer head is answered 400 and closed."""

    _in_head = False
    _head_bytes = 0

    def on_message_begin(self) -> None:
        self._in_head = True
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._in_head = False
        super().on_headers_complete()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._head_bytes = self._head_bytes + len(data) if self._in_head else 0
        if self._head_bytes > HEAD_BYTES_MAX and not self.transport.is_closing():
            self.send_400_response(f"the head of a request may have at most {HEAD_BYTES_MAX} bytes")
