"""Placing: from replica counts to allocations. O(n log n) in jobs and nodes; it decides no counts."""

import heapq
from collections.abc import Mapping, Sequence
from enum import Enum

from coadapt.model import Allocation, ClusterView, JobId, JobView, NodeId, RescaleContract
from coadapt.policies.giving.capacity import FreeNodes, gpu_type_held


class Pick(Enum):
    """Which nodes a job that is placed anew takes its GPUs from."""

    EMPTIEST = "emptiest"  # those with most free GPUs
    FEWEST = "fewest"  # as few as possible: the fullest one that has room for all, else the emptiest and on
    FRAGMENTS = "fragments"  # those with fewest free GPUs, so that whole nodes stay free


def pack(
    view: ClusterView,
    counts: Mapping[JobId, int],
    gpu_types: Mapping[JobId, str] | None = None,
    *,
    order: Sequence[JobId] | None = None,
    picks: Mapping[JobId, Pick] | None = None,
) -> dict[JobId, Allocation]:
    """Return an allocation of `counts[job]` replicas on one GPU type for each job that has a count > 0.

    The rule of Pollux's simulator for policies that decide counts only (OSDI'21 artifact): a job whose count
    stays keeps its allocation; the others, one after the other, take as many GPUs as they can from the node
    with most free ones (the first by node order on ties), and again. Slots are in the order of picking. Where
    there are several racks a job stays in one, that with most free GPUs, if any has enough for it.

    gpu_types: the type per job (from `Capacity`); where it is missing, the type that has most free GPUs.
    order: all jobs with a count, first served first; by default in increasing count, then view order.
    picks: jobs that pick their nodes in another way than from the emptiest.
    Raises ValueError where the counts do not fit the cluster, name an unknown job, or would move a frozen
    one: `Capacity` gives only counts that fit.
    """
    types = gpu_types or {}
    unknown = sorted(set(counts) - {job.id for job in view.jobs})
    if unknown:
        raise ValueError(f"counts name jobs that are not in the view: {unknown}")
    wanted = [job for job in view.jobs if counts.get(job.id, 0) > 0]
    kept, free = _keep(view, wanted, counts, types)
    movers = [job for job in wanted if job.id not in kept]
    if not movers:  # most rounds: the nodes need not be looked through
        return {job.id: kept[job.id] for job in wanted}
    if order is None:
        movers.sort(key=lambda job: counts[job.id])
    else:
        rank = {job_id: index for index, job_id in enumerate(order)}
        movers.sort(key=lambda job: rank[job.id])
    heaps = _NodeHeaps(view, free)
    placed = {
        job.id: heaps.place(job, counts[job.id], types.get(job.id), (picks or {}).get(job.id, Pick.EMPTIEST))
        for job in movers
    }
    return {job.id: kept.get(job.id) or placed[job.id] for job in wanted}


def _keep(
    view: ClusterView, wanted: list[JobView], counts: Mapping[JobId, int], types: Mapping[JobId, str]
) -> tuple[dict[JobId, Allocation], FreeNodes]:
    """Return the allocations that stay, frozen jobs' first, and the GPUs that they leave free."""
    nodes = {node.id: node for node in view.nodes}
    free = FreeNodes(nodes)
    kept: dict[JobId, Allocation] = {}
    holding = [job for job in wanted if job.allocation]
    # Stable: the others stay in the order of the view.
    for job in sorted(holding, key=lambda job: job.spec.contract is not RescaleContract.FROZEN):
        allocation, held = job.allocation, None
        if allocation.num_replicas == counts[job.id]:
            held = gpu_type_held(job, nodes)
        same = held is not None and held == types.get(job.id, held) and job.spec.replicas.allows_type(held)
        if same and free.take(allocation):
            kept[job.id] = allocation
        elif job.spec.contract is RescaleContract.FROZEN:
            raise ValueError(f"job {job.id!r} is frozen: it cannot keep {allocation.slots}")
    return kept, free


class _NodeHeaps:
    """Nodes of each GPU type and rack, the one with most free GPUs on top."""

    def __init__(self, view: ClusterView, free: FreeNodes) -> None:
        self._view = view
        self._heaps: dict[str, dict[str, list[tuple[int, int]]]] = {}
        self._num_free: dict[str, dict[str, int]] = {}
        for index, node in enumerate(view.nodes):
            gpus, racks = free.gpus[node.id], self._num_free.setdefault(node.gpu_type, {})
            racks[node.rack] = racks.get(node.rack, 0) + gpus
            heaps = self._heaps.setdefault(node.gpu_type, {})
            heaps.setdefault(node.rack, []).append((-gpus, index))
        for heaps in self._heaps.values():
            for heap in heaps.values():
                heapq.heapify(heap)

    def place(self, job: JobView, count: int, gpu_type: str | None, pick: Pick) -> Allocation:
        if gpu_type is None:
            allowed = [name for name in self._num_free if job.spec.replicas.allows_type(name)]
            gpu_type = max(allowed, key=lambda name: sum(self._num_free[name].values()), default="")
        racks = self._num_free.get(gpu_type, {})
        if sum(racks.values()) < count:
            free = {name: sum(each.values()) for name, each in self._num_free.items()}
            raise ValueError(f"job {job.id!r}: {count} replicas do not fit the free GPUs {free}")
        slots: list[tuple[NodeId, int]] = []
        while count:
            # The rack with most free GPUs, the first on ties: if any has enough, that one has.
            rack = max(racks, key=racks.__getitem__)
            taken = min(count, racks[rack])
            racks[rack] -= taken
            count -= taken
            slots += self._pick(self._heaps[gpu_type][rack], taken, pick)
        return Allocation(slots=tuple(slots))

    def _pick(self, heap: list[tuple[int, int]], count: int, pick: Pick) -> list[tuple[NodeId, int]]:
        slots = []
        while count:
            place = 0 if pick is Pick.EMPTIEST else _chosen(heap, count, pick)
            free, index = -heap[place][0], heap[place][1]
            taken = min(free, count)
            count -= taken
            slots.append((self._view.nodes[index].id, taken))
            if not place and free > taken:
                heapq.heapreplace(heap, (taken - free, index))
            elif not place:
                heapq.heappop(heap)
            else:
                heap[place] = (taken - free, index)
                heapq.heapify(heap)
        return slots


def _chosen(heap: list[tuple[int, int]], count: int, pick: Pick) -> int:
    """Return the place in `heap` of the node that FEWEST or FRAGMENTS takes next."""
    rooms = [place for place, (free, _) in enumerate(heap) if -free >= (count if pick is Pick.FEWEST else 1)]
    return min(rooms, key=lambda place: (-heap[place][0], heap[place][1])) if rooms else 0
