"""Virtual time: a heap of callbacks. The port Clock of the runtime, and nothing else."""

import heapq
import itertools
from collections.abc import Callable

from coadapt.runtime.ports import Cancel


class VirtualClock:
    """Time that jumps from one callback to the next. Single-threaded; instants in seconds."""

    def __init__(self, start: float = 0.0) -> None:
        self._now = start
        # (when, last, order of the call, number of the callback): the callback itself lies apart, so that a
        # cancelled one costs nothing and entries never compare functions.
        self._heap: list[tuple[float, bool, int]] = []
        self._callbacks: dict[int, Callable[[], None]] = {}
        self._order = itertools.count()

    def now(self) -> float:
        return self._now

    def call_at(
        self, when: float, callback: Callable[[], None], *, last: bool = False
    ) -> Cancel:
        """Call `callback` once at `when`, at once if that has passed; see runtime.ports.Clock."""
        order = next(self._order)
        heapq.heappush(self._heap, (max(when, self._now), last, order))
        self._callbacks[order] = callback
        return lambda: self._cancel(order)

    @property
    def idle(self) -> bool:
        """Whether nothing is left to call."""
        return not self._callbacks

    def run(self, until: float | None = None) -> None:
        """Call what is due, in order, up to and including `until` (None: until nothing is left).

        With `until` the clock stands there afterwards, or where it stood if that is later.
        """
        while self._heap and (until is None or self._heap[0][0] <= until):
            when, _, order = heapq.heappop(self._heap)
            callback = self._callbacks.pop(order, None)
            if callback is not None:
                self._now = when
                callback()
        if until is not None:
            self._now = max(self._now, until)

    def _cancel(self, order: int) -> None:
        self._callbacks.pop(order, None)
