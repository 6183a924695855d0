"""Events: facts in the past tense, the only input of the core. `at` is the instant of
the fact, in seconds.

An event about a job's replicas carries their generation. The core ignores events of old
generations.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from coadapt.core.config import SchedulerConfig
from coadapt.model import (
    Forecast,
    JobId,
    JobSpec,
    Node,
    NodeId,
    Plan,
    Tenant,
    TrainingReport,
)
from coadapt.model.offer import Offer, Sizing
from coadapt.model.prices import Prices


class Outcome(StrEnum):
    """How a generation's replicas ended."""

    SUCCEEDED = "succeeded"  # the training script finished
    FAILED = "failed"  # the script ended with an error
    STOPPED = "stopped"  # ended because a stop was ordered; the state is saved
    # ended for a reason outside the script: a lost node, a signal, a crash of the host
    LOST = "lost"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Fact:
    at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class _OfJob(_Fact):
    job: JobId


@dataclass(frozen=True, slots=True, kw_only=True)
class _OfReplicas(_OfJob):
    generation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSubmitted(_OfJob):
    """A job was submitted. forecast: the forecast of a trace's oracle, None for a live
    job.
    """

    spec: JobSpec
    forecast: Forecast | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelRequested(_OfJob):
    """An authorised caller cancelled the job. why: the reason, "" if none was given."""

    why: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PriorityChanged(_OfJob):
    """An authorised caller changed the job's priority among the jobs of its tenant."""

    priority: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeJoined(_Fact):
    """A node joined, empty: no replica that ran on it before is alive."""

    node: Node


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeLost(_Fact):
    """A node was lost or closed to jobs: every replica on it ends. why: what happened
    to it.
    """

    node: NodeId
    why: str = "was lost"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicasStarted(_OfReplicas):
    """All replicas of this generation are up. Also the answer to a repeated order.

    unseen: why it is unknown at the moment whether they are still alive; "" if it is
    known.
    """

    unseen: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SetupStarted(_OfReplicas):
    """The job's `setup` has been running since instant `since`. The replicas start
    after it.
    """

    since: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerSeen(_OfReplicas):
    """The executor looked whether a process of the replicas uses coadapt.train.

    Only such a process reports its first step. Executors that cannot look do not send
    this event.
    """

    seen: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicasKept(_OfReplicas):
    """The Rescale of this generation did not happen and will not: the earlier replicas
    train on.

    detail: why, "" if it was retracted as ordered. joiner_failed: a joining replica
    ended with an error of its own while it prepared, so a start with as many replicas
    would fail as well. The replicas continue to report under their earlier generation.
    Orders, and the exit of the replicas, carry this one.
    """

    detail: str = ""
    joiner_failed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingResumed(_OfReplicas):
    """This generation took its first step. rescale_s: training time lost to the change,
    s.

    pause: seconds of each part of a rescale in place; empty after a restart.
    """

    rescale_s: float
    pause: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicasExited(_OfReplicas):
    """No replica of this generation or an earlier one is alive any more."""

    outcome: Outcome
    detail: str = ""
    unfit_node: NodeId = ""
    """The node that lacks something that this job needs, so that the job did not run
    there; "" if there is none.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingReported(_OfReplicas):
    report: TrainingReport


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanReady(_Fact):
    round: int
    plan: Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanFailed(_Fact):
    round: int
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TimerFired(_Fact):
    """The alarm of the last SetAlarm command went off."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerRestarted(_Fact):
    """The scheduler restarted from its journal. Messages in flight may be lost, so
    orders are repeated.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerConfigured(_Fact):
    """The operator changed the scheduler's settings. They apply from now on."""

    config: SchedulerConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantConfigured(_Fact):
    """The operator changed a tenant's limits. They apply from now on."""

    tenant: Tenant


@dataclass(frozen=True, slots=True, kw_only=True)
class PricesConfigured(_Fact):
    """The operator changed the prices of GPUs. None: costs are not counted."""

    prices: Prices | None


@dataclass(frozen=True, slots=True, kw_only=True)
class OffersConfigured(_Fact):
    """The operator changed the offers of nodes that can be bought.

    sizing_s: the cluster's size is decided at whole multiples of this period, s.
    """

    offers: tuple[Offer, ...]
    sizing_s: float = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class OfferChanged(_Fact):
    """The price or the limits of one offer changed."""

    offer: Offer


@dataclass(frozen=True, slots=True, kw_only=True)
class SizingReady(_Fact):
    """The sizer answered the Size command of this number."""

    number: int
    sizing: Sizing


@dataclass(frozen=True, slots=True, kw_only=True)
class SizingFailed(_Fact):
    """The sizer failed on the Size command of this number. error: its message."""

    number: int
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeNoticed(_Fact):
    """The owner of a node will take it away at instant `gone_at`, s."""

    node: NodeId
    gone_at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class _OfStudy(_Fact):
    study: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StudySubmitted(_OfStudy):
    """A search over hyper-parameters was submitted. file: its search file as JSON.

    key: part of the ids of its trials' jobs, so that a later study of the same name has
    other job ids.
    """

    file: str
    key: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyStopped(_OfStudy):
    """The study starts no further trial. why: the reason, a sentence.

    done: none of its trials runs, and none will. Otherwise its user stopped it, or it
    reached its deadline or its budget. cancel: running trials are cancelled.
    """

    why: str
    done: bool = False
    cancel: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyResumed(_OfStudy):
    """The user resumed a stopped study."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyRemoved(_OfStudy):
    """A stopped or finished study was deleted. The jobs of its trials stay."""


Event = (
    JobSubmitted
    | CancelRequested
    | PriorityChanged
    | NodeJoined
    | NodeLost
    | ReplicasStarted
    | SetupStarted
    | TrainerSeen
    | ReplicasKept
    | TrainingResumed
    | ReplicasExited
    | TrainingReported
    | PlanReady
    | PlanFailed
    | TimerFired
    | SchedulerRestarted
    | SchedulerConfigured
    | TenantConfigured
    | PricesConfigured
    | OffersConfigured
    | OfferChanged
    | SizingReady
    | SizingFailed
    | NodeNoticed
    | StudySubmitted
    | StudyStopped
    | StudyResumed
    | StudyRemoved
)
