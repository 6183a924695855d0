"""The four ports between the core and the world: Clock, Executor, Store, Solver."""

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from coadapt.core.commands import JobCommand, Solve
from coadapt.core.events import Event
from coadapt.core.state import SchedulerState

Post = Callable[[Event], None]
Cancel = Callable[[], None]


class Clock(Protocol):
    def now(self) -> float:
        """Return the present instant in seconds; it never goes back."""
        ...

    def call_at(self, when: float, callback: Callable[[], None], *, last: bool = False) -> Cancel:
        """Call `callback` once at `when` (at once if that has passed); return a function that prevents it.

        Among callbacks of one instant those marked `last` come after all others (alarms after facts);
        otherwise the order of the calls to `call_at` decides.
        """
        ...


class Executor(Protocol):
    """Turns orders into replicas. `execute` returns at once; answers are posted, from any thread."""

    @property
    def resizes_in_place(self) -> bool:
        """Whether Resize is understood; otherwise the core uses Stop, then Start."""
        ...

    def execute(self, command: JobCommand, post: Post) -> None: ...


class Store(Protocol):
    """The journal. What is appended is durable when `append` returns."""

    def append(self, events: Sequence[Event]) -> None: ...

    def events(self, after: int = 0) -> Iterator[Event]:
        """Yield the events with a sequence number (1, 2, …) greater than `after`, in order."""
        ...

    def save_snapshot(self, state: SchedulerState, upto: int) -> None:
        """Keep `state`, which is the state after event number `upto`."""
        ...

    def latest_snapshot(self) -> tuple[SchedulerState, int] | None: ...


Solver = Callable[[Solve, Post], None]
