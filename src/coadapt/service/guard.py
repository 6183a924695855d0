"""What stands before every route: the bearer token and the size limit, as one ASGI middleware."""

import hmac
import json

from starlette.types import ASGIApp, Message, Receive, Scope, Send

# A training report is below 10 kB, a job file with a long script below 100 kB.
BODY_BYTES_MAX = 1_000_000
OPEN_PATHS = frozenset({"/v1/healthz"})


class Guard:
    """Answers 401 without the right token (`/v1/healthz` is open) and 413 to a body that is too large."""

    def __init__(self, app: ASGIApp, token: str) -> None:
        self._app = app
        self._expected = f"Bearer {token}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = dict(scope["headers"])
        if scope["path"] not in OPEN_PATHS and not self._knows(headers.get(b"authorization", b"")):
            await _refuse(send, 401, "a bearer token is needed: see the token file in the state directory")
            return
        if (length := headers.get(b"content-length", b"0")).isdigit() and int(length) > BODY_BYTES_MAX:
            await _refuse(send, 413, f"the body may have at most {BODY_BYTES_MAX} bytes")
            return
        await self._app(scope, _limited(receive), send)

    def _knows(self, given: bytes) -> bool:
        # In constant time: how much of a guess was right must not show.
        return hmac.compare_digest(given, self._expected)


def _limited(receive: Receive) -> Receive:
    """Cut off a body that is longer than its header said, or said nothing."""
    received = 0

    async def receive_some() -> Message:
        nonlocal received
        message = await receive()
        received += len(message.get("body", b""))
        return {"type": "http.disconnect"} if received > BODY_BYTES_MAX else message

    return receive_some


async def _refuse(send: Send, status: int, message: str) -> None:
    body = json.dumps({"error": {"field": None, "value": None, "allowed": None, "message": message}}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    if status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
