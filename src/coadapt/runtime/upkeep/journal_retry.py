"""Retries while the journal cannot be used: another process has locked it, or its disk
is away.

A write waits as long as it takes. The log has a line when the wait begins, and one when
it is over.
"""

# Why the scheduler waits and does not end
#
# A backup script that locks the database, or a network disk that is away for a minute,
# is over soon. A scheduler that has ended must be started again by a person. One that
# waits decides nothing meanwhile, because an event is durable before it is handled. Its
# jobs train on in both cases.

import logging
import threading
import time
from collections.abc import Callable

from coadapt.model.errors import StoreAwayError, StoreError

RETRY_S = 0.25
# Two threads of the scheduler that write at the same time need less.
WARN_AFTER_S = 2.0
WARN_EVERY_S = 60.0

logger = logging.getLogger(__name__)


class JournalRetry:
    """Waits, and knows since when and why. For any thread."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._since: float | None = None
        self._why = ""
        self._warned_at: float | None = None

    def wait(self, error: StoreAwayError) -> None:
        """Wait a little for what is wrong to pass. Raises StoreError once this is
        closed.
        """
        with self._lock:
            now = self._clock()
            self._why = str(error)
            if self._since is None:
                self._since = now
            due = self._since + WARN_AFTER_S
            if self._warned_at is not None:
                due = self._warned_at + WARN_EVERY_S
            if now >= due:
                self._warned_at = now
                logger.warning("%s", self._sentence(now))
        if self._closed.wait(RETRY_S):
            raise StoreError(str(error))

    def over(self) -> None:
        """Note that the journal was used again."""
        with self._lock:
            if self._since is None:
                return
            if self._warned_at is not None:
                seconds = self._clock() - self._since
                logger.warning("the journal is in use again, after %.0f s", seconds)
            self._since = None
            self._warned_at = None

    def seconds(self) -> float:
        """Return for how long the journal could not be used until now, 0 if it can."""
        with self._lock:
            return 0.0 if self._since is None else self._clock() - self._since

    def trouble(self) -> str:
        """Return what the scheduler waits for, in a sentence; "" if for nothing."""
        with self._lock:
            return "" if self._since is None else self._sentence(self._clock())

    def close(self) -> None:
        """Let all that wait, and will wait, raise at once."""
        self._closed.set()

    def _sentence(self, now: float) -> str:
        assert self._since is not None
        seconds = now - self._since
        return (
            f"{self._why}; the scheduler waits for it, its jobs keep running "
            f"({seconds:.0f} s)"
        )
