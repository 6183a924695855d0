"""Placing: from sizes to nodes of one GPU type. Who keeps its size stays; whole nodes
first.
"""

# The round's program knows how many GPUs there are, not where. Here each size finds its
# nodes:
#
#   1. who keeps what it has stays where it is;
#   2. the others come, the largest first: on as few nodes as can be, the tightest hole
#      for what is no whole node, in one rack where one has room;
#   3. where that fails, small jobs make way, if all of them find a place elsewhere that
#      is no worse;
#   4. where that fails too, the job takes the fastest of: a smaller size that fits, and
#      pieces.
#   5. a job that stands on more nodes than it needs moves if a better place is free in
#      the end.
#
# What stays from round to round is not put there anew: the floor of the last round is
# kept.
#
# A job of 4 GPUs that starts on two nodes stays there for life, since moving costs:
# without 3 and 5 the mean completion time is 2.5 % higher.

import math
from bisect import bisect_left, insort
from collections.abc import Callable, Container, Iterable, Mapping, Sequence

from coadapt.model import Allocation, JobId, JobView, NodeId
from coadapt.policies.castor.cluster import Kind
from coadapt.policies.castor.ground import Pool

Goodput = Callable[[JobId, int, bool], float]
"""Of a job on so many replicas, on as few nodes as can be or (True) on more."""


