"""The core's books as plain values: comparable, and savable as a snapshot through model.wire."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from coadapt.core.config import SchedulerConfig
from coadapt.core.lifecycle import JobState, Reason
from coadapt.model import (
    WAITING,
    Allocation,
    BatchConfig,
    Forecast,
    GradStats,
    JobId,
    JobSpec,
    Node,
    ThroughputParams,
)


@dataclass(slots=True, kw_only=True)
class JobRecord:
    """All that the core knows of one job. Only Scheduler.handle changes it.

    generation: that of the last order; trained: the one under which its replicas were last known to train.
    allocation: what these were last known to run on; ordered: what the last order says; until that order is
    answered the job holds both. target: what the present plan gives it. allocation_batch, ordered_batch,
    target_batch: likewise, where the policy dictates. retracting: the last order was a resize, and is being
    taken back. waits_for_plan: its last resize failed, so the present target is let be; num_resizes_failed:
    so many in a row. order_at: when the last order was sent, None once it was answered. heard_at: last sign
    of life. num_replicas_before: how many trained before `allocation` was. num_in_place: of the rescales
    measured, those without a restart; pause: the parts of the last of these, in seconds.
    """

    id: JobId
    spec: JobSpec
    submitted_at: float
    state: JobState = JobState.PENDING
    reason: Reason = Reason.SUBMITTED
    explanation: str = ""
    generation: int = 0
    trained: int = 0
    allocation: Allocation = WAITING
    ordered: Allocation = WAITING
    num_replicas_before: int = 0
    target: Allocation = WAITING
    batch: BatchConfig | None = None
    allocation_batch: BatchConfig | None = None
    ordered_batch: BatchConfig | None = None
    target_batch: BatchConfig | None = None
    retracting: bool = False
    waits_for_plan: bool = False
    num_resizes_failed: int = 0
    order_at: float | None = None
    num_attempts: int = 0
    heard_at: float = 0.0
    cancel_requested: bool = False
    started_at: float | None = None
    ended_at: float | None = None
    num_starts: int = 0
    num_rescales: int = 0
    num_failures: int = 0
    rescale_total_s: float = 0.0
    num_rescales_measured: int = 0
    num_in_place: int = 0
    pause: Mapping[str, float] = field(default_factory=dict)
    rescaled_generation: int = 0
    attained_service_gpu_s: float = 0.0
    accounted_at: float = 0.0
    progress: float = 0.0
    progress_at_start: float = 0.0
    progress_target: float | None = None
    samples: float = 0.0
    step_time_s: float | None = None
    throughput: Mapping[str, ThroughputParams] = field(default_factory=dict)
    grad: GradStats | None = None
    num_replicas_profiled: int = 0
    forecast: Forecast | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)
    batch_history: tuple[tuple[float, int], ...] = ()


@dataclass(slots=True, kw_only=True)
class SchedulerState:
    """Everything that a Scheduler is.

    config: the last settings that an event brought, None before the first. round: number of the last Solve,
    round_at: its instant; solve_at: the same until it was answered or void. round_due_at: the instant of the
    next round, None when no job is active. plan_error: why the last plan was refused, "" if it was not.
    """

    at: float = 0.0
    config: SchedulerConfig | None = None
    nodes: dict[str, Node] = field(default_factory=dict)
    jobs: dict[JobId, JobRecord] = field(default_factory=dict)
    round: int = 0
    round_at: float = 0.0
    solve_at: float | None = None
    round_due_at: float | None = None
    plan_error: str = ""
    diagnostics: Mapping[str, float] = field(default_factory=dict)
