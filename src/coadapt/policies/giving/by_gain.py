"""GPUs one at a time to whoever gains most by the next one: the greedy of Optimus and SLAQ."""

import heapq
from collections.abc import Callable, Mapping, Sequence

from coadapt.model import JobId, JobView
from coadapt.policies.giving.capacity import Capacity


def grow_by_gain(
    jobs: Sequence[JobView], capacity: Capacity, gains: Mapping[JobId, Callable[[int], float]]
) -> None:
    """Give what is left to `jobs`, which have some, GPU by GPU, while somebody gains. Ties go to the first.

    gains: what one more than so many replicas is worth to each of them; 0: nothing.
    """
    counts = capacity.counts
    first = ((-gains[job.id](counts[job.id]), index) for index, job in enumerate(jobs))
    heap = [entry for entry in first if entry[0] < 0.0]
    heapq.heapify(heap)
    while heap:
        index = heap[0][1]
        job = jobs[index]
        gain = gains[job.id](counts[job.id]) if capacity.grow(job) else 0.0
        if gain > 0.0:
            heapq.heapreplace(heap, (-gain, index))
        else:
            heapq.heappop(heap)
