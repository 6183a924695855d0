"""The core's state: plain values that can be compared, and saved as a snapshot by
model.wire.
"""

# How a job is represented, and why.
#
# Three grants. A job has a `target` (what the last plan gives it), an order
# (`order.grant`: what it was last ordered to hold) and running replicas
# (`running.grant`: what they were last known to train on). Each grant has one writer:
# plans set targets, converge.py sends orders, and the executor's answers update
# `running`. (A start updates it at once, because no other replicas are alive.) If all
# three agree, the job is settled. Each difference is work left to do, and it is read
# off the state. So no intention is stored anywhere, and a scheduler that restarts from
# its journal continues where it was.
#
# One number. Each start and each rescale gets the next generation, and an answer counts
# only if it carries the latest one (scheduler.py, `_answered`). Answers for earlier
# generations are outdated. A retraction and a stop keep the number, because they ask
# about the same generation: whatever happened to it (kept, started or exited) answers
# both. This is the only guard against messages that are lost, late, repeated or out of
# order, and no other is needed. (Earlier a generation was "the n-th start". Then a lost
# and repeated rescale could not be distinguished from a second one.)
#
# During a rescale, reports of two generations count. The order has number n + 1, but
# the replicas of `running` train and report as n until all replicas are ready to
# change, which may take a minute. Their progress must be booked meanwhile. The change
# may also never happen. Then n trains on, although the last order, its answer and the
# end of the replicas carry n + 1. So reports count for both numbers (`may_train`), but
# answers and exits only for the last order.
#
# Until its order is answered, a job holds the larger of the old and the new count on
# each node (`accounting.held`). Replicas that leave or stay keep their GPUs until they
# have changed, replicas that join need theirs before that, and the instant of the
# change is unknown. With less, a GPU could be given to two jobs. The sum of both counts
# would be too much, because a staying replica uses one GPU throughout.
#
# One function. What a job holds follows from its status, its order and its running
# replicas, and from nothing else. Only `accounting.hold` changes these, and it first
# books what the job held until then. So attained service is right by construction.
# (converge.py also writes on an order when it was sent and how often, which changes no
# holdings.)
#
# Measured and Usage are immutable and replaced as a whole, so views, histories and
# snapshots share them instead of copying fields.

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from coadapt.core.config import SchedulerConfig
from coadapt.core.growth import NO_GROWTH, Growth
from coadapt.core.hindrances import AwayNode
from coadapt.core.lifecycle import JobState, Reason, Trigger, advance
from coadapt.core.node_buying import Buying
from coadapt.model import (
    NO_GRANT,
    Allocation,
    Grant,
    JobId,
    JobSpec,
    Measured,
    Node,
    NodeId,
    Tenant,
    TenantId,
    Usage,
)
from coadapt.model.budget_period import PeriodStart
from coadapt.model.prices import NO_BILL, Bill, Prices


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """The state of a job in its lifecycle, and the reason."""

    state: JobState = JobState.PENDING
    reason: Reason = Reason.SUBMITTED
    """The reason, for programs."""
    explanation: str = ""
    """The reason as a sentence for the job's user."""
    cancel_requested: bool = False
    """Its user cancelled it: it gets no GPUs any more, and policies do not see it."""
    cancel_why: str = ""
    """Why it is cancelled, as the end of a sentence; "" while it is not."""
    cancel_reason: Reason = Reason.CANCELLED
    """The reason that it ends with once it is cancelled, for programs."""
    unseen: str = ""
    """Why it is unknown at the moment whether its replicas are alive; "" if it is
    known.
    """
    blocked: str = ""
    """Which jobs still hold the GPUs that the plan gives to this pending job; "" if
    none do.
    """
    preparing: str = ""
    """What must finish before its replicas start, such as its `setup`; "" if nothing is
    known.
    """

    def after(
        self,
        trigger: Trigger,
        reason: Reason | None = None,
        explanation: str | None = None,
    ) -> "Status":
        """Return the status after `trigger`. Arguments that are None stay as they were.

        Raises IllegalTransitionError.
        """
        why = self.explanation if explanation is None else explanation
        state = advance(self.state, trigger)
        return replace(
            self,
            state=state,
            reason=reason or self.reason,
            explanation=why,
            unseen="",
            blocked="",
            preparing="",
        )


# Number of ended jobs whose ids stay in the state: about 0.4 MB of a snapshot. Events
# of a job come within minutes of its end, unless the scheduler was down. A submission
# that is repeated after more ends than this is found in the job history on disk.
ENDED_KEPT = 10_000