class Floor:
    """The free GPUs of the nodes of one type, while jobs are put on them."""

    def __init__(self, pool: Pool, taken: Mapping[NodeId, int]) -> None:
        self.taken = taken
        self.node_gpus = pool.node_gpus
        self.free = dict(pool.free)
        self.held: dict[JobId, Allocation] = {}
        self._pool = pool
        self._touched: set[NodeId] = set()
        # As of `_groups` and `small`, once these were asked for.
        self._by_free: list[dict[int, list[int]]] | None = None
        self._small: dict[NodeId, dict[JobId, int]] | None = None
        for node, count in taken.items():
            self.take(node, count)

    def take(self, node: NodeId, count: int) -> None:
        """Take `count` free GPUs of `node`; below 0: give them back."""
        before = self.free[node]
        left = self.free[node] = before - count
        if self._by_free is None:
            self._touched.add(node)
            return
        number = self._pool.number[node]
        for group in self._pool.groups_of[number]:
            by_free = self._by_free[group]
            if before:
                same = by_free[before]
                del same[bisect_left(same, number)]
            if left:
                insort(by_free.setdefault(left, []), number)

    def put(self, job: JobId, allocation: Allocation) -> bool:
        """Put `job` there if it fits; return whether it did."""
        free = self.free
        for node, count in allocation.slots:
            if free.get(node, 0) < count:
                return False
        for node, count in allocation.slots:
            self.take(node, count)
        self.held[job] = allocation
        if self._small is not None and allocation.num_nodes == 1:
            self._small.setdefault(allocation.slots[0][0], {})[job] = (
                allocation.num_replicas
            )
        return True

    def lift(self, job: JobId) -> Allocation:
        """Take `job` away again; return what it had."""
        allocation = self.held.pop(job)
        for node, count in allocation.slots:
            self.take(node, -count)
        if self._small is not None and allocation.num_nodes == 1:
            del self._small[allocation.slots[0][0]][job]
        return allocation

    def keep(self, kind: Kind, stay: Mapping[JobId, Allocation]) -> bool:
        """Leave these jobs alone there; return whether that could be: their GPUs are
        those of this floor.
        """
        if self._pool is not kind.pool or self.taken != kind.taken:
            return False
        for job in [
            job for job, allocation in self.held.items() if stay.get(job) != allocation
        ]:
            self.lift(job)
        for job, allocation in stay.items():
            if job not in self.held and not self.put(job, allocation):
                return False
        self.held = dict(stay)
        return True

    @property
    def small(self) -> Mapping[NodeId, Mapping[JobId, int]]:
        """The jobs that stand on one node alone, and their GPUs, by node."""
        if self._small is None:
            self._small = {}
            for job, allocation in self.held.items():
                if allocation.num_nodes == 1:
                    self._small.setdefault(allocation.slots[0][0], {})[job] = (
                        allocation.num_replicas
                    )
        return self._small

    @property
    def _groups(self) -> list[dict[int, list[int]]]:
        """Per group of the pool: numbers of the nodes with so many free GPUs,
        ascending; full ones in none.

        In most rounds all jobs stay, and nobody looks for a place: then these are not
        made.
        """
        if self._by_free is None:
            pool = self._pool
            touched = {pool.number[node] for node in self._touched}
            self._by_free = [
                {
                    free: [number for number in each if number not in touched]
                    for free, each in group.items()
                }
                for group in pool.groups
            ]
            for node in self._touched:
                number = pool.number[node]
                free = self.free[node]
                for group in pool.groups_of[number] if free else ():
                    insort(self._by_free[group].setdefault(free, []), number)
        return self._by_free

    def need(self, count: int) -> int:
        """Return on how few nodes `count` replicas fit."""
        return -(-count // self.node_gpus)

    def find(self, count: int) -> Allocation | None:
        """Return the best free place for `count` replicas; None if there are not enough
        GPUs.
        """
        found: list[Allocation] = []
        for group in self._groups:
            allocation = self._among(count, group)
            if allocation is not None:
                if allocation.num_nodes <= self.need(count):
                    return allocation
                found.append(allocation)
        return min(found, key=lambda each: each.num_nodes, default=None)

    def _among(
        self, count: int, by_free: Mapping[int, Sequence[int]]
    ) -> Allocation | None:
        if sum([free * len(numbers) for free, numbers in by_free.items()]) < count:
            return None
        nodes = self._pool.nodes
        left = count
        open_ = sorted([free for free, numbers in by_free.items() if numbers])
        slots: list[tuple[NodeId, int]] = []
        used = 0  # of the nodes with most free GPUs
        while left > open_[-1]:
            most = open_[-1]
            numbers = by_free[most][: (left - 1) // most]
            slots += [(nodes[number].id, most) for number in numbers]
            left -= most * len(numbers)
            used = len(numbers)
            if used == len(by_free[most]):
                open_.pop()
                used = 0
        free = open_[bisect_left(open_, left)]
        number = by_free[free][used if free == open_[-1] else 0]
        return Allocation(slots=(*slots, (nodes[number].id, left)))

    def largest(self) -> int:
        """Return the most replicas that one node has room for."""
        return max(
            (free for free, numbers in self._groups[-1].items() if numbers), default=0
        )


def place(
    kind: Kind,
    jobs: Mapping[JobId, JobView],
    counts: Mapping[JobId, int],
    goodput: Goodput,
    before: Floor | None = None,
) -> Floor:
    """Return a floor that holds an allocation per job of `counts`, whose sum is free on
    the nodes of `kind`.

    A job may get fewer replicas than it was to, where they stand together. before: the
    floor of the last round, which is changed: mostly little is to be done on it.
    """
    held = {job: jobs[job].allocation for job in sorted(counts)}
    stay = {
        job: each
        for job, each in held.items()
        if each.num_replicas == counts[job] and not each.shared
    }
    if before is not None and before.keep(kind, stay):
        floor = before
    else:
        floor = Floor(kind.pool, kind.taken)
        for job, allocation in stay.items():
            floor.put(job, allocation)

    def largest_first(names: Iterable[JobId]) -> list[JobId]:
        return sorted(names, key=lambda job: (-counts[job], job))

    for job in largest_first(counts.keys() - floor.held.keys()):
        _settle(floor, jobs, job, counts[job], goodput)
    apart = [
        job
        for job, each in floor.held.items()
        if each.num_nodes > floor.need(each.num_replicas)
    ]
    for job in largest_first(apart):
        _improve(floor, job)
    return floor


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
        smaller = floor.largest() if count <= floor.node_gpus else 0
        low = jobs[job].spec.replicas.min
        if smaller >= low and goodput(job, smaller, False) >= goodput(job, count, True):
            count = smaller
            allocation = floor.find(count)
            assert allocation is not None, "the largest hole is free"
    floor.put(job, allocation)


def _make_way(floor: Floor, count: int) -> None:
    """Move small jobs together so that `count` replicas fit their fewest nodes; all or
    nothing.
    """
    pieces = [floor.node_gpus] * (count // floor.node_gpus)
    if count % floor.node_gpus:
        pieces.append(count % floor.node_gpus)
    lifted: dict[JobId, Allocation] = {}
    chosen: dict[NodeId, int] = {}
    small = floor.small
    for piece in pieces:
        found = _cheapest(floor, small, piece, chosen)
        if found is None:
            _undo(floor, lifted, [])
            return
        node, leavers = found
        chosen[node] = piece
        for job in leavers:
            lifted[job] = floor.lift(job)
    for node, piece in chosen.items():
        floor.take(node, piece)
    moved: list[JobId] = []
    for job in sorted(lifted, key=lambda job: (-lifted[job].num_replicas, job)):
        place_ = floor.find(lifted[job].num_replicas)
        if place_ is None or place_.num_nodes > 1:
            break
        floor.put(job, place_)
        moved.append(job)
    for node, piece in chosen.items():
        floor.take(node, -piece)
    if len(moved) < len(lifted):
        _undo(floor, lifted, moved)


def _cheapest(
    floor: Floor,
    small: Mapping[NodeId, Mapping[JobId, int]],
    piece: int,
    but: Container[NodeId],
) -> tuple[NodeId, list[JobId]] | None:
    """Return the node, none of `but`, that the fewest GPUs of jobs must leave for
    `piece`, and these jobs.
    """
    least = math.inf
    found = None
    for node, free in floor.free.items():
        if node in but:
            continue
        if free >= piece:
            return node, []
        if node in small:
            gpus, leavers = _leavers(piece - free, small[node], piece)
            if 0 <= gpus < least:
                least = gpus
                found = (node, leavers)
    return found


def _leavers(
    short: int, on: Mapping[JobId, int], piece: int
) -> tuple[int, list[JobId]]:
    """Return the fewest GPUs of jobs `on` a node that must leave it, `short` of some
    for `piece`, and these.

    -1: that is not enough, as who has no fewer than `piece` stays.
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
    """Move a job that stands on more nodes than it needs to fewer, where such a place
    is free.
    """
    held = floor.lift(job)
    found = floor.find(held.num_replicas)
    better = found is not None and found.num_nodes < held.num_nodes
    floor.put(job, found if better and found is not None else held)
