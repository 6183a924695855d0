"""The network between the scheduler and the world in a fault simulation. It loses,
doubles and delays messages, cuts the scheduler's power between two orders, and records
what really happened.
"""

import random
from collections import defaultdict
from collections.abc import Callable

from coadapt.core.commands import Command, JobCommand
from coadapt.core.events import (
    CancelRequested,
    Event,
    JobSubmitted,
    NodeJoined,
    NodeLost,
    OfferChanged,
    OffersConfigured,
    Outcome,
    ReplicasExited,
    ReplicasStarted,
)
from coadapt.core.lifecycle import JobState, Reason
from coadapt.core.state import JobRecord
from coadapt.model import JobId
from coadapt.runtime.ports import Post
from coadapt.sim.clock import VirtualClock
from coadapt.sim.faults.invariants import InvariantError
from coadapt.sim.faults.scenario import CALM_AT_S, Rates
from coadapt.sim.world import World

Tell = Callable[[float, str], None]

# Events about nodes and offers arrive in order and are never lost.
_ABOUT_NODES = (NodeJoined, NodeLost, OffersConfigured, OfferChanged)


class PowerCut(Exception):  # noqa: N818 - it is what happens to the host, not what it did wrong
    """The scheduler's machine loses power between one order and the next."""


class FaultyNetwork:
    """The scheduler's Executor port, and the world's Post."""

    def __init__(
        self, clock: VirtualClock, rng: random.Random, rates: Rates, tell: Tell | None
    ) -> None:
        self.clock = clock
        self._random = rng
        self._rates = rates
        self._tell = tell
        self._world: World | None = None
        self._deliver: Post = lambda _: None
        self._on_start: Callable[[JobId], None] = lambda _: None
        self._nodes_due_at = 0.0
        self._truth = Truth()

    def connect(
        self, world: World, deliver: Post, on_start: Callable[[JobId], None]
    ) -> None:
        """Connect both ends. on_start: called at once for each job that starts in the
        world.
        """
        self._world = world
        self._deliver = deliver
        self._on_start = on_start

    def hostile(self) -> bool:
        """Return whether faults may happen now."""
        return self.clock.now() < CALM_AT_S

    def tell(self, text: str) -> None:
        if self._tell is not None:
            self._tell(self.clock.now(), text)

    # -- scheduler to world
    # -----------------------------------------------------------------------------

    @property
    def rescales_in_place(self) -> bool:
        assert self._world is not None
        return self._world.rescales_in_place

    def execute(self, command: JobCommand, _post: Post) -> None:
        """Send an order to the world. Raises PowerCut instead, now and then."""
        world = self._world
        assert world is not None
        self.order(command, lambda: world.execute(command, self.from_world))

    def order(self, command: Command, arrive: Callable[[], None]) -> None:
        """Send an order. Raises PowerCut instead, now and then."""
        if self.hostile() and self._random.random() < self._rates.power_cut:
            self.tell(f"POWER CUT before {message_text(command)}")
            raise PowerCut
        self._send(command, arrive)

    # -- world and users to scheduler
    # -------------------------------------------------------------------

    def note_hang(self, job_id: JobId, generation: int) -> None:
        """Record that the replicas of that generation hang, which no event reports."""
        self._truth.note_hang(job_id, generation)

    def from_world(self, event: Event) -> None:
        """Send an event of the world."""
        if isinstance(event, _ABOUT_NODES):
            delay_s = self._delay_s()
            self._nodes_due_at = max(self._nodes_due_at, self.clock.now() + delay_s)
            self.clock.call_at(self._nodes_due_at, lambda: self._deliver(event))
            if self._happens(self._rates.double):
                self.clock.call_at(self._nodes_due_at, lambda: self._deliver(event))
            return
        self._truth.note(event)
        if isinstance(event, ReplicasStarted):
            self._on_start(event.job)
        self._send(event, lambda: self._deliver(event))

    @property
    def all_nodes_told(self) -> bool:
        """Return whether every event about a node has arrived."""
        return self.clock.now() >= self._nodes_due_at

    def from_user(self, event: JobSubmitted | CancelRequested) -> None:
        """Send a user's request. It is never lost, because users repeat it until it
        arrives.
        """
        self._truth.note(event)
        self.answer(event, 0.0)
        if self._happens(self._rates.double):
            self.answer(event, self._delay_s())

    def answer(self, event: Event, delay_s: float) -> None:
        """Deliver `event` to the scheduler after `delay_s`. It is never lost."""
        self.clock.call_at(self.clock.now() + delay_s, lambda: self._deliver(event))

    @property
    def ended(self) -> dict[JobId, JobRecord]:
        """The last record of each job that ended, from the scheduler's state."""
        return self._truth.ended

    def check_exits(self) -> None:
        """Raise InvariantError unless the recorded end of each job is what really
        happened.
        """
        self._truth.check()

    def _send(self, message: Command | Event, arrive: Callable[[], None]) -> None:
        if self._happens(self._rates.lose):
            self.tell(f"  lost: {message_text(message)}")
            return
        times = 2 if self._happens(self._rates.double) else 1
        for _ in range(times):
            delay_s = self._delay_s()
            if delay_s or times > 1:
                self.tell(
                    f"  {delay_s:.1f} s late{', one of two' * (times > 1)}: "
                    f"{message_text(message)}"
                )
            self.clock.call_at(self.clock.now() + delay_s, arrive)

    def _happens(self, chance: float) -> bool:
        return self.hostile() and self._random.random() < chance

    def _delay_s(self) -> float:
        return (
            self._random.uniform(0.0, self._rates.delay_max_s)
            if self._happens(self._rates.delay)
            else 0.0
        )


