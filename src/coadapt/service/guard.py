"""ASGI middleware for all requests: authentication, permissions, limits of size."""

import json
import time
from collections.abc import Callable

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from coadapt.model import JobId
from coadapt.model.contract_env import STATUS_ROUTE
from coadapt.service.auth import Caller, Credentials
from coadapt.service.limits import JOB_FILE_BYTES_MAX
from coadapt.service.page.shell import is_open

# A training report is below 10 kB, a job file with a long script below 100 kB.
BODY_BYTES_MAX = JOB_FILE_BYTES_MAX
LENGTH_DIGITS_MAX = 20
METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS"})
OPEN_PATHS = frozenset({"/v1/healthz", "/v1/livez"})
# What a job's token is good for: to read of the job itself, and to tell of it. It may
# not even cancel the job, because any reader of the environment of one of its processes
# could then end it.
JOB_MAY = frozenset(
    {
        *(("GET", path) for path in ("", "/story", "/logs")),
        *(("POST", path) for path in ("/reports", "/rescaled", f"/{STATUS_ROUTE}")),
    }
)


class Guard:
    """Answers 401 without a token, 403 to a job's token where it is not good, 413 to
    bodies that are too large.

    `/v1/healthz`, `/v1/livez` and the files of the page are open.
    """

    def __init__(
        self,
        app: ASGIApp,
        credentials: Credentials,
        answered: Callable[[str, str, int, float], None] = lambda *_: None,
    ) -> None:
        """`answered` receives each answer: method, route, status, and seconds until its
        head was sent.
        """
        self._app = app
        self._credentials = credentials
        self._answered = answered

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        begun = time.perf_counter()

        async def send_timed(message: Message) -> None:
            if message["type"] == "http.response.start":
                method = scope["method"] if scope["method"] in METHODS else "other"
                taken_s = time.perf_counter() - begun
                self._answered(method, _route(scope), message["status"], taken_s)
            await send(message)

        await self._answer(scope, receive, send_timed)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] not in OPEN_PATHS and not is_open(scope["path"]):
            caller = caller_of(scope, self._credentials)
            if caller is None:
                await _refuse(
                    send,
                    401,
                    "a bearer token is needed: see the token file in the state "
                    "directory",
                )
                return
            if caller.job is not None and not _may(
                caller.job, scope["method"], scope["path"]
            ):
                allowed = "it may read and report of that job only"
                await _refuse(
                    send, 403, f"this is the token of job {caller.job}: {allowed}"
                )
                return
        body = await _read_body(dict(scope["headers"]), receive)
        if body is None:
            await _refuse(
                send, 413, f"the body may have at most {BODY_BYTES_MAX} bytes"
            )
            return
        await self._app(scope, read_again(body, receive), send)


def caller_of(scope: Scope, credentials: Credentials) -> Caller | None:
    """Return the caller that sends the request, None if it is unknown."""
    given = [value for name, value in scope["headers"] if name == b"authorization"]
    # Of two headers a proxy in front may have looked at the other one.
    return credentials.caller(given[0]) if len(given) == 1 else None


def _route(scope: Scope) -> str:
    """Return the path of the route that answered, "none" where none did: a client
    chooses paths freely.
    """
    return str(getattr(scope.get("route"), "path", "none"))


def _may(job: JobId, method: str, path: str) -> bool:
    own = f"/v1/jobs/{job}"
    return path.startswith(own) and (method, path.removeprefix(own)) in JOB_MAY


async def _read_body(headers: dict[bytes, bytes], receive: Receive) -> bytes | None:
    """Return the whole body, None for one that is longer than allowed, whatever its
    header says of it.
    """
    length = headers.get(b"content-length", b"0")
    if (
        not length.isdigit()
        or len(length) > LENGTH_DIGITS_MAX
        or int(length) > BODY_BYTES_MAX
    ):
        return None
    if length == b"0" and b"transfer-encoding" not in headers:
        return b""
    body = bytearray()
    while True:
        message = await receive()
        body += message.get("body", b"")
        if len(body) > BODY_BYTES_MAX:
            return None
        if message["type"] == "http.disconnect" or not message.get("more_body", False):
            return bytes(body)


def read_again(body: bytes, receive: Receive) -> Receive:
    """Give out a body that was read already; after it, what comes of the connection."""
    # An empty one as well: in parts, its end is read by now, and its reader would wait
    # for ever.
    waiting: list[Message] = [
        {"type": "http.request", "body": body, "more_body": False}
    ]

    async def receive_next() -> Message:
        return waiting.pop() if waiting else await receive()

    return receive_next


async def _refuse(send: Send, status: int, message: str) -> None:
    body = json.dumps(
        {"error": {"field": None, "value": None, "allowed": None, "message": message}}
    ).encode()
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
    ]
    if status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