class OrderKind(StrEnum):
    START = "start"
    RESCALE = "rescale"
    RETRACT = "retract"
    STOP = "stop"


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """The last order of a job."""

    generation: int = 0
    """Its number: one more than that of the previous order. A retraction and a stop
    keep the number.
    """
    grant: Grant = NO_GRANT
    """What the job should hold. With `running` it determines what the job holds now."""
    kind: OrderKind = OrderKind.START
    """The kind of the command, also when it is repeated. Repeating an answered start
    asks whether the replicas are alive.
    """
    sent_at: float | None = None
    """When it was last sent, s; None after the answer."""
    num_attempts: int = 0
    """How many times it was sent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """The replicas that train, as far as is known. During a rescale these are the
    replicas before it.
    """

    generation: int = 0
    """The generation under which they train and report."""
    grant: Grant = NO_GRANT
    """What they train on."""
    num_replicas_before: int = 0
    """The number of replicas before the last change."""
    progress_at_start: float = 0.0
    """The job's progress at their last start from a checkpoint, samples."""
    reported_at: float | None = None
    """When they last reported or took a first step, s; None before that. A script need
    not report at all.
    """
    since: float = 0.0
    """When that start was ordered, s."""
    has_trained: bool = False
    """Whether they have taken a step since that start."""
    is_plain: bool = False
    """Whether none of their processes is seen to use coadapt.train. Such replicas do
    not report a first step.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedRescales:
    """Rescales in place that failed before they began."""

    num_in_row: int = 0
    """Number of failures since the last rescale that succeeded."""
    waits_for_plan: bool = False
    """The last one failed, so no further one is tried before the next plan."""


@dataclass(slots=True, kw_only=True)
class JobRecord:
    """What the core knows of one job. Only Scheduler.handle changes it."""

    id: JobId
    spec: JobSpec
    submitted_at: float
    ended_at: float | None = None
    status: Status = Status()
    target: Grant = NO_GRANT
    """What the last plan gives it."""
    order: Order = Order()
    running: Running = Running()
    failed_rescales: FailedRescales = FailedRescales()
    growth: Growth = NO_GROWTH
    unfit_nodes: Mapping[NodeId, str] = field(default_factory=dict)
    """Nodes on which it cannot run, each with the reason. Replaced as a whole."""
    heard_at: float = 0.0
    """When its replicas were last known to be alive, or were last asked, s."""
    lost_node: bool = False
    """A node on which it held GPUs was taken away, and no plan gave it GPUs since."""
    retry_at: float = 0.0
    """End of its backoff after a failure, s; 0 without backoff."""
    measured: Measured = field(default_factory=Measured)
    usage: Usage = field(default_factory=Usage)
    bill: Bill = NO_BILL
    """What its GPUs have cost while prices are known (costs.py)."""

    @property
    def state(self) -> JobState:
        return self.status.state

    @property
    def reason(self) -> Reason:
        return self.status.reason

    @property
    def explanation(self) -> str:
        return self.status.explanation

    @property
    def generation(self) -> int:
        """Return the generation of the last order."""
        return self.order.generation

    @property
    def ordered(self) -> Allocation:
        """Return the allocation of the last order, empty if the job has no replicas."""
        return self.order.grant.allocation

    @property
    def trains_on(self) -> Allocation:
        """Return the allocation on which its replicas train, empty if it has none."""
        return self.running.grant.allocation


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """A search over hyper-parameters, whose trials are jobs.

    file: its search file as JSON. stopped: why no further trial is started, "" while
    trials are started. done: whether none of its trials runs, and none will. key: see
    StudySubmitted. cancel: whether running trials are cancelled.
    """

    name: str
    submitted_at: float
    file: str
    stopped: str = ""
    done: bool = False
    key: str = ""
    cancel: bool = False


@dataclass(slots=True, kw_only=True)
class _Followed:
    """Values derived from the state, which are not saved with it."""

    changed: set[JobId] = field(
        default_factory=set, init=False, compare=False, repr=False
    )
    """Jobs that the last event may have changed, besides its own job and those that got
    orders.
    """
    active: list[JobRecord] = field(
        default_factory=list, init=False, compare=False, repr=False
    )
    """Jobs that have not ended, in the order of their submission."""


@dataclass(slots=True, kw_only=True)
class SchedulerState(_Followed):
    """The whole state of a Scheduler."""

    at: float = 0.0
    """The latest instant of any event, s."""
    config: SchedulerConfig | None = None
    """The settings of the last SchedulerConfigured, None before the first."""
    nodes: dict[str, Node] = field(default_factory=dict)
    jobs: dict[JobId, JobRecord] = field(default_factory=dict)
    """Live jobs, and jobs that ended with the last event, so that observers see their
    last record.
    """
    ended: dict[JobId, JobState] = field(default_factory=dict)
    """Final states of the last ENDED_KEPT jobs that are no longer in `jobs`, in order
    of their ends.
    """
    tenants: dict[TenantId, Tenant] = field(default_factory=dict)
    """Tenants that the operator configured."""
    last_lost: str = ""
    """The node that was lost last, and why, in words."""
    away: dict[NodeId, AwayNode] = field(default_factory=dict)
    """The last AWAY_KEPT nodes that were lost and have not joined again, in order."""
    round: int = 0
    """Number of the last Solve."""
    round_at: float = 0.0
    """When the last round was, s."""
    solve_at: float | None = None
    """When the policy was last asked, s; None after its answer, or if the answer will
    be void.
    """
    round_due_at: float | None = None
    """When the next round is, s; None while no job is active."""
    plan_error: str = ""
    """Why the last plan was rejected or failed; "" if it was accepted."""
    diagnostics: Mapping[str, float] = field(default_factory=dict)
    """The diagnostics of the last accepted plan."""
    buying: Buying | None = None
    """Bought nodes; None if no offers were configured."""
    studies: dict[str, Study] = field(default_factory=dict)
    """Searches over hyper-parameters, by name."""
    prices: Prices | None = None
    """Prices of GPUs; None if the operator set none."""
    spent: dict[TenantId, float] = field(default_factory=dict)
    """The booked cost of each tenant's jobs."""
    periods: tuple[PeriodStart, ...] = ()
    """The day, week and month of now, since prices were first set."""
    budget_levels: dict[TenantId, int] = field(default_factory=dict)
    """Share of its budget that each tenant has spent, percent, rounded down to one of
    BUDGET_LEVELS (costs.py). Tenants below the lowest level are left out.
    """
