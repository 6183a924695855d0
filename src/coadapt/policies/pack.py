"""Placing: from replica counts to allocations. O(n log n) in jobs and nodes; it decides no counts."""

import heapq
from collections.abc import Mapping, Sequence

from coadapt.model import Allocation, ClusterView, JobId, JobView, RescaleContract
from coadapt.policies.room import FreeNodes, gpu_type_held


def pack(
    view: ClusterView,
    counts: Mapping[JobId, int],
    gpu_types: Mapping[JobId, str] | None = None,
    *,
    order: Sequence[JobId] | None = None,
) -> dict[JobId, Allocation]:
    """Return an allocation of `counts[job]` replicas on one GPU type for each job that has a count > 0.

    The rule of Pollux's simulator for policies that decide counts only (OSDI'21 artifact): a job whose count
    stays keeps its allocation; the others, one after the other, take as many GPUs as they can from the node
    with most free ones (the first by node order on ties), and again. Slots are in the order of picking.

    gpu_types: the type per job (from `Room`); where it is missing, the type that has most free GPUs.
    order: all jobs with a count, first served first; by default in increasing count, then view order.
    Raises ValueError where the counts do not fit the cluster, name an unknown job, or would move a frozen
    one: `Room` gives only counts that fit.
    """
    types = gpu_types or {}
    unknown = sorted(set(counts) - {job.id for job in view.jobs})
    if unknown:
        raise ValueError(f"counts name jobs that are not in the view: {unknown}")
    wanted = [job for job in view.jobs if counts.get(job.id, 0) > 0]
    kept, free = _keep(view, wanted, counts, types)
    movers = [job for job in wanted if job.id not in kept]
    if order is None:
        movers.sort(key=lambda job: counts[job.id])
    else:
        rank = {job_id: index for index, job_id in enumerate(order)}
        movers.sort(key=lambda job: rank[job.id])
    heaps = _NodeHeaps(view, free)
    placed = {job.id: heaps.place(job, counts[job.id], types.get(job.id)) for job in movers}
    return {job.id: kept.get(job.id) or placed[job.id] for job in wanted}


def _keep(
    view: ClusterView, wanted: list[JobView], counts: Mapping[JobId, int], types: Mapping[JobId, str]
) -> tuple[dict[JobId, Allocation], FreeNodes]:
    """Return the allocations that stay, frozen jobs' first, and the GPUs that they leave free."""
    nodes = {node.id: node for node in view.nodes}
    free = FreeNodes(nodes)
    kept: dict[JobId, Allocation] = {}
    for frozen in (True, False):
        for job in wanted:
            if frozen is not (job.spec.contract is RescaleContract.FROZEN) or not job.allocation:
                continue
            held = gpu_type_held(job, nodes)
            same = job.allocation.num_replicas == counts[job.id] and held == types.get(job.id, held)
            if same and held is not None and free.take(job.allocation):
                kept[job.id] = job.allocation
            elif frozen:
                raise ValueError(f"job {job.id!r} is frozen: it cannot keep {job.allocation.slots}")
    return kept, free


class _NodeHeaps:
    """Nodes of each GPU type, the one with most free GPUs on top."""

    def __init__(self, view: ClusterView, free: FreeNodes) -> None:
        self._view = view
        self._heaps: dict[str, list[tuple[int, int]]] = {}
        self._num_free: dict[str, int] = {}
        for index, node in enumerate(view.nodes):
            gpus = free.gpus[node.id]
            self._num_free[node.gpu_type] = self._num_free.get(node.gpu_type, 0) + gpus
            self._heaps.setdefault(node.gpu_type, []).append((-gpus, index))
        for heap in self._heaps.values():
            heapq.heapify(heap)

    def place(self, job: JobView, count: int, gpu_type: str | None) -> Allocation:
        if gpu_type is None:
            gpu_type = max(self._num_free, key=self._num_free.__getitem__, default="")
        if self._num_free.get(gpu_type, 0) < count:
            raise ValueError(f"job {job.id!r}: {count} replicas do not fit the free GPUs {self._num_free}")
        self._num_free[gpu_type] -= count
        heap = self._heaps[gpu_type]
        slots = []
        while count:
            free, index = -heap[0][0], heap[0][1]
            taken = min(free, count)
            count -= taken
            slots.append((self._view.nodes[index].id, taken))
            if free > taken:
                heapq.heapreplace(heap, (taken - free, index))
            else:
                heapq.heappop(heap)
        return Allocation(slots=tuple(slots))
