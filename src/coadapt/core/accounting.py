"""The books of one job: attained service, rescale time, what it reported, and its view for the policy.

Functions on a JobRecord, called by Scheduler.handle only.
"""

from collections.abc import Mapping

from coadapt.core.lifecycle import HOLDING, JobState
from coadapt.core.state import JobRecord
from coadapt.model import WAITING, BatchConfig, JobView, NodeId, TrainingReport

# A job that adapts at every report for a week stays below this; older changes are dropped first.
BATCH_HISTORY_MAX = 20_000


def held_gpus(job: JobRecord) -> dict[NodeId, float]:
    """Return GPUs per node that the job holds: while an order is unanswered, the larger of old and new."""
    held: dict[NodeId, float] = {}
    if job.state in HOLDING:
        for allocation in (job.allocation, job.ordered):
            for node, count in allocation.slots:
                held[node] = max(held.get(node, 0.0), count * allocation.gpu_share)
    return held


def accrue(job: JobRecord, at: float) -> None:
    """Book the GPU-seconds held since the last booking, starting and stopping included."""
    if job.state in HOLDING and at > job.accounted_at:
        if job.allocation == job.ordered:
            gpus = job.ordered.num_replicas * job.ordered.gpu_share
        else:
            gpus = sum(held_gpus(job).values())
        job.attained_service_gpu_s += gpus * (at - job.accounted_at)
    job.accounted_at = at


def may_train(job: JobRecord, generation: int) -> bool:
    """Return whether `generation` is the one that trains, as far as is known, or was ordered to."""
    return generation in (job.trained, job.generation)


def note_change(job: JobRecord, at: float) -> None:
    """Book that the last order has come about."""
    job.num_replicas_before = job.allocation.num_replicas
    job.allocation, job.allocation_batch = job.ordered, job.ordered_batch
    job.trained = job.generation
    if job.ordered_batch is not None:
        note_batch(job, job.ordered_batch, at)


def note_rescale(job: JobRecord, generation: int, rescale_s: float, pause: Mapping[str, float]) -> None:
    """Book one measured rescale; a second word about the same generation changes nothing."""
    if generation > job.rescaled_generation:
        job.rescaled_generation = generation
        job.rescale_total_s += rescale_s
        job.num_rescales_measured += 1
        if pause:
            job.num_in_place += 1
            job.pause = pause


def note_batch(job: JobRecord, batch: BatchConfig, at: float) -> None:
    """Remember the batch in use, and the instant if the total changed."""
    if not job.batch_history or job.batch_history[-1][1] != batch.total:
        job.batch_history = (*job.batch_history[-(BATCH_HISTORY_MAX - 1) :], (at, batch.total))
    job.batch = batch


def note_report(job: JobRecord, report: TrainingReport, at: float) -> None:
    """Take over what a report says; what it leaves open stays as it was. Progress never goes back."""
    job.progress = max(job.progress, report.progress)
    job.samples = max(job.samples, report.samples)
    job.num_replicas_profiled = max(job.num_replicas_profiled, report.num_replicas_profiled)
    if report.progress_target is not None:
        job.progress_target = report.progress_target
    if report.throughput:
        job.throughput = {**job.throughput, **report.throughput}
    if report.grad is not None:
        job.grad = report.grad
    if report.forecast is not None:
        job.forecast = report.forecast
    if report.step_time_s is not None:
        job.step_time_s = report.step_time_s
    if report.metrics:
        job.metrics = {**job.metrics, **report.metrics}
    if report.batch is not None:
        note_batch(job, report.batch, at)


def job_view(job: JobRecord, rescale_default_s: float) -> JobView:
    """Return what a policy may see of the job. One that is on its way out holds nothing in its eyes."""
    measured = job.num_rescales_measured
    return JobView(
        id=job.id,
        spec=job.spec,
        submitted_at=job.submitted_at,
        allocation=WAITING if job.state in (JobState.PENDING, JobState.STOPPING) else job.ordered,
        batch=job.batch,
        started_at=job.started_at,
        attained_service_gpu_s=job.attained_service_gpu_s,
        num_rescales=job.num_rescales,
        rescale_s=job.rescale_total_s / measured if measured else rescale_default_s,
        progress=job.progress,
        progress_target=job.progress_target,
        throughput=job.throughput,
        grad=job.grad,
        num_replicas_profiled=job.num_replicas_profiled,
        forecast=job.forecast,
        batch_history=job.batch_history,
    )
