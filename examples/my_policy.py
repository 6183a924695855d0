"""A policy of your own, in one file: max-min fair GPU counts, the least served first.

Try it:   python -m coadapt.policies.checks.contract my_policy:MyPolicy
Use it:   coadapt simulate … --policy my_policy:MyPolicy
"""

import heapq

from coadapt.model import ClusterView, Plan
from coadapt.policies.allocation.capacity import Capacity, span
from coadapt.policies.allocation.pack import pack
from coadapt.policies.allocation.reasons import gets, go_first, waits


class MyPolicy:
    """Each job gets its minimum, the least served first; then GPUs go one by one to the
    job that holds fewest for its weight.

    quantum_gpu_s: attained service is compared in steps of this size, so that equal
    jobs do not take turns in every round, which would cost them a rescale each time.
    """

    def __init__(self, *, quantum_gpu_s: float = 3600.0) -> None:
        if quantum_gpu_s <= 0:
            raise ValueError(f"quantum_gpu_s must be > 0, got {quantum_gpu_s}")
        self._quantum_gpu_s = quantum_gpu_s

    def allocate(self, view: ClusterView) -> Plan:
        capacity = Capacity(view)
        waiting = {}
        order = sorted(
            view.jobs, key=lambda job: view.service_gpu_s(job) // self._quantum_gpu_s
        )
        for job in order:
            fewest = span(job)[0]
            # A frozen job that runs has its GPUs already: Capacity sees to what the law
            # demands.
            if job.id not in capacity.counts and not capacity.give(job, fewest):
                waiting[job.id] = waits(
                    job,
                    fewest,
                    capacity,
                    go_first(len(capacity.counts), "with less service"),
                )
        weights = {job.id: view.tenant(job.spec.tenant).weight for job in order}
        shares = [
            (capacity.counts[job.id] / weights[job.id], rank, job)
            for rank, job in enumerate(order)
            if job.id in capacity.counts
        ]
        heapq.heapify(shares)
        while shares:
            _, rank, job = heapq.heappop(shares)
            if capacity.grow(job):
                heapq.heappush(
                    shares, (capacity.counts[job.id] / weights[job.id], rank, job)
                )
        allocations = pack(view, capacity.counts, capacity.gpu_types)
        running = {
            job.id: gets(job, allocations[job.id])
            for job in view.jobs
            if job.id in allocations
        }
        return Plan(allocations=allocations, reasons=waiting | running)
