"""Progressive filling: the next GPU to the job that has least, and the shares that
result.
"""

import heapq
from collections.abc import Callable, Mapping, Sequence

from coadapt.model import ClusterView, JobId, JobView, TenantId, gpus_by_type
from coadapt.policies.allocation.capacity import Capacity, span, useful_span


def fill(
    jobs: Sequence[JobView],
    capacity: Capacity,
    of_tenant: Callable[[TenantId], float],
    of_job: Callable[[JobView], float],
    *,
    skip: bool = True,
) -> None:
    """Give GPUs one at a time, a job's fewest at once, until none fit.

    Each GPU goes to the tenant with the smallest `of_tenant`, and there to the job with
    the smallest `of_job`. Ties of both go to the first of `jobs`. `of_tenant` is called
    again after its tenant got a GPU, and `of_job` after its job got one. Their values
    may change only then, and must not fall. No job gets more GPUs than it can use.
    Without `skip`, filling ends with the first job that cannot grow.
    """
    queues: dict[TenantId, list[tuple[float, int]]] = {}
    for index, job in enumerate(jobs):
        queues.setdefault(job.spec.tenant, []).append((of_job(job), index))
    for queue in queues.values():
        heapq.heapify(queue)
    heap = [(of_tenant(tenant), *queue[0], tenant) for tenant, queue in queues.items()]
    heapq.heapify(heap)
    while heap:
        _, _, index, tenant = heap[0]
        queue = queues[tenant]
        job = jobs[index]
        if _more(job, capacity):
            heapq.heapreplace(queue, (of_job(job), index))
        elif not skip and capacity.counts.get(job.id, 0) < useful_span(job)[1]:
            return
        else:
            heapq.heappop(queue)
        if queue:
            heapq.heapreplace(heap, (of_tenant(tenant), *queue[0], tenant))
        else:
            heapq.heappop(heap)


def _more(job: JobView, capacity: Capacity) -> bool:
    count = capacity.counts.get(job.id)
    if count is None:
        return capacity.give(job, span(job)[0])
    return count < useful_span(job)[1] and capacity.grow(job)


def fair_shares(view: ClusterView) -> dict[JobId, float]:
    """Return the GPUs that each job would hold if they could be divided: max-min, by
    tenant and then by job.

    Tenants share by their weights, up to their quota and to what their jobs can use; a
    tenant's jobs equally.
    A job can use no more than the GPUs of the largest type that it allows.
    """
    pools = gpus_by_type(view.nodes)
    of_tenant: dict[str, list[JobView]] = {}
    demand: dict[JobId, float] = {}
    for job in view.jobs:
        of_tenant.setdefault(job.spec.tenant, []).append(job)
        largest = max(
            (n for name, n in pools.items() if job.spec.replicas.allows_type(name)),
            default=0,
        )
        demand[job.id] = min(useful_span(job)[1], largest)
    tenants = [view.tenant(name) for name in of_tenant]
    wanted: dict[str, float] = {}
    for tenant in tenants:
        total = sum(demand[job.id] for job in of_tenant[tenant.id])
        wanted[tenant.id] = (
            total if tenant.quota_gpus is None else min(total, tenant.quota_gpus)
        )
    weights = {tenant.id: tenant.weight for tenant in tenants}
    shares: dict[JobId, float] = {}
    for name, gpus in water_fill(view.num_gpus, wanted, weights).items():
        shares |= water_fill(
            gpus, {job.id: demand[job.id] for job in of_tenant[name]}, {}
        )
    return shares


def water_fill(
    total: float, demand: Mapping[str, float], weights: Mapping[str, float]
) -> dict[str, float]:
    """Return min(demand, weight * L) for the level L at which `total` is used up, or
    all have what they want.

    A name without a weight has 1. O(n log n).
    """
    left = total
    weight_left = sum(weights.get(name, 1.0) for name in demand)
    shares: dict[str, float] = {}
    for name in sorted(demand, key=lambda name: demand[name] / weights.get(name, 1.0)):
        weight = weights.get(name, 1.0)
        shares[name] = min(demand[name], max(left, 0.0) * weight / weight_left)
        left -= shares[name]
        weight_left -= weight
    return shares
