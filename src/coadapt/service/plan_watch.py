"""Detects that planning has stopped: jobs are active and no plan comes."""

# What counts as late
#
# While a job is active a round comes every `round_s`, and its decision takes as long as
# decisions took before. So a plan is late once more time has passed than
# ROUNDS_MISSED x (round_s + the longest of the last decisions) + SOLVE_TIMEOUT_S. The
# last term is the time after which a policy's process that hangs is replaced: what
# mends itself raises no alarm. Before the first decision of this run, a new process may
# take START_TIMEOUT_S, because it imports and compiles.
#
# Time counts only while a plan is due. Without active jobs there are no rounds, and
# the time before the first job came is no delay. It counts only while this process
# runs: a thread adds up the times between its looks, each at most 2 LOOK_S. After a
# SIGSTOP of an hour nothing is late, because no plan could be made.
#
# A plan that fails or is refused is no plan: a policy that raises in each round is
# noticed as well as one that hangs.

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence

from coadapt.core.commands import Command, Solve
from coadapt.core.events import Event, PlanReady
from coadapt.core.state import SchedulerState
from coadapt.runtime.process_solver import SOLVE_TIMEOUT_S, START_TIMEOUT_S

ROUNDS_MISSED = 3
LOOK_S = 0.5
DECISIONS_KEPT = 20
MINUTE_S = 60.0
# Durations from here on are shown in minutes.
MINUTES_FROM_S = 3 * MINUTE_S


class PlanWatch:
    """An observer of the runtime that knows for how long a plan has been due. `run` is
    for a thread of its own, the rest for any.
    """

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        spare_s: float = SOLVE_TIMEOUT_S,
    ) -> None:
        """spare_s: how much later than its rounds a plan may come."""
        self._clock = clock
        self._spare_s = spare_s
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._looked_at = clock()
        self._awake_s = 0.0
        self._due_since_s: float | None = None
        self._round_s = 0.0
        self._asked: tuple[int, float] = (-1, 0.0)
        self._decision_s: deque[float] = deque(maxlen=DECISIONS_KEPT)
        self._plan_error = ""

    def begin(self, state: SchedulerState) -> None:
        """Expect plans from now on if `state` has active jobs."""
        with self._lock:
            self._look()
            self._due_since_s = None
            self._decision_s.clear()
            self._follow(state)

    def __call__(
        self, event: Event, commands: Sequence[Command], state: SchedulerState
    ) -> None:
        with self._lock:
            self._look()
            if isinstance(event, PlanReady) and not state.plan_error:
                self._note_plan(event.round)
            for command in commands:
                if isinstance(command, Solve):
                    self._asked = (command.round, self._awake_s)
            self._follow(state)

    def run(self) -> None:
        """Count the time in which this process runs, until `close`."""
        while not self._closed.wait(LOOK_S):
            with self._lock:
                self._look()

    def close(self) -> None:
        self._closed.set()

    def overdue_s(self) -> float:
        """Return how much later than allowed the next plan is, in s; 0 if it is not."""
        with self._lock:
            return max(self._waited_s() - self._allowed_s(), 0.0)

    def trouble(self, why: str = "") -> str:
        """Return that planning has stopped, in a sentence; "" if it has not.

        why: the cause, where the caller knows one.
        """
        with self._lock:
            waited_s = self._waited_s()
            allowed_s = self._allowed_s()
            if waited_s <= allowed_s:
                return ""
            cause = why or self._plan_error
            return (
                f"no plan has been made for {_duration(waited_s)}, although jobs are "
                f"active: with rounds of {self._round_s:g} s one is due within "
                f"{_duration(allowed_s)}" + (f" ({cause})" if cause else "")
            )

    def summary(self) -> str:
        """Return the sentence without its cause, which may name jobs: for everyone."""
        with self._lock:
            waited_s = self._waited_s()
            if waited_s <= self._allowed_s():
                return ""
            return (
                f"no plan has been made for {_duration(waited_s)}; see: coadapt doctor"
            )

    def _look(self) -> None:
        now = self._clock()
        self._awake_s += min(now - self._looked_at, 2.0 * LOOK_S)
        self._looked_at = now

    def _note_plan(self, number: int) -> None:
        asked_round, asked_s = self._asked
        if number == asked_round:
            self._decision_s.append(self._awake_s - asked_s)
        if self._due_since_s is not None:
            self._due_since_s = self._awake_s

    def _follow(self, state: SchedulerState) -> None:
        if state.config is not None:
            self._round_s = state.config.round_s
        self._plan_error = state.plan_error
        if not state.active:
            self._due_since_s = None
        elif self._due_since_s is None:
            self._due_since_s = self._awake_s

    def _waited_s(self) -> float:
        return 0.0 if self._due_since_s is None else self._awake_s - self._due_since_s

    def _allowed_s(self) -> float:
        rounds_s = ROUNDS_MISSED * self._round_s
        if not self._decision_s:
            return rounds_s + START_TIMEOUT_S + self._spare_s
        return rounds_s + ROUNDS_MISSED * max(self._decision_s) + self._spare_s


def _duration(seconds: float) -> str:
    if seconds < MINUTES_FROM_S:
        return f"{seconds:.0f} s"
    return f"{seconds / MINUTE_S:.0f} min"
