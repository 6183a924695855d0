"""Placing: from numbers of GPUs to nodes of one GPU type. Jobs that keep their size
stay.
"""

# The knapsack knows how many GPUs there are, not where. Here each size finds its nodes:
#
#   1. a job that keeps what it has stays where it is;
#   2. the others come, the largest first: on as few nodes as can be, best fit for what
#      is no whole node, in one rack where one has room;
#   3. where that fails, small jobs make way, if all of them fit on one node elsewhere;
#   4. where that fails too, the job takes the fastest of: a smaller size that fits one
#      node, and pieces;
#   5. a job on more nodes than it needs moves if a better place is free in the end.
#
# A job of 4 GPUs that starts on two nodes stays there for life, since moving costs:
# without 3 and 5 the mean completion time is 2.5 % higher.

import math
from collections.abc import Callable, Container, Iterable, Mapping, Sequence

from coadapt.model import Allocation, JobId, JobView, NodeId
from coadapt.policies.castor.topology import GpuType

Goodput = Callable[[JobId, int, bool], float]
"""Of a job on so many replicas, on as few nodes as can be or (True) on more."""


class Floor:
    """The free GPUs of the nodes of one type, and the jobs that are placed on them."""

    def __init__(self, gpu_type: GpuType) -> None:
        self.node_gpus = gpu_type.node_gpus
        self.free = {
            node.id: node.num_gpus - gpu_type.taken.get(node.id, 0)
            for node in gpu_type.nodes
        }
        self.held: dict[JobId, Allocation] = {}
        racks: dict[str, list[NodeId]] = {}
        for node in gpu_type.nodes:
            racks.setdefault(node.rack, []).append(node.id)
        self._groups = [racks[rack] for rack in sorted(racks)]
        if len(self._groups) > 1:
            self._groups.append(list(self.free))

    def put(self, job: JobId, allocation: Allocation) -> None:
        """Put `job` there if it fits."""
        if all(self.free.get(node, 0) >= count for node, count in allocation.slots):
            for node, count in allocation.slots:
                self.free[node] -= count
            self.held[job] = allocation

    def lift(self, job: JobId) -> Allocation:
        """Take `job` away again; return what it had."""
        allocation = self.held.pop(job)
        for node, count in allocation.slots:
            self.free[node] += count
        return allocation

    def need(self, count: int) -> int:
        """Return on how few nodes `count` replicas fit."""
        return -(-count // self.node_gpus)

    def pieces(self, count: int) -> list[int]:
        """Return how many of `count` replicas go on each of their fewest nodes."""
        whole, rest = divmod(count, self.node_gpus)
        return [self.node_gpus] * whole + [rest] * (rest > 0)

    def find(self, count: int) -> Allocation | None:
        """Return the best free place for `count` replicas; None if there are not enough
        GPUs.
        """
        found: list[Allocation] = []
        for nodes in self._groups:
            allocation = self._best_fit(count, nodes)
            if allocation is not None:
                if allocation.num_nodes <= self.need(count):
                    return allocation
                found.append(allocation)
        return min(found, key=lambda each: each.num_nodes, default=None)

    def _best_fit(self, count: int, nodes: Iterable[NodeId]) -> Allocation | None:
        """Return the fullest nodes whole, then the node that leaves least; of some
        nodes.
        """
        some = [(self.free[node], node) for node in nodes if self.free[node]]
        if sum(free for free, _ in some) < count:
            return None
        some.sort(key=lambda each: -each[0])  # stable: in the view's order where alike
        slots = []
        left = count
        while left > some[0][0]:
            free, node = some.pop(0)
            slots.append((node, free))
            left -= free
        fits = [each for each in some if each[0] >= left]
        _, node = min(fits, key=lambda each: each[0])
        return Allocation(slots=(*slots, (node, left)))

    def apart(self) -> list[JobId]:
        """Return the jobs that are on more nodes than they need."""
        return [
            job
            for job, each in self.held.items()
            if each.num_nodes > self.need(each.num_replicas)
        ]

    def small(self) -> Mapping[NodeId, Mapping[JobId, int]]:
        """Return the jobs that are on one node alone, and their GPUs, by node."""
        found: dict[NodeId, dict[JobId, int]] = {}
        for job, allocation in self.held.items():
            if allocation.num_nodes == 1:
                on_node = found.setdefault(allocation.slots[0][0], {})
                on_node[job] = allocation.num_replicas
        return found


def place(
    gpu_type: GpuType,
    jobs: Mapping[JobId, JobView],
    counts: Mapping[JobId, int],
    goodput: Goodput,
) -> dict[JobId, Allocation]:
    """Return an allocation per job of `counts`, whose sum is free on these nodes.

    A job may get fewer replicas than it was to, where they are together.
    """
    floor = Floor(gpu_type)
    for job in sorted(counts):
        held = jobs[job].allocation
        if held.num_replicas == counts[job] and not held.shared:
            floor.put(job, held)

    def largest_first(names: Iterable[JobId]) -> list[JobId]:
        return sorted(names, key=lambda job: (-counts[job], job))

    for job in largest_first(counts.keys() - floor.held.keys()):
        _settle(floor, jobs, job, counts[job], goodput)
    for job in largest_first(floor.apart()):
        _improve(floor, job)
    return floor.held


def _settle(
    floor: Floor,
    jobs: Mapping[JobId, JobView],
    job: JobId,
    count: int,
    goodput: Goodput,
) -> None:
    allocation = floor.find(count)
    if allocation is None or allocation.num_nodes > floor.need(count):
        _make_way(floor, count)
        allocation = floor.find(count)
    if allocation is None:
        return
    if allocation.num_nodes > floor.need(count):
        smaller = max(floor.free.values()) if count <= floor.node_gpus else 0
        low = jobs[job].spec.replicas.min
        if smaller >= low and goodput(job, smaller, False) >= goodput(job, count, True):
            allocation = floor.find(smaller)
            assert allocation is not None, "the largest hole is free"
    floor.put(job, allocation)


def _make_way(floor: Floor, count: int) -> None:
    """Move small jobs together so that `count` replicas fit their fewest nodes; all or
    nothing.
    """
    lifted: dict[JobId, Allocation] = {}
    chosen: dict[NodeId, int] = {}
    small = floor.small()
    for piece in floor.pieces(count):
        found = _cheapest(floor, small, piece, chosen)
        if found is None:
            _undo(floor, lifted, [])
            return
        node, leavers = found
        chosen[node] = piece
        for job in leavers:
            lifted[job] = floor.lift(job)
    for node, piece in chosen.items():
        floor.free[node] -= piece
    moved = _put_elsewhere(floor, lifted)
    for node, piece in chosen.items():
        floor.free[node] += piece
    if len(moved) < len(lifted):
        _undo(floor, lifted, moved)


def _put_elsewhere(floor: Floor, lifted: Mapping[JobId, Allocation]) -> list[JobId]:
    """Put each lifted job on one node, the largest first, until one finds none. Return
    those that were put.
    """
    moved: list[JobId] = []
    for job in sorted(lifted, key=lambda job: (-lifted[job].num_replicas, job)):
        elsewhere = floor.find(lifted[job].num_replicas)
        if elsewhere is None or elsewhere.num_nodes > 1:
            break
        floor.put(job, elsewhere)
        moved.append(job)
    return moved


def _cheapest(
    floor: Floor,
    small: Mapping[NodeId, Mapping[JobId, int]],
    piece: int,
    chosen: Container[NodeId],
) -> tuple[NodeId, list[JobId]] | None:
    """Return the node, none chosen, that the fewest GPUs of jobs must leave for
    `piece`, and these.
    """
    least = math.inf
    found = None
    for node, free in floor.free.items():
        if node in chosen:
            continue
        if free >= piece:
            return node, []
        if node in small:
            gpus, leavers = _leavers(piece - free, small[node], piece)
            if 0 <= gpus < least:
                least = gpus
                found = node, leavers
    return found


def _leavers(
    short: int, on: Mapping[JobId, int], piece: int
) -> tuple[int, list[JobId]]:
    """Return the fewest GPUs of jobs `on` a node that must leave it, `short` of some,
    and these.

    -1: that is not enough, as jobs of `piece` GPUs or more stay.
    """
    small = [(gpus, job) for job, gpus in on.items() if gpus < piece]
    leavers: list[JobId] = []
    gone = 0
    for gpus, job in sorted(small, reverse=True):
        if gpus <= short - gone:
            leavers.append(job)
            gone += gpus
    for gpus, job in sorted(small):
        if gone < short and job not in leavers:
            leavers.append(job)
            gone += gpus
    return (gone, leavers) if gone >= short else (-1, [])


def _undo(
    floor: Floor, lifted: Mapping[JobId, Allocation], moved: Sequence[JobId]
) -> None:
    for job in moved:
        floor.lift(job)
    for job, allocation in lifted.items():
        floor.put(job, allocation)


def _improve(floor: Floor, job: JobId) -> None:
    """Move a job that is on more nodes than it needs to fewer, where such a place is
    free.
    """
    held = floor.lift(job)
    found = floor.find(held.num_replicas)
    better = found is not None and found.num_nodes < held.num_nodes
    floor.put(job, found if found is not None and better else held)
