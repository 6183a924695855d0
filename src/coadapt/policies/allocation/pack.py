"""Placing: from replica counts to allocations. O(n log n) in jobs and nodes; it decides
no counts.
"""

import heapq
from collections.abc import Mapping, Sequence
from enum import Enum

from coadapt.model import (
    Allocation,
    ClusterView,
    JobId,
    JobView,
    NodeId,
    RescaleContract,
)
from coadapt.model.view import CurrentAllocations
from coadapt.policies.allocation.capacity import Capacity, FreeNodes, gpu_type_held


class Pick(Enum):
    """Which nodes a newly placed job takes its GPUs from."""

    EMPTIEST = "emptiest"  # those with most free GPUs
    # as few as possible: the fullest one that has room for all, else the emptiest and
    # on
    FEWEST = "fewest"
    FRAGMENTS = (
        "fragments"  # those with fewest free GPUs, so that whole nodes stay free
    )


def pack(
    view: ClusterView,
    counts: Mapping[JobId, int],
    gpu_types: Mapping[JobId, str] | None = None,
    *,
    order: Sequence[JobId] | None = None,
    picks: Mapping[JobId, Pick] | None = None,
) -> dict[JobId, Allocation]:
    """Return an allocation of `counts[job]` replicas on one GPU type for each job that
    has a count > 0.

    The rule of Pollux's simulator for policies that decide counts only (OSDI'21
    artifact): a job whose count stays keeps its allocation; the others, one after the
    other, take as many GPUs as they can from the node with most free ones (the first by
    node order on ties), and again. Slots are in the order of picking. Where there are
    several racks a job stays in one, that with most free GPUs, if any has enough for
    it.

    gpu_types: the type per job (from `Capacity`); where it is missing, the type that
    has most free GPUs.
    order: all jobs with a count, first served first; by default in increasing count,
    then view order.
    picks: jobs that pick their nodes in another way than from the emptiest.
    Raises ValueError where the counts do not fit the cluster, name an unknown job, or
    would move a frozen one: `Capacity` gives only counts that fit.
    """
    types = gpu_types or {}
    wanted = [job for job in view.jobs if job.id in counts]
    if len(wanted) < len(counts):
        unknown = sorted(set(counts) - {job.id for job in wanted})
        raise ValueError(f"counts name jobs that are not in the view: {unknown}")
    if 0 in counts.values():
        wanted = [job for job in wanted if counts[job.id] > 0]
    kept, free = _keep(view, wanted, counts, types)
    movers = [job for job in wanted if job.id not in kept]
    if not movers:  # most rounds: the nodes need not be looked through
        return {job.id: kept[job.id] for job in wanted}
    if order is None:
        movers.sort(key=lambda job: counts[job.id])
    else:
        rank = {job_id: index for index, job_id in enumerate(order)}
        movers.sort(key=lambda job: rank[job.id])
    heaps = _NodeHeaps(view, free.gpus)
    placed = {
        job.id: heaps.place(
            job,
            counts[job.id],
            types.get(job.id),
            (picks or {}).get(job.id, Pick.EMPTIEST),
        )
        for job in movers
    }
    given = {**kept, **placed}
    return {job.id: given[job.id] for job in wanted}


def pack_beside(
    view: ClusterView,
    held: CurrentAllocations,
    movers: Sequence[JobView],
    capacity: Capacity,
    picks: Mapping[JobId, Pick] | None = None,
) -> dict[JobId, Allocation]:
    """Return an allocation for each of `movers`, in this order, as `pack` would while
    all others stay.
    """
    if not movers:
        return {}
    heaps = _NodeHeaps(view, held.free.whole)
    counts = capacity.counts
    types = capacity.gpu_types
    return {
        job.id: heaps.place(
            job,
            counts[job.id],
            types.get(job.id),
            (picks or {}).get(job.id, Pick.EMPTIEST),
        )
        for job in movers
    }


def _keep(
    view: ClusterView,
    wanted: list[JobView],
    counts: Mapping[JobId, int],
    types: Mapping[JobId, str],
) -> tuple[dict[JobId, Allocation], FreeNodes]:
    """Return the allocations that stay, frozen jobs' first, and the GPUs that they
    leave free.
    """
    nodes = view.inventory.by_id
    free = FreeNodes(view.nodes)
    kept: dict[JobId, Allocation] = {}
    frozen = RescaleContract.FROZEN
    holding = [job for job in wanted if job.grant.allocation.slots]
    first = [job for job in holding if job.spec.contract is frozen]
    if first:
        holding = first + [job for job in holding if job.spec.contract is not frozen]
    for job in holding:
        job_id = job.id
        allocation = job.grant.allocation
        held = None
        if allocation.num_replicas == counts[job_id]:
            held = gpu_type_held(job, nodes)
        allowed = job.spec.replicas.gpu_types
        same = (
            held is not None
            and held == types.get(job_id, held)
            and (not allowed or held in allowed)
        )
        if same and free.take(allocation):
            kept[job_id] = allocation
        elif job.spec.contract is frozen:
            raise ValueError(
                f"job {job_id!r} is frozen: it cannot keep {allocation.slots}"
            )
    return kept, free


class _NodeHeaps:
    """Nodes of each GPU type and rack, the one with most free GPUs on top."""

    def __init__(self, view: ClusterView, free: Mapping[NodeId, int]) -> None:
        self._view = view
        self._heaps: dict[str, dict[str, list[tuple[int, int]]]] = {}
        self._num_free: dict[str, dict[str, int]] = {}
        for gpu_type, racks in view.inventory.groups.items():
            heaps = self._heaps.setdefault(gpu_type, {})
            num_free = self._num_free.setdefault(gpu_type, {})
            for rack, nodes in racks.items():
                heap = heaps[rack] = [(-free[node], index) for index, node in nodes]
                heapq.heapify(heap)
                num_free[rack] = -sum([gpus for gpus, _ in heap])

    def place(
        self, job: JobView, count: int, gpu_type: str | None, pick: Pick
    ) -> Allocation:
        if gpu_type is None:
            allowed = [
                name for name in self._num_free if job.spec.replicas.allows_type(name)
            ]
            gpu_type = max(
                allowed, key=lambda name: sum(self._num_free[name].values()), default=""
            )
        racks = self._num_free.get(gpu_type, {})
        if sum(racks.values()) < count:
            free = {name: sum(each.values()) for name, each in self._num_free.items()}
            raise ValueError(
                f"job {job.id!r}: {count} replicas do not fit the free GPUs {free}"
            )
        slots: list[tuple[NodeId, int]] = []
        while count:
            # The rack with most free GPUs, the first on ties: if any has enough, that
            # one has.
            rack = max(racks, key=racks.__getitem__)
            taken = min(count, racks[rack])
            racks[rack] -= taken
            count -= taken
            slots += self._pick(self._heaps[gpu_type][rack], taken, pick)
        return Allocation(slots=tuple(slots))

    def _pick(
        self, heap: list[tuple[int, int]], count: int, pick: Pick
    ) -> list[tuple[NodeId, int]]:
        slots = []
        while count:
            place = 0 if pick is Pick.EMPTIEST else _chosen(heap, count, pick)
            free = -heap[place][0]
            index = heap[place][1]
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
    rooms = [
        place
        for place, (free, _) in enumerate(heap)
        if -free >= (count if pick is Pick.FEWEST else 1)
    ]
    return (
        min(rooms, key=lambda place: (-heap[place][0], heap[place][1])) if rooms else 0
    )
