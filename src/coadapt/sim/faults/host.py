"""The scheduler's process in a fault simulation. The process dies, loses all that it
did not journal, and starts again.
"""

import copy
import random
from collections.abc import Callable, Sequence
from dataclasses import replace

from coadapt.core.commands import Command, SetAlarm
from coadapt.core.events import (
    CancelRequested,
    Event,
    JobSubmitted,
    NodeJoined,
    NodeLost,
    OfferChanged,
    OffersConfigured,
    PricesConfigured,
    SchedulerConfigured,
    SchedulerRestarted,
    TenantConfigured,
    TrainingReported,
)
from coadapt.core.lifecycle import ENDED
from coadapt.core.scheduler import Scheduler
from coadapt.core.state import SchedulerState
from coadapt.runtime.memory_store import MemoryStore
from coadapt.runtime.ports import Cancel, NodeProvider, SizeSolver, Solver
from coadapt.runtime.runtime import Runtime
from coadapt.sim.clock import VirtualClock
from coadapt.sim.faults.cost_ledger import CostLedger
from coadapt.sim.faults.invariants import BookChecker, InvariantError, check_world
from coadapt.sim.faults.replay import replayed
from coadapt.sim.faults.wire import FaultyNetwork, PowerCut, message_text
from coadapt.sim.world import World

MakeScheduler = Callable[[SchedulerState | None], Scheduler]
# Returns a new sizer for one life of the process, and the provider that gets its
# orders.
NodeBuyer = Callable[[], tuple[SizeSolver, NodeProvider]]

SNAPSHOT_CHANCE = 0.5  # that a dying scheduler had saved a snapshot
DARK_MAX_S = 120.0  # how long a power cut lasts at most
ROUNDS_S = (60.0, 45.0, 90.0)  # of the scheduler's successive lives, in turn

# While the scheduler is dead, nodes and users hold these messages back until it runs
# again. Any other message is lost.
_HELD_BACK = (
    NodeJoined,
    NodeLost,
    JobSubmitted,
    CancelRequested,
    OffersConfigured,
    OfferChanged,
    PricesConfigured,
    TenantConfigured,
)


class _Process:
    """The clock of one life of the process. After the process has died, its timers do
    nothing.
    """

    def __init__(
        self, clock: VirtualClock, run: Callable[[Callable[[], None]], None]
    ) -> None:
        self.dead = False
        self._clock = clock
        self._run = run

    def now(self) -> float:
        return self._clock.now()

    def call_at(
        self, when: float, callback: Callable[[], None], *, last: bool = False
    ) -> Cancel:
        return self._clock.call_at(
            when, lambda: None if self.dead else self._run(callback), last=last
        )


class Host:
    """Runs the scheduler that `make` builds over the wire, life after life, with its
    invariants checked.
    """

    def __init__(
        self,
        make: MakeScheduler,
        world: World,
        wire: FaultyNetwork,
        solver: Solver,
        rng: random.Random,
        *,
        buyer: NodeBuyer | None = None,
    ) -> None:
        self.store = MemoryStore()
        self._make = make
        self._world = world
        self._wire = wire
        self._solver = solver
        self._random = rng
        self._buyer = buyer
        self.ledger = CostLedger()
        self._ledger_of_snapshot = CostLedger()
        self._held_back: list[Event] = []
        self._num_to_replay = 0
        self._process = _Process(wire.clock, self._run)
        self._runtime = self._begin()

    @property
    def state(self) -> SchedulerState:
        """The scheduler's state in the present life, or in the last one."""
        return self._runtime.scheduler.state

    def all_ended(self, num_jobs: int) -> bool:
        live = [job for job in self.state.jobs.values() if job.state not in ENDED]
        return not self._process.dead and not live and len(self._wire.ended) == num_jobs

    def deliver(self, event: Event) -> None:
        """Hand `event` to the process, if it lives."""
        if not self._process.dead:
            self._run(lambda: self._runtime.post(event))
        elif isinstance(event, _HELD_BACK):
            self._held_back.append(event)

    def die(self, lasts_s: float) -> None:
        """End the process now, and start it again after `lasts_s`."""
        if self._process.dead:
            return
        self._process.dead = True
        if self._random.random() < SNAPSHOT_CHANCE:
            self._save_snapshot()
        self._wire.clock.call_at(self._wire.clock.now() + lasts_s, self._begin_again)

    def _begin(self) -> Runtime:
        """Return a runtime over a new process, before it recovers."""
        self._process = _Process(self._wire.clock, self._run)
        scheduler = self._make(None)
        state, upto = self.store.latest_snapshot() or (None, 0)
        self._num_to_replay = sum(1 for _ in self.store.events(after=upto))
        checker = BookChecker(scheduler.config.solve_timeout_s, state)
        self.ledger = copy.deepcopy(self._ledger_of_snapshot)
        runtime = Runtime(
            scheduler,
            clock=self._process,
            executor=self._wire,
            store=self.store,
            solver=self._solver,
            observers=(checker, self.ledger, self._note_ends, self._watch),
        )
        if self._buyer is not None:
            runtime.buy_nodes(*self._buyer())
        return runtime

    def _note_ends(
        self, event: Event, _: Sequence[Command], state: SchedulerState
    ) -> None:
        """Keep the last record of each job that ended. Each later life and each replay
        must give the same record.
        """
        for job in (job for job in state.jobs.values() if job.state in ENDED):
            known = self._wire.ended.setdefault(job.id, copy.copy(job))
            if known != job:
                raise InvariantError(
                    f"after {event}: job {job.id} ended twice: {known}, {job}"
                )

    def _watch(
        self, event: Event, commands: Sequence[Command], state: SchedulerState
    ) -> None:
        if self._num_to_replay:
            self._num_to_replay -= 1  # a replayed event: the world has changed since
            return
        check_world(self._world, state)
        if commands or not isinstance(event, TrainingReported):
            orders = [
                message_text(command)
                for command in commands
                if not isinstance(command, SetAlarm)
            ]
            self._wire.tell(
                message_text(event) + (" -> " + ", ".join(orders) if orders else "")
            )

    def _begin_again(self) -> None:
        self._runtime = self._begin()
        self._run(self._runtime.recover)
        self._configure()
        held_back = self._held_back
        self._held_back = []
        for event in held_back:
            self.deliver(event)

    def _configure(self) -> None:
        """Give each life of the process other settings. A replay must make the same
        decisions as each life did.
        """
        num_lives = sum(
            isinstance(event, SchedulerRestarted) for event in self.store.events()
        )
        config = self._make(None).config
        config = replace(
            config,
            round_s=ROUNDS_S[num_lives % len(ROUNDS_S)],
            rescale_in_place=config.rescale_in_place and num_lives % 2 == 0,
        )
        self.deliver(SchedulerConfigured(at=self._wire.clock.now(), config=config))

    def _run(self, call: Callable[[], None]) -> None:
        try:
            call()
        except PowerCut:
            self.die(self._random.choice((0.0, self._random.uniform(0.0, DARK_MAX_S))))

    def _save_snapshot(self) -> None:
        events = list(self.store.events())
        upto = self._random.randint(0, len(events))
        ledger = CostLedger()
        scheduler = replayed(events[:upto], self._make(None), ledger)
        self._ledger_of_snapshot = ledger
        self.store.save_snapshot(copy.deepcopy(scheduler.state), upto)
