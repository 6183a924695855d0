"""Facts, in the past tense: the only input of the core. Each carries `at`, the instant in seconds.

An event about a job's replicas carries the generation that it speaks of; the core ignores old generations.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from coadapt.core.config import SchedulerConfig
from coadapt.model import Forecast, JobId, JobSpec, Node, NodeId, Plan, Tenant, TrainingReport


class Outcome(StrEnum):
    """How a generation's replicas ended."""

    SUCCEEDED = "succeeded"  # the training script finished
    FAILED = "failed"  # the script ended with an error
    STOPPED = "stopped"  # ended because it was told to; state is saved
    LOST = "lost"  # ended through no fault of the script: a node, a signal, a crash of the host


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSubmitted:
    """A job came in. `forecast` is what is known in advance (a trace's oracle), None for a live job."""

    at: float
    job: JobId
    spec: JobSpec
    forecast: Forecast | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelRequested:
    at: float
    job: JobId


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeJoined:
    """A node came up, empty: nothing that ran on it before is alive."""

    at: float
    node: Node


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeLost:
    """A node went away, and every replica on it with it."""

    at: float
    node: NodeId


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicasStarted:
    """All replicas of this generation are up. Also the answer to a repeated order."""

    at: float
    job: JobId
    generation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicasKept:
    """The Rescale of this generation did not and will not come about: the replicas of before train on.

    detail: why, "" if it was taken back as asked. The replicas go on to report under the number that they
    had, while orders, and their end, go by this one.
    """

    at: float
    job: JobId
    generation: int
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingResumed:
    """Training of this generation took its first step; the change cost `rescale_s` of training time.

    pause: of a change in place, the seconds that each part of it took; empty if replicas were started anew.
    """

    at: float
    job: JobId
    generation: int
    rescale_s: float
    pause: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicasExited:
    """No replica of this generation, or of any before it, is alive any more."""

    at: float
    job: JobId
    generation: int
    outcome: Outcome
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingReported:
    at: float
    job: JobId
    generation: int
    report: TrainingReport


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanReady:
    at: float
    round: int
    plan: Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanFailed:
    at: float
    round: int
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TimerFired:
    """The alarm that the core asked for (command SetAlarm) rang."""

    at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerRestarted:
    """The scheduler came back from its journal: what was in flight may be lost, orders are repeated."""

    at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerConfigured:
    """The operator gave the scheduler other settings; they count from here on."""

    at: float
    config: SchedulerConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantConfigured:
    """The operator said what a tenant may have from here on."""

    at: float
    tenant: Tenant


Event = (
    JobSubmitted
    | CancelRequested
    | NodeJoined
    | NodeLost
    | ReplicasStarted
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
)