class Truth:
    """What really happened to jobs, recorded before any message was lost."""

    def __init__(self) -> None:
        self._failed: dict[JobId, set[int]] = defaultdict(set)
        self._succeeded: set[JobId] = set()
        self.ended: dict[JobId, JobRecord] = {}
        self._cancelled: set[JobId] = set()

    def note(self, event: Event) -> None:
        match event:
            case ReplicasExited(outcome=Outcome.SUCCEEDED):
                self._succeeded.add(event.job)
            case ReplicasExited(outcome=Outcome.FAILED | Outcome.LOST):
                self._failed[event.job].add(event.generation)
            case CancelRequested():
                self._cancelled.add(event.job)
            case _:
                pass

    def note_hang(self, job_id: JobId, generation: int) -> None:
        self._failed[job_id].add(generation)

    def check(self) -> None:
        for job in self.ended.values():
            if wrong := self._wrong(job):
                raise InvariantError(f"job {job.id} is {job.state}, {wrong}")

    def _wrong(self, job: JobRecord) -> str:
        if (job.state is JobState.SUCCEEDED) is not (job.id in self._succeeded):
            return "which is not how its training ended"
        # The cost ledger checks whether the job reached its max_cost.
        ended_itself = job.id in self._cancelled or job.reason is Reason.MAX_COST
        if job.state is JobState.CANCELLED and not ended_itself:
            return "but it was not cancelled"
        if (
            job.state is JobState.FAILED
            and job.usage.num_failures <= job.spec.max_failures
        ):
            return f"but it failed only {job.usage.num_failures} times"
        if job.usage.num_failures > len(self._failed[job.id]):
            return (
                f"and failed {len(self._failed[job.id])} times, but "
                f"{job.usage.num_failures} are booked"
            )
        return ""


def message_text(message: Command | Event) -> str:
    """Return a message in a few words."""
    words = [type(message).__name__]
    if job := getattr(message, "job", None):
        generation = getattr(message, "generation", None)
        words.append(job if generation is None else f"{job} g{generation}")
    for name in ("outcome", "node", "round", "error", "detail"):
        if value := getattr(message, name, None):
            words.append(str(getattr(value, "id", value)))
    if (allocation := getattr(message, "allocation", None)) is not None:
        words.append("+".join(f"{node}:{count}" for node, count in allocation.slots))
    return " ".join(words)
