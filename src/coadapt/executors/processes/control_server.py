"""The control directory of a job, served to its replicas over HTTP by their launcher.

The token allows access to the notes of this one job only. It is created here, given to
the replicas in their environment, and ends with the launcher.
"""

import hmac
import json
import os
import re
import secrets
import socket
import threading
import time
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from coadapt.executors.processes.records.own_files import PRIVATE_DIR, PRIVATE_FILE
from coadapt.model.contract_env import ENV_CONTROL_TOKEN, ENV_CONTROL_URL
from coadapt.model.rescale import CONTROL_PATH

NOTE = re.compile(r"[0-9a-z][0-9a-z.-]{0,63}")
BODY_MAX = 64 * 1024
# Each replica has one open request at any time. The server holds it for this time at
# most, which is below the client's timeout and that of most proxies.
HOLD_S = 20.0
# The delay after which replicas get a note that the launcher itself wrote or removed.
LOOK_S = 0.02
TOKEN_BYTES = 32
# The largest number of connections whose request has not arrived yet, or has no token.
# Each takes a thread and an open file, and a launcher may have 1,024 open files. A
# valid connection is recognised within milliseconds. If there are more, the oldest is
# closed.
STRANGERS_MAX = 256


_Connection = socket.socket | tuple[bytes, socket.socket]  # as socketserver has it


class ControlServer:
    """Serves `folder` at `host`, on a port that the kernel chooses, in its own threads
    until `close`.
    """

    def __init__(
        self, folder: Path, host: str, *, name: str = "", port: int = 0, token: str = ""
    ) -> None:
        """name: the name of `host` for replicas. port, token: those of a previous
        server that this one replaces.

        Raises OSError if this process cannot listen at `host` and `port`.
        """
        folder.mkdir(mode=PRIVATE_DIR, parents=True, exist_ok=True)
        self._token = token or secrets.token_hex(TOKEN_BYTES)
        self._server = _Server((host, port), _Handler)
        self._name = name or host
        self._server.notes = _Notes(folder)
        self._server.token = self._token
        self._thread = threading.Thread(
            target=self._server.serve_forever, name="control", daemon=True
        )
        self._thread.start()

    @property
    def envs(self) -> dict[str, str]:
        """The variables that a replica needs in its environment to use this server."""
        return {
            ENV_CONTROL_URL: f"http://{self._name}:{self.port}",
            ENV_CONTROL_TOKEN: self._token,
        }

    @property
    def port(self) -> int:
        return int(self._server.server_address[1])

    @property
    def token(self) -> str:
        return self._token

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


class _Notes:
    """The files of the directory, with a version number that grows with every
    change.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock = threading.Lock()
        self._seen: dict[str, tuple[int, int]] = {}
        # The first version is greater than those of previous servers, which replicas
        # may already have.
        self._version = time.time_ns() // 1000

    def newer_than(self, version: int) -> dict[str, object]:
        """Return the notes once they have another version than `version`, or unchanged
        after HOLD_S.
        """
        deadline = time.monotonic() + HOLD_S
        while (now := self._look()) == version and time.monotonic() < deadline:
            time.sleep(LOOK_S)
        notes: dict[str, str] = {}
        for path in self._files():
            with suppress(FileNotFoundError):
                notes[path.name] = path.read_text()
        return {"version": now, "notes": notes}

    def write(self, name: str, text: str) -> None:
        beside = self._folder / f".{name}.{threading.get_ident()}"
        with open(
            os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, PRIVATE_FILE), "w"
        ) as file:
            file.write(text)
        beside.replace(self._folder / name)

    def create(self, name: str) -> bool:
        """Create a note. Return whether it is new."""
        try:
            (self._folder / name).touch(PRIVATE_FILE, exist_ok=False)
        except FileExistsError:
            return False
        return True

    def _look(self) -> int:
        seen: dict[str, tuple[int, int]] = {}
        for path in self._files():
            with suppress(FileNotFoundError):
                found = path.stat()
                seen[path.name] = (found.st_mtime_ns, found.st_ino)
        with self._lock:
            if seen != self._seen:
                self._seen = seen
                self._version = self._version + 1
            return self._version

    def _files(self) -> list[Path]:
        return [path for path in self._folder.iterdir() if NOTE.fullmatch(path.name)]


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    # All replicas of a job may connect at once. A replica that finds no room tries
    # again a second later.
    request_queue_size = 1024
    notes: _Notes
    token: str

    def __init__(
        self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler]
    ) -> None:
        self._strangers: dict[_Connection, None] = {}  # oldest first
        self._lock = threading.Lock()
        super().__init__(address, handler)

    def process_request(self, request: _Connection, client_address: object) -> None:
        with self._lock:
            self._strangers[request] = None
            if len(self._strangers) > STRANGERS_MAX:
                oldest = next(iter(self._strangers))
                del self._strangers[oldest]
                assert isinstance(oldest, socket.socket), "of TCP"
                with suppress(OSError):  # it is just being closed
                    oldest.shutdown(socket.SHUT_RDWR)
        super().process_request(request, client_address)

    def shutdown_request(self, request: _Connection) -> None:
        self.know(request)
        super().shutdown_request(request)

    def know(self, request: _Connection) -> None:
        """The connection has shown the token, or is closed."""
        with self._lock:
            self._strangers.pop(request, None)


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    timeout = HOLD_S  # for a client that connects and sends nothing

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        after = parse_qs(url.query).get("after", ["0"])[0]
        if not self._allowed():
            return
        if (
            url.path != CONTROL_PATH
            or not after.isdecimal()
            or len(after) > len(str(2**63))
        ):
            self._answer(404)
            return
        self._answer(200, json.dumps(self.server.notes.newer_than(int(after))).encode())

    def do_PUT(self) -> None:
        if (name := self._note()) is not None and (text := self._body()) is not None:
            self.server.notes.write(name, text)
            self._answer(204)

    def do_POST(self) -> None:
        if (name := self._note()) is not None and self._body() is not None:
            self._answer(201 if self.server.notes.create(name) else 409)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  # the name in http.server
        """Do not log requests: the events of a job are in its own files."""

    def _allowed(self) -> bool:
        given = self.headers.get("Authorization", "").encode()
        if hmac.compare_digest(given, f"Bearer {self.server.token}".encode()):
            self.server.know(self.request)
            return True
        self._answer(401)
        return False

    def _note(self) -> str | None:
        """Return the name of the requested note. If the request is not allowed, answer
        it and return None.
        """
        if not self._allowed():
            return None
        folder, _, name = self.path.rpartition("/")
        if folder == CONTROL_PATH and NOTE.fullmatch(name):
            return name
        self._answer(404)
        return None

    def _body(self) -> str | None:
        length = self.headers.get("Content-Length", "")
        if (
            not length.isdecimal()
            or len(length) > len(str(BODY_MAX))
            or int(length) > BODY_MAX
        ):
            self._answer(413)
            return None
        try:
            return self.rfile.read(int(length)).decode()
        except UnicodeDecodeError:
            self._answer(400)
            return None

    def _answer(self, status: int, body: bytes = b"") -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(body)
