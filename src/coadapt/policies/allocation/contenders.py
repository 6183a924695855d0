"""Contenders: the jobs that a queue has to order. None need it if all jobs fit."""

from collections.abc import Sequence

from coadapt.model import ClusterView, JobView, RescaleContract
from coadapt.model.view import current_allocations


def contenders(view: ClusterView) -> Sequence[JobView]:
    """Return the jobs that a queue has to put in order: all, or those that wait if
    there is room for all.

    There is if each job that holds GPUs holds what it requested, and each waiting job
    fits beside. Where GPUs are of several types or shared, or tenants have quotas, all
    are returned: that takes more than a sum.
    """
    held = current_allocations(view)
    pools = view.inventory.by_type
    if len(pools) != 1 or held.unlike_requested or held.free.parts or view.quotas():
        return view.jobs
    waiting = [
        job for job_id, job in held.jobs.items() if job_id not in held.allocations
    ]
    for job in waiting:
        limits = job.spec.replicas
        if job.spec.contract is RescaleContract.FROZEN or not all(
            map(limits.allows_type, pools)
        ):
            return view.jobs
    free = held.free.whole.values()
    needed = sum(job.spec.replicas.requested for job in waiting)
    return waiting if min(free) >= 0 and needed <= sum(free) else view.jobs
