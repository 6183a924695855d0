"""Facts, in the past tense: the only input of the core. Each carries `at`, the instant
in seconds.

An event about a job's replicas carries the generation that it speaks of; the core
ignores old generations.
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
    STOPPED = "stopped"  # ended because it was told to; state is saved
    # ended through no fault of the script: a node, a signal, a crash of the host
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
    """A job came in. `forecast` is what is known in advance (a trace's oracle), None
    for a live job.
    """

    spec: JobSpec
    forecast: Forecast | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelRequested(_OfJob):
    """A caller with the right to do so cancels the job.

    why: the reason, "" where none was given.
    """

    why: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PriorityChanged(_OfJob):
    """A caller with the right to do so gives the job another priority among the jobs of
    its tenant.
    """

    priority: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeJoined(_Fact):
    """A node came up, empty: nothing that ran on it before is alive."""

    node: Node


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeLost(_Fact):
    """A node went away, or jobs are kept from it: every replica on it ends. why: what
    became of it.
    """

    node: NodeId
    why: str = "was lost"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicasStarted(_OfReplicas):
    """All replicas of this generation are up. Also the answer to a repeated order.

    unseen: why nobody can see at the moment whether they still are, "" where somebody
    can.
    """

    unseen: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SetupStarted(_OfReplicas):
    """The job's `setup` runs, since the instant `since`; its replicas are started after
    it.
    """

    since: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerSeen(_OfReplicas):
    """Whether a process of the replicas uses coadapt.train, as far as can be seen from
    outside.

    One that does tells of its first step. Where nobody can look, this event does not
    come.
    """

    seen: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicasKept(_OfReplicas):
    """The Rescale of this generation did not and will not come about: the replicas of
    before train on.

    detail: why, "" if it was taken back as asked. joiner_failed: a replica that was to
    join ended by an error of its own while it prepared, so a start of as many replicas
    would fail as well. The replicas go on to report under the number that they had;
    orders, and their end, go by this one.
    """

    detail: str = ""
    joiner_failed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingResumed(_OfReplicas):
    """Training of this generation took its first step; the change cost `rescale_s` of
    training time.

    pause: of a change in place, the seconds that each part of it took; empty if
    replicas were started anew.
    """

    rescale_s: float
    pause: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicasExited(_OfReplicas):
    """No replica of this generation, or of any before it, is alive any more."""

    outcome: Outcome
    detail: str = ""
    unfit_node: NodeId = ""
    """The node that lacks something of this job, so that nothing of it was run there;
    "" where none is known.
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
    """The alarm that the core asked for (command SetAlarm) rang."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerRestarted(_Fact):
    """The scheduler came back from its journal: what was in flight may be lost, orders
    are repeated.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerConfigured(_Fact):
    """The operator gave the scheduler other settings; they count from here on."""

    config: SchedulerConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantConfigured(_Fact):
    """The operator said what a tenant may have from here on."""

    tenant: Tenant


@dataclass(frozen=True, slots=True, kw_only=True)
class PricesConfigured(_Fact):
    """The operator named what a GPU costs from here on; None: costs are not counted."""

    prices: Prices | None


@dataclass(frozen=True, slots=True, kw_only=True)
class OffersConfigured(_Fact):
    """The operator said which nodes can be bought; they count from here on.

    sizing_s: decisions about the size of the cluster are at whole multiples of it, s.
    """

    offers: tuple[Offer, ...]
    sizing_s: float = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class OfferChanged(_Fact):
    """One offer has another price, or other limits, from here on."""

    offer: Offer


@dataclass(frozen=True, slots=True, kw_only=True)
class SizingReady(_Fact):
    """The sizer answered the Size of this number."""

    number: int
    sizing: Sizing


@dataclass(frozen=True, slots=True, kw_only=True)
class SizingFailed(_Fact):
    """The sizer did not answer the Size of this number: its error."""

    number: int
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeNoticed(_Fact):
    """The owner of a node takes it away at `gone_at`, s."""

    node: NodeId
    gone_at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class _OfStudy(_Fact):
    study: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StudySubmitted(_OfStudy):
    """A search over hyper-parameters came in; `file`: its search file as JSON.

    key: part of the ids of its trials' jobs, so that a later study of the same name has
    other jobs.
    """

    file: str
    key: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyStopped(_OfStudy):
    """No further trial of the study is started. why: the reason, a sentence.

    done: none of its trials runs any more, and none will. Otherwise its user stopped
    it, or it reached its deadline or its budget. cancel: trials that run are cancelled.
    """

    why: str
    done: bool = False
    cancel: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyResumed(_OfStudy):
    """A study that its user stopped goes on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyRemoved(_OfStudy):
    """A study that is stopped or done is deleted; its trials' jobs stay."""


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
