"""Real time: seconds since the epoch that never go back, and callbacks for the owner of
the loop.
"""

import heapq
import itertools
import time
from collections.abc import Callable

from coadapt.runtime.ports import Cancel

# The least that a thread can sleep, more or less.
PAUSE_S = 5e-5


class WallClock:
    """The port Clock for a live scheduler. `now` is for any thread, the rest for the
    loop's own.
    """

    def __init__(self, not_before: float = 0.0) -> None:
        """Start at the system's time, or at `not_before` if that is later."""
        # The system's clock may be set back while we run; the monotonic one may not.
        self._offset_s = max(time.time(), not_before) - time.monotonic()
        self._heap: list[tuple[float, bool, int, Callable[[], None]]] = []
        self._cancelled: set[int] = set()
        self._order = itertools.count()

    def now(self) -> float:
        return time.monotonic() + self._offset_s

    def advance(self, at: float) -> None:
        """Go on from `at` if that lies ahead: a journal knows instants that this system
        does not yet.
        """
        self._offset_s = max(self._offset_s, at - time.monotonic())

    def call_at(
        self, when: float, callback: Callable[[], None], *, last: bool = False
    ) -> Cancel:
        order = next(self._order)
        heapq.heappush(self._heap, (when, last, order, callback))
        return lambda: self._cancelled.add(order)

    def next_at(self) -> float | None:
        """Return the instant of the next callback, None if there is none."""
        while self._heap and self._heap[0][2] in self._cancelled:
            self._cancelled.discard(heapq.heappop(self._heap)[2])
        return self._heap[0][0] if self._heap else None

    def run_due(self) -> None:
        """Call what is due, in order."""
        while (when := self.next_at()) is not None and when <= self.now():
            heapq.heappop(self._heap)[3]()


def give_way() -> None:
    """Let threads go first that wait for the interpreter or for a lock that this one
    had.

    For work in the background, after each piece of it: a thread that sleeps for a
    moment gets the interpreter back when the other threads have had a turn.
    """
    time.sleep(PAUSE_S)
