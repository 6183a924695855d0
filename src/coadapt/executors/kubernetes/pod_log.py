"""Copies a pod's output to this process's output. It continues where an earlier proxy
ended, if there was one.
"""

import sys
import threading
import time

from coadapt.executors.kubernetes.api import ApiError, KubeApi
from coadapt.executors.kubernetes.pods import CONTAINER

RETRY_S = 1.0
# The number of further tries to read the output of a container that has ended. Its node
# may be gone.
TRIES_AFTER_END = 3


class PodLog:
    """Follows one container's output in its own thread, once the container runs.

    printed: how many of the output's bytes are skipped, because they are already in the
    log. Lines from `add` are in the log too and count as well. So after a restart of
    the launcher a few bytes of the pod's output may be missing, but none appear twice.
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
        """Wait, at most `wait_s`, until all available output of the ended container is
        copied.
        """
        self._ended.set()
        if self._thread is not None:
            self._thread.join(wait_s)

    def add(self, text: str) -> None:
        """Print a line of our own, unless it equals the previous one."""
        if text != self._said:
            self._said = text
            self._print(text.encode())

    def _run(self) -> None:
        tries = 0
        while tries <= TRIES_AFTER_END:
            ended = self._ended.is_set()
            # A stream that ends without an error may not be complete: an HTTP proxy may
            # close an idle connection.
            if self._read() and (ended or self._ended.wait(self._retry_s)):
                return
            # The connection broke, or the node does not answer now.
            tries += ended
            time.sleep(0.0 if self._ended.is_set() and not ended else self._retry_s)

    def _read(self) -> bool:
        """Copy new output. Return whether the stream ended without an error."""
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
