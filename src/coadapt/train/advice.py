"""From what a run has measured to its report and to a better batch. Pure; runs in the reporter's thread."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from coadapt.goodput.efficiency import efficiency
from coadapt.goodput.fit import fit_throughput
from coadapt.goodput.forecast import packed_step_times
from coadapt.goodput.profile import Profile
from coadapt.model import (
    BatchConfig,
    BatchLimits,
    Forecast,
    GradStats,
    Placement,
    ThroughputParams,
    TrainingReport,
)
from coadapt.train.limits import better_batch
from coadapt.train.session import Session


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """A run between two steps. samples_left: to the end of its last epoch, None in a stream whose length is
    not known. tunes: it chooses its batch.

    cautious: `grad` with the noise scale at the low end of its interval.
    """

    progress: float
    samples: float
    samples_left: float | None
    limits: BatchLimits
    batch: BatchConfig
    placement: Placement
    gpu_type: str
    profile: Profile
    num_replicas_profiled: int
    replicas_max: int
    grad: GradStats | None
    params: ThroughputParams | None
    adaptive: bool
    tunes: bool
    cautious: GradStats | None = None
    step_time_s: float | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """What follows from a snapshot. batch: a better one, None to keep the present one."""

    report: TrainingReport
    params: ThroughputParams | None = None
    batch: BatchConfig | None = None


def take_snapshot(session: Session, num_epochs: int, step_time_s: float | None) -> Snapshot:
    """Return the snapshot of `session`, which is to end after `num_epochs` epochs."""
    data, progress, spec = session.data, session.progress, session.config.spec
    whole, left = data.order.epoch_samples(data.batch), None
    if whole is not None:
        left = float(max((num_epochs - progress.epoch) * whole - progress.index, 0))
    profile = session.profiles.builder(session.gpu_type)
    return Snapshot(
        progress=progress.progress,
        samples=float(progress.samples),
        samples_left=left,
        limits=data.limits,
        batch=data.batch,
        placement=session.group.placement,
        gpu_type=session.gpu_type,
        profile=profile.build(),
        num_replicas_profiled=profile.num_replicas_profiled,
        replicas_max=session.group.size if spec is None else spec.replicas.max,
        grad=session.grad_stats(),
        cautious=data.noise.cautious(),
        params=session.profiles.params.get(session.gpu_type),
        adaptive=session.adaptive,
        tunes=session.adaptive and session.config.batch is None,
        step_time_s=step_time_s,
        metrics=dict(session.metrics),
    )


def advise(at: Snapshot) -> Advice:
    """Fit the step-time model, choose the batch if it is the run's to choose, and make the report."""
    params = at.params
    if len(at.profile):
        params = fit_throughput(at.profile, at.params)
    batch = None
    if at.tunes and params is not None and at.grad is not None:
        batch = better_batch(at.limits, params, at.grad, at.placement, at.batch, cautious=at.cautious)
    report = TrainingReport(
        progress=at.progress,
        progress_target=_target(at),
        samples=at.samples,
        batch=at.batch,
        throughput={} if params is None else {at.gpu_type: params},
        grad=at.grad,
        num_replicas_profiled=at.num_replicas_profiled,
        forecast=_forecast(at, params),
        step_time_s=at.step_time_s,
        metrics=at.metrics,
    )
    return Advice(report=report, params=params, batch=batch)


def _target(at: Snapshot) -> float | None:
    """Return the progress at the end, if the rest is done at the present efficiency; None if not known."""
    if at.samples_left is None:
        return None
    share = 1.0
    if at.adaptive and at.grad is not None:
        total = float(max(at.batch.total, at.limits.initial))
        share = efficiency(total, float(at.limits.initial), at.grad.sqr, at.grad.var)
    return at.progress + share * at.samples_left


def _forecast(at: Snapshot, params: ThroughputParams | None) -> Forecast | None:
    if params is None or at.samples_left is None:
        return None
    # A job on one node does not know how many GPUs nodes have, and is taken to fit on one.
    one_node = at.placement.num_nodes == 1
    gpus_per_node = at.replicas_max if one_node else max(at.placement.replicas_per_node)
    times_s = packed_step_times(params, at.limits, at.replicas_max, gpus_per_node)
    return Forecast(remaining_steps=at.samples_left / at.limits.requested, step_time_s=times_s)
