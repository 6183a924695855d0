"""Commands: the only output of the core."""

# What an executor promises, and why four orders to jobs are enough.
#
# Start, Rescale, RetractRescale and Stop are idempotent per (job, generation). If an
# executor gets an order again that it has carried out, it answers with the present
# state of that generation: ReplicasStarted, ReplicasKept or ReplicasExited. It ignores
# a generation lower than one that it has seen for that job. So the core may repeat an
# order at any time, and a lost message only costs time.
#
# Therefore a repeated order is also the question about a job's state. After a crash of
# the scheduler, a lost answer or a heartbeat timeout, the scheduler repeats the present
# order. An executor that has carried it out answers, and an executor that has not
# carries it out now. A separate command "reconcile" would be a second path through
# every executor that runs only after failures, when it must not fail itself. The price:
# an executor must remember what it started, also across its own restarts.
#
# An order names the whole allocation and the whole batch, never a difference. An
# executor that missed the order before, or got it twice, reaches the same result.
#
# Solve is a command because a policy is slow, may hang, and is not trusted. The host
# runs it where it likes, and its answer is an event in the journal like any other.

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
    """Take back the Rescale of this generation if the replicas have not begun to
    change. They train on.

    Answer ReplicasKept. If it is too late, answer with the result of the Rescale. If
    the same Rescale arrives later, ignore it.
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
    """Have this number of nodes of each offer in all, live and ordered ones together.

    If there are more, orders are taken back. Live nodes are given back by GiveBack
    only. `number` is that of the Size which was answered.
    """

    number: int
    nodes: Mapping[OfferId, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class GiveBack:
    """Give back a node without jobs. The answer is NodeLost."""

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
