"""What a pod prints, passed on to our own output; from where an earlier proxy ended, if
there was one.
"""

import sys
import threading
import time

from coadapt.executors.kubernetes.api import ApiError, KubeApi
from coadapt.executors.kubernetes.pods import CONTAINER

RETRY_S = 1.0
# Further tries to get at the output of a container that has ended: its node may be
# gone.
TRIES_AFTER_END = 3


class PodLog:
    """Follows one container's output in a thread of its own, once it runs.

    printed: how many of its bytes are passed over. What `add` says of our own counts
    for that as well, so that a few bytes of the pod's may be missing after a restart of
    the launcher, and none come twice.
    """

    def __init__(
        self, api: KubeApi, pod_path: str, printed: int, retry_s: float = RETRY_S
    ) -> None:
        self._api = api
        self._retry_s = retry_s
        self._path = f"{pod_path}/log"
        self._passed = printed
        self._said = ""
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._ended = threading.Event()

    def start(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, daemon=True)
            self._thread.start()

    def finish(self, wait_s: float) -> None:
        """The container has ended: wait until all is passed on that can be had, at most
        so long.
        """
        self._ended.set()
        if self._thread is not None:
            self._thread.join(wait_s)

    def add(self, text: str) -> None:
        """Print a line of our own, unless it was the last such."""
        if text != self._said:
            self._said = text
            self._print(text.encode())

    def _run(self) -> None:
        tries = 0
        while tries <= TRIES_AFTER_END:
            ended = self._ended.is_set()
            # What ends well need not be the end: a proxy between closes a connection
            # that was silent.
            if self._read() and (ended or self._ended.wait(self._retry_s)):
                return
            # A connection that breaks off, or a node that does not answer now.
            tries += ended
            time.sleep(0.0 if self._ended.is_set() and not ended else self._retry_s)

    def _read(self) -> bool:
        """Pass on what is new; return whether nothing broke off."""
        skip = self._passed
        try:
            for data in self._api.stream(
                self._path, container=CONTAINER, follow="true"
            ):
                new = data[skip:]
                skip = max(skip - len(data), 0)
                self._passed += len(new)
                self._print(new)
        except ApiError:
            return False
        return True

    def _print(self, data: bytes) -> None:
        with self._lock:
            sys.stdout.buffer.write(data)
            sys.stdout.buffer.flush()
