"""The latest decisions of the policy: how long each took, and what became of it."""

import threading
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from coadapt.core.commands import Command, Solve
from coadapt.core.events import Event, PlanFailed, PlanReady
from coadapt.core.state import SchedulerState

DECISIONS_KEPT = 500
# Figures of the solver that a decision keeps: a policy may report any number of them.
FIGURES_KEPT = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """One round. asked_at: s since 1970. took_s: until the answer was handled.

    error: why there was no plan, "" if there was one. figures: what the solver
    reported.
    """

    round: int
    asked_at: float
    took_s: float
    num_jobs: int
    error: str
    figures: Mapping[str, float]


class DecisionLog:
    """An observer of the runtime. It may be read from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: deque[Decision] = deque(maxlen=DECISIONS_KEPT)
        self._asked_at: dict[int, float] = {}

    def __call__(
        self, event: Event, commands: Sequence[Command], state: SchedulerState
    ) -> None:
        for command in commands:
            if isinstance(command, Solve):
                self._asked_at = {command.round: state.at}
        if not isinstance(event, PlanReady | PlanFailed):
            return
        asked_at = self._asked_at.pop(event.round, None)
        if asked_at is None:
            return  # the answer came too late, and changed nothing
        failed = isinstance(event, PlanFailed)
        figures = {} if failed else dict(list(state.diagnostics.items())[:FIGURES_KEPT])
        decision = Decision(
            round=event.round,
            asked_at=asked_at,
            took_s=max(event.at - asked_at, 0.0),
            num_jobs=len(state.active),
            error=state.plan_error,
            figures=figures,
        )
        with self._lock:
            self._kept.append(decision)

    def latest(self) -> list[Decision]:
        """Return the decisions that are kept, the oldest first."""
        with self._lock:
            return list(self._kept)
