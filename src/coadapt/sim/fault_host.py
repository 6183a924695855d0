"""The scheduler's process in a fault simulation: it dies, loses what it did not journal, and comes back."""

import copy
import random
from collections.abc import Callable, Sequence

from coadapt.core.commands import Command, SetAlarm
from coadapt.core.events import CancelRequested, Event, JobSubmitted, NodeJoined, NodeLost, TrainingReported
from coadapt.core.lifecycle import ENDED
from coadapt.core.scheduler import Scheduler, SchedulerConfig
from coadapt.core.state import SchedulerState
from coadapt.runtime.memory_store import MemoryStore
from coadapt.runtime.ports import Cancel, Solver
from coadapt.runtime.runtime import Runtime
from coadapt.sim.clock import VirtualClock
from coadapt.sim.fault_wire import PowerCut, Wire, told
from coadapt.sim.invariants import BookChecker, check_world
from coadapt.sim.replay import replayed
from coadapt.sim.world import World

MakeScheduler = Callable[[SchedulerConfig, SchedulerState | None], Scheduler]

SNAPSHOT_CHANCE = 0.5  # that a dying scheduler had a snapshot
DARK_MAX_S = 120.0  # how long a power cut lasts at most

# Hosts and users hold these back until the scheduler hears them; any other message to a dead one is lost.
_HELD_BACK = (NodeJoined, NodeLost, JobSubmitted, CancelRequested)


class _Process:
    """The clock as one life of the process sees it: when the process is dead, nothing rings in it."""

    def __init__(self, clock: VirtualClock, run: Callable[[Callable[[], None]], None]) -> None:
        self.dead = False
        self._clock = clock
        self._run = run

    def now(self) -> float:
        return self._clock.now()

    def call_at(self, when: float, callback: Callable[[], None], *, last: bool = False) -> Cancel:
        return self._clock.call_at(when, lambda: None if self.dead else self._run(callback), last=last)


class Host:
    """Runs the scheduler that `make` builds over the wire, life after life, with its invariants checked."""

    def __init__(
        self, make: MakeScheduler, config: SchedulerConfig, wire: Wire, solver: Solver, rng: random.Random
    ) -> None:
        self.store = MemoryStore()
        self.num_deaths = 0
        self._make = make
        self._config = config
        self._wire = wire
        self._solver = solver
        self._random = rng
        self._held_back: list[Event] = []
        self._life: tuple[_Process, Runtime] | None = None
        self._state = SchedulerState()

    @property
    def state(self) -> SchedulerState:
        """The books of the present life, or of the last one."""
        return self._life[1].scheduler.state if self._life else self._state

    def all_ended(self, num_jobs: int) -> bool:
        jobs = self.state.jobs.values()
        return self._life is not None and len(jobs) == num_jobs and all(job.state in ENDED for job in jobs)

    def begin(self, clock: VirtualClock, world: World) -> None:
        """Start the process; it recovers whatever the journal holds."""
        process = _Process(clock, lambda call: self._run(call, clock, world))
        scheduler = self._make(self._config, None)
        snapshot = self.store.latest_snapshot()
        checker = BookChecker(self._config.solve_timeout_s, None if snapshot is None else snapshot[0])
        recovered = False

        def observe(event: Event, commands: Sequence[Command], state: SchedulerState) -> None:
            checker(event, commands, state)
            if recovered:
                self._tell(event, commands)
                check_world(world, state)

        runtime = Runtime(
            scheduler,
            clock=process,
            executor=self._wire,
            store=self.store,
            solver=self._solver,
            observers=(observe,),
        )
        self._life = (process, runtime)
        self._run(runtime.recover, clock, world)
        recovered = True
        held_back, self._held_back = self._held_back, []
        for event in held_back:
            self.deliver(event, clock, world)

    def deliver(self, event: Event, clock: VirtualClock, world: World) -> None:
        """Hand `event` to the process, if it lives."""
        if self._life is not None:
            runtime = self._life[1]
            self._run(lambda: runtime.post(event), clock, world)
        elif isinstance(event, _HELD_BACK):
            self._held_back.append(event)

    def die(self, lasts_s: float, clock: VirtualClock, world: World) -> None:
        """End the process now, and start it again after `lasts_s`."""
        if self._life is None:
            return
        process, runtime = self._life
        process.dead = True
        self._state = runtime.scheduler.state
        self._life = None
        self.num_deaths += 1
        if self._make is Scheduler and self._random.random() < SNAPSHOT_CHANCE:
            self._save_snapshot()
        clock.call_at(clock.now() + lasts_s, lambda: self.begin(clock, world))

    def _run(self, call: Callable[[], None], clock: VirtualClock, world: World) -> None:
        try:
            call()
        except PowerCut:
            self.die(self._random.choice((0.0, self._random.uniform(0.0, DARK_MAX_S))), clock, world)

    def _save_snapshot(self) -> None:
        events = list(self.store.events())
        upto = self._random.randint(0, len(events))
        scheduler = replayed(events[:upto], self._make(self._config, None))
        self.store.save_snapshot(copy.deepcopy(scheduler.state), upto)

    def _tell(self, event: Event, commands: Sequence[Command]) -> None:
        if isinstance(event, TrainingReported) and not commands:
            return
        orders = [told(command) for command in commands if not isinstance(command, SetAlarm)]
        self._wire.tell(told(event) + ("" if not orders else " -> " + ", ".join(orders)))
