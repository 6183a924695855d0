"""Placing: from numbers of GPUs to nodes of one GPU type."""

# The knapsack decides how many GPUs each job gets, not on which nodes. Here each size
# finds its nodes:
#
#   1. A job that keeps its size stays where it is.
#   2. The other jobs follow, the largest first. Each gets as few nodes as possible, all
#      in one rack if a rack has room. A rest that fills no whole node goes to the node
#      that it leaves fullest.
#   3. If a job would be on more nodes than it needs, small jobs are moved off a node,
#      provided that all of them fit on single nodes elsewhere.
#   4. If that is impossible too, the job takes the faster of a smaller size on one node
#      and its size on several nodes.
#   5. In the end, a job on more nodes than it needs moves if a better place is free.
#
# A change of place costs a rescale, so a job of 4 GPUs that starts on two nodes would
# stay there until its end. Without steps 3 and 5 the mean completion time is 2.5 %
# longer.

import math
from collections.abc import Callable, Container, Iterable, Mapping, Sequence

from coadapt.model import Allocation, JobId, JobView, NodeId
from coadapt.policies.castor.topology import GpuType

Goodput = Callable[[JobId, int, bool], float]
"""The goodput of a job on a number of replicas. The flag is True if they are on more
nodes than necessary.
"""


class Board:
    """The nodes of one GPU type while jobs are placed.

    free: free GPUs by node. held: the allocations of the jobs that are placed.
    """

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
        """Place `job` there; a job that does not fit there stays unplaced."""
        if all(self.free.get(node, 0) >= count for node, count in allocation.slots):
            for node, count in allocation.slots:
                self.free[node] -= count
            self.held[job] = allocation

    def remove(self, job: JobId) -> Allocation:
        """Remove a placed job, and return its allocation."""
        allocation = self.held.pop(job)
        for node, count in allocation.slots:
            self.free[node] += count
        return allocation

    def fewest_nodes(self, count: int) -> int:
        """Return the fewest nodes for `count` replicas."""
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
                if allocation.num_nodes <= self.fewest_nodes(count):
                    return allocation
                found.append(allocation)
        return min(found, key=lambda each: each.num_nodes, default=None)

    def _best_fit(self, count: int, nodes: Iterable[NodeId]) -> Allocation | None:
        """Return the emptiest nodes whole, then the node with the fewest GPUs that hold
        the rest. None: `nodes` have too few free GPUs.
        """
        some = [(self.free[node], node) for node in nodes if self.free[node]]
        if sum(free for free, _ in some) < count:
            return None
        some.sort(key=lambda each: -each[0])  # equal nodes stay in the view's order
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
            if each.num_nodes > self.fewest_nodes(each.num_replicas)
        ]

    def on_one_node(self) -> Mapping[NodeId, Mapping[JobId, int]]:
        """Return the jobs that are on one node only, and their GPUs, by node."""
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
    """Return the allocations of jobs with these counts, whose sum is free.

    A job may get fewer replicas than its count if it is faster with them on one node.
    """
    board = Board(gpu_type)
    for job in sorted(counts):
        held = jobs[job].allocation
        if held.num_replicas == counts[job] and not held.shared:
            board.put(job, held)

    def largest_first(names: Iterable[JobId]) -> list[JobId]:
        return sorted(names, key=lambda job: (-counts[job], job))

    for job in largest_first(counts.keys() - board.held.keys()):
        _place_one(board, jobs, job, counts[job], goodput)
    for job in largest_first(board.apart()):
        _bring_together(board, job)
    return board.held


def _place_one(
    board: Board,
    jobs: Mapping[JobId, JobView],
    job: JobId,
    count: int,
    goodput: Goodput,
) -> None:
    allocation = board.find(count)
    if allocation is None or allocation.num_nodes > board.fewest_nodes(count):
        _clear_nodes(board, count)
        allocation = board.find(count)
    if allocation is None:
        return
    if allocation.num_nodes > board.fewest_nodes(count):
        smaller = max(board.free.values()) if count <= board.node_gpus else 0
        low = jobs[job].spec.replicas.min
        if smaller >= low and goodput(job, smaller, False) >= goodput(job, count, True):
            allocation = board.find(smaller)
            assert allocation is not None, "the node with the most free GPUs has them"
    board.put(job, allocation)


def _clear_nodes(board: Board, count: int) -> None:
    """Move small jobs off some nodes, so that `count` replicas fit their fewest nodes.

    Nothing is moved unless all of these jobs fit on single nodes elsewhere.
    """
    removed: dict[JobId, Allocation] = {}
    chosen: dict[NodeId, int] = {}
    small = board.on_one_node()
    for piece in board.pieces(count):
        found = _cheapest(board, small, piece, chosen)
        if found is None:
            _undo(board, removed, [])
            return
        node, movers = found
        chosen[node] = piece
        for job in movers:
            removed[job] = board.remove(job)
    for node, piece in chosen.items():
        board.free[node] -= piece
    moved = _put_elsewhere(board, removed)
    for node, piece in chosen.items():
        board.free[node] += piece
    if len(moved) < len(removed):
        _undo(board, removed, moved)


def _put_elsewhere(board: Board, removed: Mapping[JobId, Allocation]) -> list[JobId]:
    """Put each removed job on one node, the largest first, until one finds none. Return
    those that were put.
    """
    moved: list[JobId] = []
    for job in sorted(removed, key=lambda job: (-removed[job].num_replicas, job)):
        elsewhere = board.find(removed[job].num_replicas)
        if elsewhere is None or elsewhere.num_nodes > 1:
            break
        board.put(job, elsewhere)
        moved.append(job)
    return moved


def _cheapest(
    board: Board,
    small: Mapping[NodeId, Mapping[JobId, int]],
    piece: int,
    chosen: Container[NodeId],
) -> tuple[NodeId, list[JobId]] | None:
    """Return the node that can hold `piece` replicas if the fewest GPUs of jobs move,
    and the jobs that must move. Nodes in `chosen` are left out. None: no node can.
    """
    least = math.inf
    found = None
    for node, free in board.free.items():
        if node in chosen:
            continue
        if free >= piece:
            return node, []
        if node in small:
            gpus, movers = _movers(piece - free, small[node], piece)
            if 0 <= gpus < least:
                least = gpus
                found = node, movers
    return found


def _movers(short: int, on: Mapping[JobId, int], piece: int) -> tuple[int, list[JobId]]:
    """Return the jobs that move off a node which lacks `short` GPUs, and their GPUs.

    on: the jobs of the node. Jobs of `piece` GPUs or more stay. -1: the others have too
    few GPUs.
    """
    small = [(gpus, job) for job, gpus in on.items() if gpus < piece]
    movers: list[JobId] = []
    gone = 0
    for gpus, job in sorted(small, reverse=True):
        if gpus <= short - gone:
            movers.append(job)
            gone += gpus
    for gpus, job in sorted(small):
        if gone < short and job not in movers:
            movers.append(job)
            gone += gpus
    return (gone, movers) if gone >= short else (-1, [])


def _undo(
    board: Board, removed: Mapping[JobId, Allocation], moved: Sequence[JobId]
) -> None:
    for job in moved:
        board.remove(job)
    for job, allocation in removed.items():
        board.put(job, allocation)


def _bring_together(board: Board, job: JobId) -> None:
    """Move a job to fewer nodes if such a place is free."""
    held = board.remove(job)
    found = board.find(held.num_replicas)
    better = found is not None and found.num_nodes < held.num_nodes
    board.put(job, found if found is not None and better else held)
