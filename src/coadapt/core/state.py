"""The core's state as plain values: comparable, and savable as a snapshot through
model.wire.
"""

# How a job is kept in mind, and why so.
#
# Three grants. What a job should have (`target`, from the last plan), what it was last
# ordered to have (`order.grant`), and what its replicas were last known to train on
# (`running.grant`). Each has one writer:
# plans set targets, converge.py sends orders, answers of the executor move `running`
# after them (a start moves it at once: nothing else trains that could be mistaken for
# it). When all three agree the job is settled; each difference is work that is left to
# do, and is read off the state. So nothing has to remember what it was about to do, and
# a scheduler that comes back from its journal goes on where it was.
#
# One number. Every start and every rescale has the next generation, and an answer
# counts only if it speaks of the last one (scheduler.py, `_answered`): what is said
# about an earlier one has become history on its way. A retraction and a stop keep the
# number, because they ask about the same generation: whatever became of it by then is
# the answer to both (kept, started or exited), so no reply needs to be told from
# another. That is the only guard against messages that are lost, late, repeated or out
# of order, and none other is needed. (A generation was to be "the n-th start" at first;
# then a rescale that was lost and repeated could not be told from a second one.)
#
# During a rescale reports of two generations count. The order has number n + 1, while
# the replicas of `running` train on as n until all are ready to change, and report as
# n. Progress that they make while others prepare, which may take a minute, must be
# booked; and the change may never come about, then n trains on for good although the
# last order, its answer and the end of the replicas have n + 1. So reports are heard of
# both numbers (`may_train`), answers and ends of the last order only.
#
# Until its order is answered a job holds, on each node, the larger of old and new
# (`accounting.held`). The leaving and the staying replicas keep their GPUs until they
# have changed, the joining ones need theirs before that, and nobody can tell from
# outside at which instant it happens: with less, a GPU could be promised twice. The sum
# of both would be more than is needed, because a staying replica is on one GPU all
# along.
#
# One door. What a job holds follows from its status, its order and what runs, and from
# nothing else. These change through `accounting.hold` alone, which first books what was
# held until then (converge.py also notes on an order when it was sent, and how often:
# that holds nothing). So attained service is right by construction; a booking by hand
# beside each change is one that can be forgotten.
#
# Measured and Usage are values of floor 0, replaced whole and never changed: views,
# histories and snapshots hold the same ones, instead of a copy of each field.

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
from coadapt.model.prices import NO_BILL, Bill, Prices


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """Where a job is in its life, and why."""

    state: JobState = JobState.PENDING
    reason: Reason = Reason.SUBMITTED
    """Why, for programs."""
    explanation: str = ""
    """Why, a sentence for its user."""
    cancel_requested: bool = False
    """Its user wants it gone: it gets nothing any more, and policies do not see it."""
    cancel_why: str = ""
    """Why it is cancelled, as the end of a sentence; "" while it is not."""
    unseen: str = ""
    """Why nobody can see at the moment whether its replicas live, "" where somebody
    can.
    """
    blocked: str = ""
    """Which jobs keep a pending job from the GPUs that the plan gives it, "" if none
    does.
    """
    preparing: str = ""
    """What its replicas wait for before they are started, "" for nothing that was
    told.
    """

    def after(
        self,
        trigger: Trigger,
        reason: Reason | None = None,
        explanation: str | None = None,
    ) -> "Status":
        """Return the status after `trigger`; what is None stays. Raises
        IllegalTransitionError.
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


# So many ended jobs are remembered by their ids, about 0.4 MB of a snapshot. What the
# world says of a job comes within minutes of its end, unless a scheduler was down; a
# submission that is repeated after more than so many other ends is known to the history
# on disk.
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
    """Its number, one more than that of the order before; a retraction and a stop keep
    the number.
    """
    grant: Grant = NO_GRANT
    """What the job is to have: with what is running, what it holds."""
    kind: OrderKind = OrderKind.START
    """What is asked when it is repeated; once it was answered, a start asks whether the
    replicas live.
    """
    sent_at: float | None = None
    """When it was last sent, s; None once it was answered."""
    num_attempts: int = 0
    """How often it was sent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """The replicas that train, as far as is known; those of before while a rescale is
    not answered.
    """

    generation: int = 0
    """The one under which they were last known to train, and report."""
    grant: Grant = NO_GRANT
    """What they train on."""
    num_replicas_before: int = 0
    """How many trained before."""
    progress_at_start: float = 0.0
    """The job's progress as they were last started from nothing."""
    reported_at: float | None = None
    """When they last reported or took a first step, s; None before they did: a script
    need not report.
    """
    since: float = 0.0
    """When that start was ordered, s."""
    has_trained: bool = False
    """Whether they took a step since then."""
    is_plain: bool = False
    """Whether no process of them uses coadapt.train, as far as can be seen: they tell
    of no first step.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedRescales:
    """Rescales in place that failed before they began."""

    num_in_row: int = 0
    """How many since one came about."""
    waits_for_plan: bool = False
    """The last one failed, so the present target is let be until another plan asks."""


@dataclass(slots=True, kw_only=True)
class JobRecord:
    """All that the core knows of one job. Only Scheduler.handle changes it."""

    id: JobId
    spec: JobSpec
    submitted_at: float
    ended_at: float | None = None
    status: Status = Status()
    target: Grant = NO_GRANT
    """What the present plan gives it."""
    order: Order = Order()
    running: Running = Running()
    failed_rescales: FailedRescales = FailedRescales()
    growth: Growth = NO_GROWTH
    unfit_nodes: Mapping[NodeId, str] = field(default_factory=dict)
    """Nodes on which it cannot run, each with the reason; replaced whole."""
    heard_at: float = 0.0
    """Last sign of life of its replicas, or when one was last asked for, s."""
    retry_at: float = 0.0
    """Until when it rests after a failure, s; 0 while it does not rest."""
    measured: Measured = field(default_factory=Measured)
    usage: Usage = field(default_factory=Usage)
    bill: Bill = NO_BILL
    """What its GPUs have cost, while prices are known (costs.py)."""

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
        """Return what the last order says; nothing if the job has no replicas."""
        return self.order.grant.allocation

    @property
    def trains_on(self) -> Allocation:
        """Return what its replicas were last known to train on; nothing if it has
        none.
        """
        return self.running.grant.allocation


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """A search over hyper-parameters, whose trials are jobs.

    file: its search file as JSON. stopped: why no further trial is started, "" while
    they are. done: none of its trials runs any more, and none will. key: see
    StudySubmitted. cancel: trials that run are cancelled.
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
    """Values derived from the state; no part of it."""

    changed: set[JobId] = field(
        default_factory=set, init=False, compare=False, repr=False
    )
    """Jobs that it may have changed beside its own and those that it gave orders to."""
    active: list[JobRecord] = field(
        default_factory=list, init=False, compare=False, repr=False
    )
    """The jobs that have not ended, in the order of their submission."""


