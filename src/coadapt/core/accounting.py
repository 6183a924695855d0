"""Accounting of one job: the only functions that change what a job holds, and the view
of the job for the policy.

Functions on a JobRecord, called by Scheduler.handle only.
"""

from dataclasses import replace

from coadapt.core.lifecycle import HOLDING, JobState
from coadapt.core.state import JobRecord, Order, Running, Status
from coadapt.model import NO_GRANT, Holding, JobSpec, JobView, ReplicaLimits, holding
from coadapt.model.devices import NOTHING


def held(job: JobRecord) -> Holding:
    """Return the GPUs that the job holds. While an order is open, these are the GPUs of
    both its old and its new allocation.
    """
    if job.state not in HOLDING:
        return NOTHING
    same = job.trains_on == job.ordered
    return holding(job.ordered) if same else holding(job.trains_on, job.ordered)


def num_gpus_held(job: JobRecord) -> float:
    """Return the number of GPUs in `held(job)`."""
    if job.status.state not in HOLDING:
        return 0.0
    ordered = job.order.grant.allocation
    trains_on = job.running.grant.allocation
    return (
        ordered.num_gpus
        if trains_on is ordered or trains_on == ordered
        else held(job).num_gpus
    )


def hold(
    job: JobRecord,
    at: float,
    *,
    status: Status | None = None,
    order: Order | None = None,
    running: Running | None = None,
) -> None:
    """Change the job's status, order or replicas at instant `at` (s).

    The GPU time of what it held until then is added to its usage.
    """
    job.usage = job.usage.upto(at, num_gpus_held(job))
    job.status = status or job.status
    job.order = order or job.order
    job.running = running or job.running


def may_train(job: JobRecord, generation: int) -> bool:
    """Return whether `generation` is the last known to train, or the one ordered."""
    return generation in (job.running.generation, job.order.generation)


def job_view(
    job: JobRecord, rescale_default_s: float, known: JobView | None = None
) -> JobView:
    """Return the job as policies see it. A job that is being stopped holds nothing
    there.

    known: an earlier view of the job. It is returned if nothing has changed.
    """
    grant = NO_GRANT if job.status.state is JobState.STOPPING else job.order.grant
    same = (
        known is not None
        and job.measured is known.measured
        and job.usage is known.usage
    )
    spec = _spec_within(job)
    if known is not None and (spec is known.spec or spec == known.spec):
        spec = known.spec  # policies compare specs by identity
        if same and grant is known.grant:
            return known
    mean_s = job.usage.costs.mean_s
    return JobView(
        id=job.id,
        spec=spec,
        submitted_at=job.submitted_at,
        grant=grant,
        measured=job.measured,
        usage=job.usage,
        rescale_s=rescale_default_s if mean_s is None else mean_s,
        num_gpus_held=num_gpus_held(job),
    )


def _spec_within(job: JobRecord) -> JobSpec:
    """Return the job's spec with the most replicas that it may have now (growth.py)."""
    limit = job.growth.limit
    user = job.spec.replicas
    if limit is None or limit >= user.max:
        return job.spec
    most = max(limit, user.min)
    lower = ReplicaLimits(
        min=user.min,
        max=most,
        requested=min(user.requested, most),
        gpu_types=user.gpu_types,
    )
    return replace(job.spec, replicas=lower)
