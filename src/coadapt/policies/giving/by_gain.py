"""GPUs one at a time to whoever gains most by the next one: the greedy of Optimus and SLAQ."""

from collections.abc import Callable, Mapping, Sequence
from heapq import heapify, heappop, heapreplace

from coadapt.model import JobId, JobView
from coadapt.policies.giving.capacity import Capacity


def grow_by_gain(
    jobs: Sequence[JobView], capacity: Capacity, gains: Mapping[JobId, Callable[[int], float]]
) -> None:
    """Give what is left to `jobs`, which have some, GPU by GPU, while somebody gains. Ties go to the first.

    gains: what one more than so many replicas is worth to each of them; 0: nothing.
    """
    # Nearly every GPU of every round passes through here: they are dealt on lists, and booked at the end.
    counts, most = [capacity.counts[job.id] for job in jobs], [capacity.most(job) for job in jobs]
    types, tenants = [capacity.gpu_types[job.id] for job in jobs], [job.spec.tenant for job in jobs]
    free, quota = capacity.free(), {job.spec.tenant: capacity.quota_left(job) for job in jobs}
    gain_of = [gains[job.id] for job in jobs]
    heap = [(-gain, index) for index, gain_at in enumerate(gain_of) if (gain := gain_at(counts[index])) > 0.0]
    heapify(heap)
    while heap:
        index = heap[0][1]
        if counts[index] < most[index] and free[types[index]] >= 1 and quota[tenants[index]] >= 1:
            counts[index] += 1
            free[types[index]] -= 1
            quota[tenants[index]] -= 1
            if (gain := gain_of[index](counts[index])) > 0.0:
                heapreplace(heap, (-gain, index))
                continue
        heappop(heap)
    for job, count in zip(jobs, counts, strict=True):
        if by := count - capacity.counts[job.id]:
            capacity.grow(job, by)
