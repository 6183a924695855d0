"""How long a pass takes, and which part of it is waiting for peers. Processor clock or
GPU events.
"""

import time
from collections import deque
from collections.abc import Callable
from typing import Generic, NamedTuple, Protocol, TypeVar

import torch

from coadapt.model import Placement

Mark = TypeVar("Mark")

# The first steps of a process allocate, tune kernels and rebuild DDP's buckets.
WARMUP_STEPS = 3
# Passes whose GPU events are not over yet; older ones are dropped unread.
PENDING_MAX = 64
# Shorter passes are within the clock's error, and the fit takes logarithms.
PASS_MIN_S = 1e-6


class StepSample(NamedTuple):
    """One measured synchronising pass, in seconds.

    compute_s: without the wait for peers. step_s: all of it. fetch_s: the wait for
    data, which is part of both.
    """

    placement: Placement
    atomic: int
    compute_s: float
    step_s: float
    fetch_s: float = 0.0


class Stopwatch(Protocol[Mark]):
    """Marks instants; tells the seconds between two, None as long as the device has not
    reached the later.
    """

    def mark(self) -> Mark: ...
    def seconds(self, start: Mark, end: Mark) -> float | None: ...


class WallStopwatch:
    """For devices that compute while Python waits."""

    def mark(self) -> float:
        return time.perf_counter()

    def seconds(self, start: float, end: float) -> float | None:
        return end - start


class CudaStopwatch:
    """Events on the current stream: reading them never stalls the GPU."""

    def mark(self) -> torch.cuda.Event:
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]  # torch's own
        event.record()
        return event

    def seconds(self, start: torch.cuda.Event, end: torch.cuda.Event) -> float | None:
        ready: bool = end.query()  # type: ignore[no-untyped-call]  # torch's own
        return float(start.elapsed_time(end)) / 1e3 if ready else None


class PassTimer(Generic[Mark]):
    """Collects the marks of a pass: started, fetched, computed, averaged, ended."""

    def __init__(
        self, stopwatch: Stopwatch[Mark], sink: Callable[[StepSample], None]
    ) -> None:
        """`sink` gets each measured synchronising pass, at the latest a few passes
        after its end.
        """
        self._stopwatch = stopwatch
        self._sink = sink
        self._marks: dict[str, Mark] = {}
        self._pending: deque[tuple[Placement, int, dict[str, Mark]]] = deque(
            maxlen=PENDING_MAX
        )
        self._steps = 0

    @property
    def started(self) -> bool:
        """Return whether the present pass is timed."""
        return "started" in self._marks

    def warm_up(self) -> None:
        """Begin to warm up again: the group or the batch has changed."""
        self._steps = 0

    def mark(self, name: str) -> None:
        self._marks[name] = self._stopwatch.mark()

    def start(self) -> None:
        self._marks = {"started": self._stopwatch.mark()}

    def end(self, placement: Placement, atomic: int, *, count: bool) -> None:
        """The synchronising pass is over; `count` False: do not use it (a partial
        batch).
        """
        self._steps += 1
        if count and self._steps > WARMUP_STEPS and "started" in self._marks:
            self.mark("ended")
            if self._pending or not self._deliver(placement, atomic, self._marks):
                self._pending.append((placement, atomic, self._marks))
        self._marks = {}
        while self._pending and self._deliver(*self._pending[0]):
            self._pending.popleft()

    def _deliver(
        self, placement: Placement, atomic: int, marks: dict[str, Mark]
    ) -> bool:
        step_s = self._stopwatch.seconds(marks["started"], marks["ended"])
        if step_s is None:
            return False
        wait_s = 0.0
        if "computed" in marks and "averaged" in marks:
            wait_s = (
                self._stopwatch.seconds(marks["computed"], marks["averaged"]) or 0.0
            )
        fetch_s = 0.0
        if "fetched" in marks:
            fetch_s = self._stopwatch.seconds(marks["started"], marks["fetched"]) or 0.0
        compute_s = max(step_s - wait_s, PASS_MIN_S)
        step_s = max(step_s, compute_s)
        self._sink(StepSample(placement, atomic, compute_s, step_s, fetch_s))
        return True


Timer = PassTimer[float] | PassTimer[torch.cuda.Event]


def timer_for(device: torch.device, sink: Callable[[StepSample], None]) -> Timer:
    return (
        PassTimer(CudaStopwatch(), sink)
        if device.type == "cuda"
        else PassTimer(WallStopwatch(), sink)
    )