@dataclass(slots=True, kw_only=True)
class SchedulerState(_Followed):
    """Everything that a Scheduler is."""

    at: float = 0.0
    """The latest instant that an event told of, s."""
    config: SchedulerConfig | None = None
    """The last settings that an event brought, None before the first."""
    nodes: dict[str, Node] = field(default_factory=dict)
    jobs: dict[JobId, JobRecord] = field(default_factory=dict)
    """The live jobs, and those that ended with the last event, so that observers see
    their last record.
    """
    ended: dict[JobId, JobState] = field(default_factory=dict)
    """How jobs ended that are not in `jobs` any more, the last ENDED_KEPT of them, in
    order.
    """
    tenants: dict[TenantId, Tenant] = field(default_factory=dict)
    """Those that the operator configured."""
    last_lost: str = ""
    """Which node went away last, and why, in words."""
    away: dict[NodeId, AwayNode] = field(default_factory=dict)
    """The last AWAY_KEPT nodes that went away and have not come back, in order."""
    round: int = 0
    """Number of the last Solve."""
    round_at: float = 0.0
    """When the last round was, s."""
    solve_at: float | None = None
    """When the policy was asked, s; None once it answered, or its answer became
    void.
    """
    round_due_at: float | None = None
    """When the next round is, s; None while no job is active."""
    plan_error: str = ""
    """Why the last plan was refused or failed, "" if it was taken."""
    diagnostics: Mapping[str, float] = field(default_factory=dict)
    """Figures of the last plan that was taken."""
    buying: Buying | None = None
    """Nodes that are bought; None where no offers were configured."""
    studies: dict[str, Study] = field(default_factory=dict)
    """Searches over hyper-parameters, by name."""
    prices: Prices | None = None
    """What a GPU costs; None where the operator named no prices."""
    spent: dict[TenantId, float] = field(default_factory=dict)
    """What jobs of each tenant have cost, as far as their bills are booked."""
    budget_levels: dict[TenantId, int] = field(default_factory=dict)
    """How much of its budget each tenant has spent, in percent, rounded down to one of
    BUDGET_LEVELS (costs.py); those below all of them are left out.
    """
