"""The control channel over HTTP: a replica need not share a disk with its launcher,
which serves it.
"""

# The launcher keeps the notes (executors/processes/control_server.py). A replica asks
# after every step if there is an order, which may cost next to nothing; so a thread
# keeps a copy of all notes here, by requests that the launcher answers when something
# is new. Reading is a look at the copy. Where a moment's delay would matter, since all
# replicas have just agreed to act on a note, it is asked for `now`. Writing is a
# request of its own and has happened when it returns: what this process says next comes
# after it.

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

# The launcher answers within 20 s; without an answer for this long it is gone, and its
# successor ends this replica.
ANSWER_S = 30.0
# A launcher that is busy, or a network that blinks, is asked again for this long.
PATIENCE_S = 10.0
RETRY_S = 0.2
CONFLICT = 409

logger = logging.getLogger(__name__)


class ControlClient:
    """One replica's view of the notes at `url`. Raises OSError where the launcher does
    not answer.
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
        """Say that these replicas can rescale in place."""
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
            # Not asked again: if the answer alone is lost, nobody could tell whose the
            # note is.
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
        """Write a note; that may be done twice, so it is tried again for a while."""
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
        """Return the notes, once they have another version than `after`; keep a
        copy.
        """
        answer = json.loads(self._request("GET", f"?after={after}", None))
        notes = cast("dict[str, str]", answer["notes"])
        version = int(answer["version"])
        with (
            self._lock
        ):  # an answer that was long under way is not put over a later one
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


# A proxy that the environment names is for the world outside.
_DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))
