"""The four ports between the core and the world: Clock, Executor (LiveExecutor to run
one), Store, Solver.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from coadapt.core.commands import BuyNodes, GiveBack, JobCommand, Size, Solve
from coadapt.core.events import Event
from coadapt.core.state import SchedulerState
from coadapt.model import JobId, Node, NodeId
from coadapt.model.offer import Offer

Post = Callable[[Event], None]
Cancel = Callable[[], None]


class Clock(Protocol):
    def now(self) -> float:
        """Return the present instant in seconds; it never goes back."""
        ...

    def call_at(
        self, when: float, callback: Callable[[], None], *, last: bool = False
    ) -> Cancel:
        """Call `callback` once at `when` (at once if that has passed); return a
        function that prevents it.

        Among callbacks of one instant those marked `last` come after all others (alarms
        after facts); otherwise the order of the calls to `call_at` decides.
        """
        ...


class Executor(Protocol):
    """Turns orders into replicas. `execute` returns at once; answers are posted, from
    any thread.
    """

    @property
    def rescales_in_place(self) -> bool:
        """Whether Rescale is understood; otherwise the core uses Stop, then Start.

        The runtime holds the scheduler's settings to it.
        """
        ...

    def execute(self, command: JobCommand, post: Post) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class LogPart:
    """Bytes of a replica's log. next_offset: where to read on, behind `data` and what
    was dropped.
    """

    data: bytes
    next_offset: int


class KeepsNodes(Protocol):
    """Keeps jobs from nodes on which they fail again and again. For any thread."""

    @property
    def aside(self) -> Mapping[NodeId, str]:
        """The nodes that jobs are kept from, and why."""
        ...

    def take_back(self, node: NodeId) -> bool:
        """Let jobs on such a node again; return whether it was one."""
        ...


class LiveExecutor(Executor, KeepsNodes, Protocol):
    """An executor as a live host needs it, in this order: adopted, announce, run (in a
    thread), close.

    It finds by itself what an earlier one left running. `execute` and `log` are for any
    thread, at any time.
    """

    @property
    def to_come(self) -> Sequence[Node]:
        """Nodes that it may get by itself beside those that are there: a submission may
        count on them.
        """
        ...

    @property
    def shares_disk(self) -> bool:
        """Whether a job's directory is on this machine too, so that a job without one
        can be refused.
        """
        ...

    @property
    def trouble(self) -> str:
        """One sentence: since when and why the engine cannot be asked; "" if it can.

        Any thread may read it.
        """
        ...

    def adopted(self) -> Sequence[tuple[JobId, int]]:
        """Return (job, generation) of what lives, or ended unnoticed, since an earlier
        executor.
        """
        ...

    def announce(self, known: Mapping[NodeId, Node], post: Post) -> None:
        """Post NodeLost for those of `known` that are gone, NodeJoined for those that
        are new or changed.
        """
        ...

    def run(self, post: Post) -> None:
        """Carry out orders, watch what runs, and post nodes that join or are lost,
        until `close`.

        What runs then goes on running. What is raised here is a bug: the scheduler
        ends.
        """
        ...

    def close(self) -> None: ...

    def log(self, job: JobId, rank: int, offset: int) -> LogPart:
        """Return what replica `rank` printed, over all generations, from byte `offset`;
        no data at the end.

        Output that is kept no more is passed over.
        """
        ...


class Store(Protocol):
    """The journal. What is appended is durable when `append` returns. Events have the
    numbers 1, 2, …
    """

    @property
    def last_number(self) -> int:
        """The number of the last event, 0 before the first."""
        ...

    def append(self, events: Sequence[Event]) -> None: ...

    def events(self, after: int = 0) -> Iterator[Event]:
        """Yield the events with a number greater than `after`, in order, without the
        refused ones.
        """
        ...

    def numbered_events(self, after: int = 0) -> Iterator[tuple[int, Event]]:
        """Yield the same events with their numbers."""
        ...

    def refuse(self, number: int, why: str, trace: str = "") -> None:
        """Set event `number` aside for good: no replay sees it again. why: one line;
        trace: of the error.
        """
        ...

    def save_snapshot(self, state: SchedulerState, upto: int) -> None:
        """Keep `state`, which is the state after event number `upto`."""
        ...

    def latest_snapshot(self) -> tuple[SchedulerState, int] | None: ...


Solver = Callable[[Solve, Post], None]
SizeSolver = Callable[[Size, Post], None]


class NodeProvider(Protocol):
    """Brings nodes that are bought and takes them back; answers are posted as events.

    Both orders may be repeated: they say what is to be, not what is to change.
    """

    def buy(self, command: BuyNodes, post: Post) -> None:
        """Have as many nodes of each offer in all as the command says."""
        ...

    def give_back(self, command: GiveBack, post: Post) -> None:
        """Take one node back; post NodeLost when it is gone."""
        ...


@runtime_checkable
class BuysNodes(NodeProvider, Protocol):
    """A LiveExecutor whose engine brings nodes and takes them back. For any thread.

    It remembers across its own restarts what it ordered and which nodes it has. A node
    that its owner takes away is posted as NodeNoticed, again after a restart.
    """

    @property
    def offers(self) -> Sequence[Offer]:
        """The offers as the engine has them: with the GPU type of its nodes."""
        ...


@runtime_checkable
class TakesNodes(Protocol):
    """An executor whose nodes a person can take away, for tests. For any thread."""

    def take_away(self, node: NodeId, gone_at: float) -> bool:
        """Take a node away at `gone_at`, s since 1970, whatever runs there; with a
        notice if that is later than now. Return whether it is a bought node.
        """
        ...
