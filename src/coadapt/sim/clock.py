"""Virtual time: a heap of callbacks. It implements the runtime's port Clock."""

import heapq
from collections import Counter
from collections.abc import Callable
from functools import partial

from coadapt.runtime.ports import Cancel

# A clock that moves by less than this counts as one that does not move, s. In a run of
# 30 years floats distinguish instants to 1e-7 s.
STANDS_WITHIN_S = 1e-6
# Number of callbacks that were added and called while the clock stands, after which the
# run is given up.
STANDING_MAX = 1_000_000
# The error names the most frequent of this many latest callbacks.
NAMED_LATEST = 1_000


class ClockStandsError(RuntimeError):
    """Virtual time no longer advances: callbacks add callbacks at the same instant
    without end.
    """


class VirtualClock:
    """Time that jumps from callback to callback. Single-threaded; instants in
    seconds.
    """

    def __init__(self, start: float = 0.0, standing_max: int = STANDING_MAX) -> None:
        self._now = start
        self._standing_max = standing_max
        # Entries are (when, last, number of the callback). Callbacks are kept apart, so
        # that cancelling is cheap and entries never compare functions.
        self._heap: list[tuple[float, bool, int]] = []
        self._callbacks: dict[int, Callable[[], None]] = {}
        self._num_asked = 0
        # When the clock last moved, how many callbacks had been added by then, and how
        # many later ones were called since. Callbacks that were added before do not
        # count: a million jobs may arrive at once.
        self._moved_at = start
        self._asked_before = 0
        self._num_standing = 0
        self._names: Counter[str] = Counter()

    def now(self) -> float:
        return self._now

    def call_at(
        self, when: float, callback: Callable[[], None], *, last: bool = False
    ) -> Cancel:
        """Call `callback` once at instant `when`, or at once if that has passed; see
        runtime.ports.Clock.
        """
        order = self._num_asked
        self._num_asked += 1
        heapq.heappush(self._heap, (max(when, self._now), last, order))
        self._callbacks[order] = callback
        return lambda: self._cancel(order)

    @property
    def idle(self) -> bool:
        """Whether nothing is left to call."""
        return not self._callbacks

    def run(self, until: float | None = None) -> None:
        """Call all callbacks up to and including instant `until`, in order; None: all.

        Afterwards the time is `until`, unless it was later before. Raises
        ClockStandsError if time no longer advances.
        """
        while self._heap and (until is None or self._heap[0][0] <= until):
            when, _, order = heapq.heappop(self._heap)
            callback = self._callbacks.pop(order, None)
            if callback is not None:
                self._now = when
                if order >= self._asked_before:
                    self._watch(when, callback)
                callback()
        if until is not None:
            self._now = max(self._now, until)

    def _watch(self, when: float, callback: Callable[[], None]) -> None:
        """Count the callbacks added since the clock moved, and raise if there are too
        many.
        """
        if when - self._moved_at >= STANDS_WITHIN_S:
            self._moved_at = when
            self._asked_before = self._num_asked
            self._num_standing = 0
            self._names.clear()
            return
        self._num_standing += 1
        if self._num_standing > self._standing_max - NAMED_LATEST:
            self._names[_name(callback)] += 1
        if self._num_standing >= self._standing_max:
            named = ", ".join(
                f"{name} ({count})" for name, count in self._names.most_common(3)
            )
            raise ClockStandsError(
                f"virtual time stands at {when!r} s: {self._num_standing} callbacks "
                f"in this instant, "
                f"the latest are {named}"
            )

    def _cancel(self, order: int) -> None:
        self._callbacks.pop(order, None)


def _name(callback: Callable[[], None]) -> str:
    """Return the qualified name of a callback, without its address."""
    found: object = callback
    while isinstance(found, partial):
        found = found.func
    name = getattr(found, "__qualname__", type(found).__name__)
    return f"{getattr(found, '__module__', '?')}.{name}"
