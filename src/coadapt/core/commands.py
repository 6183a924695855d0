"""Orders: the only output of the core."""

# What an executor promises, and why the core gets along with four orders.
#
# Start, Rescale, RetractRescale and Stop are idempotent per (job, generation). An
# executor that has carried one out answers a repeat with the present fate of that
# generation: ReplicasStarted, ReplicasKept or ReplicasExited. It ignores a generation
# lower than one that it has seen for that job. So the core may send an order as often
# as it likes, and a message that is lost costs time and nothing else.
#
# Therefore the order is the probe. After a crash of the scheduler, a lost answer or a
# long silence, the scheduler sends the present order again: an executor that has
# carried it out answers, one that has not carries it out now. A command "reconcile"
# with answers of its own would be a second path through every executor, taken only in
# bad weather, that is, when it must not fail.
# The price: an executor must remember what it started, over restarts of its own too.
#
# An order says what is to be, never what is to change: the whole allocation and the
# whole batch. An executor that lost the order before, or saw it twice, still ends at
# the same place.
#
# Solve is a command like the others because a policy is slow, may hang, and is never
# trusted: it runs wherever the host likes, and its answer comes back as an event, in
# the journal like any other.

from collections.abc import Mapping
from dataclasses import dataclass

from coadapt.model import Allocation, BatchConfig, ClusterView, JobId, JobSpec, NodeId
from coadapt.model.offer import OfferId, SizingView


@dataclass(frozen=True, slots=True, kw_only=True)
class Solve:
    """Run the policy on `view`; answer PlanReady or PlanFailed with the same round."""

    round: int
    view: ClusterView


@dataclass(frozen=True, slots=True, kw_only=True)
class _ToJob:
    job: JobId
    generation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Placing(_ToJob):
    spec: JobSpec
    allocation: Allocation
    batch: BatchConfig | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Start(_Placing):
    """Start the replicas, from the last checkpoint if there is one. `batch` None: the
    job picks its own.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class Rescale(_Placing):
    """Bring the running replicas to `allocation` in place; they are of generation
    `generation` from then on.

    Answer ReplicasStarted (new generation), ReplicasKept if it did not come about, or
    ReplicasExited (new generation) if the job ended meanwhile.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class RetractRescale(_ToJob):
    """Take back the Rescale of this generation, if the replicas have not begun to
    change; they train on.

    Answer ReplicasKept, or if it is too late what became of the Rescale. One that comes
    later is passed over.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop(_ToJob):
    """Save state and end all replicas of the job; answer ReplicasExited with this
    generation.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class SetAlarm:
    """Post TimerFired at instant `at`. A new alarm replaces the one before."""

    at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """Run the sizer on `view`; answer SizingReady or SizingFailed with the
    same number.
    """

    number: int
    view: SizingView


@dataclass(frozen=True, slots=True, kw_only=True)
class BuyNodes:
    """Have so many nodes of each offer in all, live and ordered ones together.

    Where there are more, orders are taken back; live nodes are given back by GiveBack
    alone. `number` is that of the Size which was answered.
    """

    number: int
    nodes: Mapping[OfferId, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class GiveBack:
    """Give a node back, on which no job is; it ends with NodeLost."""

    node: NodeId


Command = (
    Solve
    | Start
    | Rescale
    | RetractRescale
    | Stop
    | SetAlarm
    | Size
    | BuyNodes
    | GiveBack
)
JobCommand = Start | Rescale | RetractRescale | Stop
