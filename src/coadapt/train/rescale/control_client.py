"""The control channel over HTTP, for replicas that do not share a disk with their
launcher. The launcher serves it.
"""

# The launcher keeps the notes (executors/processes/control_server.py). A replica checks
# after every step whether there is an order, so this check must cost almost nothing. A
# thread here keeps a copy of all notes, by requests that the launcher answers when
# there is a new note. A read uses this copy. When all replicas have just agreed to act
# on a note, a moment's delay would matter, so the note is read with `now`. A write is a
# separate request, and is done when the call returns. So later messages of this process
# come after it.

import json
import logging
import threading
import time
import urllib.error
import urllib.request
from typing import cast

from coadapt.model.rescale import (
    CAPABLE_FILE,
    CONTROL_PATH,
    ORDER_FILE,
    RescaleOrder,
    begun_file,
    decided_file,
    done_file,
    ready_file,
    store_file,
)
from coadapt.model.wire import from_json

# The launcher answers within 20 s. Without an answer for this long it is gone, and the
# next launcher ends this replica.
ANSWER_S = 30.0
# How long a request is repeated if the launcher is busy or the network fails briefly.
PATIENCE_S = 10.0
RETRY_S = 0.2
CONFLICT = 409

logger = logging.getLogger(__name__)


class ControlClient:
    """One replica's view of the notes at `url`. Raises OSError if the launcher does not
    answer.
    """

    def __init__(self, url: str, token: str) -> None:
        self._url = url.rstrip("/") + CONTROL_PATH
        self._headers = {"Authorization": f"Bearer {token}"}
        self._notes: dict[str, str] = {}
        self._parsed: tuple[str, RescaleOrder] | None = None
        self._version = 0
        self._lock = threading.Lock()
        self._hear(0)
        threading.Thread(
            target=self._listen, name="coadapt-control", daemon=True
        ).start()

    def order(self, *, now: bool = False) -> RescaleOrder | None:
        """Return the newest order, None if there never was one or it was taken back."""
        text = self._note(ORDER_FILE, now=now)
        if text is None:
            return None
        parsed = self._parsed
        if parsed is None or parsed[0] != text:
            parsed = self._parsed = (
                text,
                from_json(RescaleOrder, json.loads(text), ORDER_FILE),
            )
        return parsed[1]

    def announce(self) -> None:
        """Announce that these replicas can rescale in place."""
        self._write(CAPABLE_FILE)

    def publish_store(self, generation: int, host: str, port: int) -> None:
        self._write(store_file(generation), f"{host}:{port}")

    def store_address(
        self, generation: int, *, now: bool = False
    ) -> tuple[str, int] | None:
        """Return host and port of the store of `generation`, None while there is
        none.
        """
        text = self._note(store_file(generation), now=now)
        if text is None:
            return None
        host, _, port = text.rpartition(":")
        return host, int(port)

    def mark_ready(self, member: str) -> None:
        self._write(ready_file(member))

    def ready(self, member: str) -> bool:
        return self._note(ready_file(member)) is not None

    def claim(self, generation: int) -> bool:
        """Return whether the order stands from now on; False if it was taken back
        before. Ask once.
        """
        try:
            # This request is not repeated: if only the answer was lost, it would not be
            # known who created the note.
            self._request("POST", "/" + decided_file(generation), b"")
        except urllib.error.HTTPError as error:
            if error.code == CONFLICT:
                return False
            raise
        return True

    def mark_begun(self, generation: int) -> None:
        self._write(begun_file(generation))

    def mark_done(self, generation: int) -> None:
        self._write(done_file(generation))

    def _note(self, name: str, *, now: bool = False) -> str | None:
        notes = self._hear(0) if now else self._notes
        return notes.get(name)

    def _write(self, name: str, text: str = "") -> None:
        """Write a note. Writing twice is harmless, so a failed request is repeated for
        a while.
        """
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                self._request("PUT", "/" + name, text.encode())
            except urllib.error.HTTPError:
                raise
            except OSError:
                if time.monotonic() >= deadline:
                    raise
                time.sleep(RETRY_S)
            else:
                return

    def _hear(self, after: int) -> dict[str, str]:
        """Wait until the notes have another version than `after`. Keep a copy and
        return it.
        """
        answer = json.loads(self._request("GET", f"?after={after}", None))
        notes = cast("dict[str, str]", answer["notes"])
        version = int(answer["version"])
        with self._lock:  # a delayed answer does not replace a later one
            if version >= self._version:
                self._notes = notes
                self._version = version
        return notes

    def _listen(self) -> None:
        while True:
            try:
                self._hear(self._version)
            except (OSError, ValueError) as error:
                logger.debug("no answer from the launcher: %s", error)
                time.sleep(RETRY_S)

    def _request(self, method: str, path: str, body: bytes | None) -> bytes:
        request = urllib.request.Request(
            self._url + path, body, self._headers, method=method
        )
        with _DIRECT.open(request, timeout=ANSWER_S) as answer:
            return cast(bytes, answer.read())


# A proxy from the environment is for external addresses.
_DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))
