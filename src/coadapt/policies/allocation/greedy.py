"""GPUs one at a time to the job that gains most by the next one: the greedy of Optimus
and SLAQ.
"""

from collections.abc import Mapping, Sequence
from heapq import heapify, heappop, heapreplace
from typing import NamedTuple

from coadapt.model import JobId, JobView
from coadapt.policies.allocation.capacity import Capacity


class MarginalGain(NamedTuple):
    """What more replicas are worth to a job: one more than n of them (left_N[n - 1] -
    left_N[n]) * scale.

    left_N: what is left to gain, by the number of replicas, from 1 on; more than it
    tells of are worth nothing.
    """

    left_N: Sequence[float]
    scale: float = 1.0

    def of_next(self, num_replicas: int) -> float:
        """Return what one more than `num_replicas` (≥ 1) is worth."""
        if num_replicas >= len(self.left_N):
            return 0.0
        return (self.left_N[num_replicas - 1] - self.left_N[num_replicas]) * self.scale


def grow_greedily(
    jobs: Sequence[JobView], capacity: Capacity, worth: Mapping[JobId, MarginalGain]
) -> None:
    """Give what is left to `jobs`, which have some, GPU by GPU, while any gains. Ties
    go to the first.
    """
    # Nearly every GPU of every round passes through here: they are dealt on lists, and
    # booked at the end.
    counts = [capacity.counts[job.id] for job in jobs]
    most = [capacity.most(job) for job in jobs]
    types = [capacity.gpu_types[job.id] for job in jobs]
    tenants = [job.spec.tenant for job in jobs]
    worths = [worth[job.id] for job in jobs]
    free = capacity.free()
    quota = {job.spec.tenant: capacity.quota_left(job) for job in jobs}
    gains = enumerate(map(MarginalGain.of_next, worths, counts))
    heap = [(-gain, index) for index, gain in gains if gain > 0.0]
    heapify(heap)
    num_left = sum(free.values())
    while heap and num_left:
        index = heap[0][1]
        count = counts[index]
        gpu_type = types[index]
        tenant = tenants[index]
        if count < most[index] and free[gpu_type] >= 1 and quota[tenant] >= 1:
            num_left -= 1
            free[gpu_type] -= 1
            quota[tenant] -= 1
            counts[index] = count = count + 1
            if (gain := worths[index].of_next(count)) > 0.0:
                heapreplace(heap, (-gain, index))
                continue
        heappop(heap)
    for job, count in zip(jobs, counts, strict=True):
        if by := count - capacity.counts[job.id]:
            capacity.grow(job, by)
