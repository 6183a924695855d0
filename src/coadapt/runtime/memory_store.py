"""Journals for simulation: one that keeps events in memory, one that keeps nothing."""

import copy
from collections.abc import Iterator, Sequence

from coadapt.core.events import Event
from coadapt.core.state import SchedulerState


class MemoryStore:
    """Keeps every event and the latest snapshot (a deep copy) for as long as the
    process lives.
    """

    def __init__(self) -> None:
        self._events: list[Event] = []
        self._snapshot: tuple[SchedulerState, int] | None = None
        self._refused: set[int] = set()

    @property
    def last_number(self) -> int:
        return len(self._events)

    def append(self, events: Sequence[Event]) -> None:
        self._events.extend(events)

    def events(self, after: int = 0) -> Iterator[Event]:
        return (event for _, event in self.numbered_events(after))

    def numbered_events(self, after: int = 0) -> Iterator[tuple[int, Event]]:
        numbered = enumerate(self._events[after:], start=after + 1)
        return (
            (number, event) for number, event in numbered if number not in self._refused
        )

    def refuse(self, number: int, why: str, trace: str = "") -> None:  # noqa: ARG002 - it has no reader here
        self._refused.add(number)

    def save_snapshot(self, state: SchedulerState, upto: int) -> None:
        self._snapshot = (copy.deepcopy(state), upto)

    def latest_snapshot(self) -> tuple[SchedulerState, int] | None:
        return copy.deepcopy(self._snapshot)


class NullStore:
    """A store that keeps nothing, for simulations whose journal is not read."""

    last_number = 0

    def append(self, events: Sequence[Event]) -> None:
        pass

    def events(self, after: int = 0) -> Iterator[Event]:  # noqa: ARG002 - the port's signature
        return iter(())

    def numbered_events(self, after: int = 0) -> Iterator[tuple[int, Event]]:  # noqa: ARG002 - as above
        return iter(())

    def refuse(self, number: int, why: str, trace: str = "") -> None:
        pass

    def save_snapshot(self, state: SchedulerState, upto: int) -> None:
        pass

    def latest_snapshot(self) -> tuple[SchedulerState, int] | None:
        return None
