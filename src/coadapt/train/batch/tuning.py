"""From what a run has measured to its report and to a better batch. Pure; runs in the
reporter's thread.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from coadapt.goodput.efficiency import efficiency
from coadapt.goodput.fit import fit_throughput
from coadapt.goodput.forecast import packed_step_times
from coadapt.goodput.profile import Profile
from coadapt.goodput.step_time_kriging import optimistic_step_times
from coadapt.goodput.throughput import ThroughputModel, step_time
from coadapt.model import (
    ApplicationTimes,
    BatchConfig,
    BatchLimits,
    BatchMode,
    BatchRule,
    Forecast,
    GradStats,
    Placement,
    ReplicaLimits,
    ThroughputParams,
    TrainingReport,
    TypeProfile,
)
from coadapt.train.batch.limits import better_batch
from coadapt.train.session import Session

# A fit to a few steps may say that they take no time; an epoch takes some.
EPOCH_MIN_S = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """How far a run is. samples_left: to the end of its last epoch, None in a stream of
    unknown length.

    num_epochs: of the whole run. epoch_samples: of each, None as samples_left.
    """

    progress: float
    samples: float
    samples_left: float | None
    num_epochs: int = 0
    epoch_samples: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Timings:
    """Step times measured on one GPU type, and the parameters fitted to them last.

    profile: mean times. typical: those that a choice of the batch goes by.
    """

    gpu_type: str
    profile: Profile
    typical: Profile
    num_replicas_profiled: int
    params: ThroughputParams | None
    step_time_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSnapshot:
    """A run between two steps. tunes: it chooses its batch.

    cautious: `grad` with the noise scale at the low end of its interval. trend: see
    `better_batch`.
    """

    done: Done
    timings: Timings
    limits: BatchLimits
    batch: BatchConfig
    placement: Placement
    replicas: ReplicaLimits
    grad: GradStats | None
    adaptive: bool
    tunes: bool
    cautious: GradStats | None = None
    trend: int = 0
    metrics: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitted:
    """What follows from a snapshot: a report, and the parameters that its times fit."""

    report: TrainingReport
    params: ThroughputParams | None = None


def take_snapshot(
    session: Session, num_epochs: int, step_time_s: float | None
) -> RunSnapshot:
    """Return the snapshot of `session`, which is to end after `num_epochs` epochs."""
    data = session.data
    progress = session.progress
    spec = session.config.job.spec
    whole = data.order.epoch_samples(data.batch)
    left = None
    if whole is not None:
        left = float(max((num_epochs - progress.epoch) * whole - progress.index, 0))
    times = session.profiles.of(session.gpu_type)
    return RunSnapshot(
        done=Done(
            progress=progress.progress,
            samples=float(progress.samples),
            samples_left=left,
            num_epochs=num_epochs,
            epoch_samples=whole,
        ),
        timings=Timings(
            gpu_type=session.gpu_type,
            profile=times.build(),
            typical=times.typical(),
            num_replicas_profiled=times.num_replicas_profiled,
            params=session.profiles.params.get(session.gpu_type),
            step_time_s=step_time_s,
        ),
        limits=data.limits,
        batch=data.batch,
        placement=session.group.placement,
        replicas=_only(session.group.size) if spec is None else spec.replicas,
        grad=session.grad_stats(),
        cautious=data.noise.cautious(),
        trend=data.trend,
        adaptive=session.adaptive,
        tunes=session.chooses_batch,
        metrics={
            **session.figures.metrics,
            **session.figures.stragglers.metrics(),
            **session.figures.trouble(),
            **session.checkpoint_period.metrics(),
        },
    )


def choose_batch(
    at: RunSnapshot, application_times: ApplicationTimes | None = None
) -> BatchConfig | None:
    """Return a better batch than the present one, None where there is none.

    It follows from samples, the measured noise and typical step times; the noise of
    times and when reports are made have as little part in it as can be.

    application_times: step times of other jobs, as the scheduler sent them; those of
    another placement are ignored.
    """
    if not at.tunes or at.grad is None or not len(at.timings.typical):
        return None
    params = fit_throughput(at.timings.typical)
    model: ThroughputModel = step_time
    if application_times is not None and application_times.are_of(
        at.timings.gpu_type, at.placement
    ):
        model = optimistic_step_times(application_times)
    return better_batch(
        at.limits,
        params,
        at.grad,
        at.placement,
        at.batch,
        cautious=at.cautious,
        trend=at.trend,
        model=model,
    )


def fit(at: RunSnapshot) -> Fitted:
    """Fit the step-time model, and make the report."""
    params = at.timings.params
    if len(at.timings.profile):
        params = fit_throughput(at.timings.profile, params)
    report = TrainingReport(
        progress=at.done.progress,
        progress_target=_target(at),
        samples=at.done.samples,
        batch=at.batch,
        by_type={}
        if params is None
        else {at.timings.gpu_type: _type_profile(at, params)},
        grad=at.grad,
        forecast=_forecast(at, params),
        step_time_s=at.timings.step_time_s,
        # A loss that became infinite is logged by the script; a report has finite
        # numbers only.
        metrics={
            name: value for name, value in at.metrics.items() if math.isfinite(value)
        },
    )
    return Fitted(report=report, params=params)


def _type_profile(at: RunSnapshot, params: ThroughputParams) -> TypeProfile:
    return TypeProfile(
        params=params,
        num_replicas_profiled=at.timings.num_replicas_profiled,
        max_atomic=at.limits.max_atomic,
    )


def _target(at: RunSnapshot) -> float | None:
    """Return the progress at the end, if the rest is done at the present efficiency;
    None if not known.
    """
    if at.done.samples_left is None:
        return None
    share = 1.0
    if at.adaptive and at.grad is not None:
        total = float(max(at.batch.total, at.limits.initial))
        share = efficiency(total, float(at.limits.initial), at.grad.sqr, at.grad.var)
    return at.done.progress + share * at.done.samples_left


def _forecast(at: RunSnapshot, params: ThroughputParams | None) -> Forecast | None:
    if params is None or at.done.samples_left is None:
        return None
    # A job on one node does not know how many GPUs nodes have, and is taken to fit on
    # one.
    one_node = at.placement.num_nodes == 1
    most = at.replicas.max
    gpus_per_node = most if one_node else max(at.placement.replicas_per_node)
    limits = at.limits
    if limits.schedule is not None:
        # At the batch in force: the scheduler knows the ramp to come by itself.
        limits = replace(limits, requested=at.batch.total, schedule=None)
    modes: tuple[BatchMode, ...] = ()
    if limits.rule is not None:
        modes = _modes(at, limits.rule, params, gpus_per_node)
        # At the batch in use: it stays until the rule decides otherwise.
        limits = _at_total(limits, at.batch.total)
    return Forecast(
        remaining_steps=at.done.samples_left / limits.requested,
        step_time_s=packed_step_times(params, limits, most, gpus_per_node),
        num_epochs=at.done.num_epochs if modes else 0,
        modes=modes,
    )


def _modes(
    at: RunSnapshot, rule: BatchRule, params: ThroughputParams, gpus_per_node: int
) -> tuple[BatchMode, ...]:
    """Return the batches that `rule` may visit, and an epoch's seconds in each, on the
    requested replicas.

    None are known as long as an epoch's length is not. This is what Shockwave's
    predictor goes by.
    """
    samples = at.done.epoch_samples
    requested = at.replicas.requested
    if not samples or not at.done.num_epochs:
        return ()
    largest = max(min(at.limits.max_total, samples), at.limits.requested)
    totals = sorted({*rule.totals(at.limits.requested, largest), at.batch.total})
    step_s = (
        packed_step_times(
            params, _at_total(at.limits, total), requested, gpus_per_node
        )[-1]
        for total in totals
    )
    return tuple(
        BatchMode(
            total=total, epoch_s=max(seconds * math.ceil(samples / total), EPOCH_MIN_S)
        )
        for total, seconds in zip(totals, step_s, strict=True)
    )


def _at_total(limits: BatchLimits, total: int) -> BatchLimits:
    """Return `limits` with the batch `total`, which stays."""
    return replace(
        limits, requested=total, max_total=max(limits.max_total, total), rule=None
    )


def _only(num_replicas: int) -> ReplicaLimits:
    return ReplicaLimits(max=num_replicas, requested=num_replicas)
