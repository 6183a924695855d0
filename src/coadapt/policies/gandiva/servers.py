"""On which servers each job lives: placing by affinity, and moving away from crowds
(Gandiva, §4).
"""

# A job lives on servers whether it trains or is suspended: its home, whole GPUs of one
# type. Homes may need more GPUs than a server has; then its jobs take turns. Load is
# GPUs of all homes over GPUs. Two jobs that are packed live in one home, which counts
# once.
#
# Affinity is the GPU count of the jobs that a server is there for: that of the first
# one that came when it was empty. Servers of equal jobs leave no fragments, and their
# jobs can take each other's turns.

from collections.abc import Iterable, Mapping, Sequence

from coadapt.model import Allocation, JobId, JobView, Node, NodeId


class Servers:
    """Homes on the nodes of one round. affinity: kept from round to round by the owner
    of this object.

    pinned: GPUs per node that are not time-shared, because a frozen job runs there.
    """

    def __init__(
        self,
        nodes: Sequence[Node],
        affinity: dict[NodeId, int],
        pinned: Mapping[NodeId, int],
    ):
        self.nodes = {node.id: node for node in nodes}
        self.affinity = affinity
        self.pinned = pinned
        self.used = {node.id: pinned.get(node.id, 0) for node in nodes}
        for gone in [node for node in affinity if node not in self.nodes]:
            del affinity[gone]

    def can_hold(self, home: Allocation) -> bool:
        """Return whether `home` is one here: its nodes are alive, of one type, and
        large enough.
        """
        if any(name not in self.nodes for name, _ in home.slots):
            return False
        types = {self.nodes[name].gpu_type for name, _ in home.slots}
        rooms = [
            self.nodes[name].num_gpus - self.pinned.get(name, 0) - count
            for name, count in home.slots
        ]
        return len(types) == 1 and min(rooms) >= 0

    def settle(self, home: Allocation) -> None:
        """Count `home` in; servers without affinity are there for jobs of its size from
        now on.
        """
        for name, count in home.slots:
            self.used[name] += count
            self.affinity.setdefault(name, home.num_replicas)

    def leave(self, home: Allocation) -> None:
        """Count `home` out."""
        for name, count in home.slots:
            self.used[name] -= count

    def forget_empty(self) -> None:
        """Remove the affinity of servers that are the home of no job."""
        for name in [name for name in self.affinity if not self.used[name]]:
            del self.affinity[name]

    def free(self, name: NodeId) -> int:
        """Return the GPUs of node `name` that are the home of no job."""
        return max(self.nodes[name].num_gpus - self.used[name], 0)

    def load(self, name: NodeId) -> float:
        """Return GPUs of all homes on node `name` over its GPUs."""
        return self.used[name] / self.nodes[name].num_gpus

    def crowded(self, home: Allocation) -> bool:
        """Return whether jobs take turns on a server of `home`."""
        return any(self.load(name) > 1.0 for name, _ in home.slots)

    def find(
        self,
        job: JobView,
        count: int,
        limit: float | None = None,
        *,
        same_affinity: bool = False,
    ) -> Allocation | None:
        """Return a home for `job` by Algorithm 1 of the paper; None: it has to queue.

        limit: the largest load that it may bring about where no GPUs are free; None:
        free GPUs only. same_affinity: whether it may bring that about on servers of its
        affinity only.
        """
        allowed = [
            node
            for node in self.nodes.values()
            if job.spec.replicas.allows_type(node.gpu_type)
        ]
        pools = [
            [node for node in allowed if node.gpu_type == kind]
            for kind in _types(allowed)
        ]
        same = [
            [node for node in pool if self.affinity.get(node.id) == count]
            for pool in pools
        ]
        none = [
            [node for node in pool if node.id not in self.affinity] for pool in pools
        ]
        ways = (
            *((pool, False) for pool in same),
            *((pool, True) for pool in none),
            *((pool, True) for pool in pools),
        )
        for pool, spread in ways:
            home = self._on_free(pool, count, spread)
            if home is not None:
                return home
        if limit is None:
            return None
        crowds = (
            self._on_crowded(pool, count, limit)
            for pool in (same if same_affinity else same + pools)
        )
        return next((home for home in crowds if home is not None), None)

    def find_idle(
        self, job: JobView, count: int, idle: Mapping[NodeId, int], limit: float
    ) -> Allocation | None:
        """Return GPUs for `job` of those that are `idle` in this turn, without a load
        beyond `limit`.

        On one server, the fullest that has them; on several only if none is large
        enough.
        """
        allowed = [
            node
            for node in self.nodes.values()
            if job.spec.replicas.allows_type(node.gpu_type)
        ]
        for kind in _types(allowed):
            pool = [node for node in allowed if node.gpu_type == kind]
            rooms = {
                node.id: min(
                    idle[node.id], int(limit * node.num_gpus) - self.used[node.id]
                )
                for node in pool
            }
            single = [name for name, room in rooms.items() if room >= count]
            if single:
                return Allocation(
                    slots=((min(single, key=lambda name: (rooms[name], name)), count),)
                )
            home = (
                _gathered(rooms, self.nodes, count)
                if all(n.num_gpus < count for n in pool)
                else None
            )
            if home is not None:
                return home
        return None

    def find_elsewhere(self, home: Allocation) -> Allocation | None:
        """Return free GPUs on another server of the type that has fewer free ones than
        those of `home`.
        """
        kind = self.nodes[home.slots[0][0]].gpu_type
        count = home.num_replicas
        least = min(self.free(name) for name, _ in home.slots)
        rooms = [
            node.id
            for node in self.nodes.values()
            if node.gpu_type == kind
            and count <= self.free(node.id) < least
            and not home.on(node.id)
        ]
        best = min(rooms, key=lambda name: (self.free(name), name), default=None)
        return None if best is None else Allocation(slots=((best, count),))

    def find_together(self, home: Allocation) -> Allocation | None:
        """Return free GPUs on one server for a job whose `home` is on several; None if
        no server has them.
        """
        kind = self.nodes[home.slots[0][0]].gpu_type
        count = home.num_replicas
        pool = [node for node in self.nodes.values() if node.gpu_type == kind]
        self.leave(home)
        together = self._on_free(pool, count, spread=False)
        self.settle(home)
        return (
            together
            if together is not None and together.num_nodes < home.num_nodes
            else None
        )

    def _on_free(
        self, pool: Sequence[Node], count: int, spread: bool
    ) -> Allocation | None:
        """Return free GPUs of `pool`: on one server, the one with least load; else on
        several where they must be, or may (`spread`)."""
        rooms = {node.id: self.free(node.id) for node in pool}
        single = [name for name, room in rooms.items() if room >= count]
        if single:
            best = min(
                single,
                key=lambda name: (self.load(name), self.nodes[name].num_gpus, name),
            )
            return Allocation(slots=((best, count),))
        larger = all(node.num_gpus < count for node in pool)
        return _gathered(rooms, self.nodes, count) if spread or larger else None

    def _on_crowded(
        self, pool: Sequence[Node], count: int, limit: float
    ) -> Allocation | None:
        """Return GPUs of `pool` to take turns on, where the load is least; on several
        only if it must be.
        """
        whole = {node.id: node.num_gpus - self.pinned.get(node.id, 0) for node in pool}
        single = [
            name
            for name, room in whole.items()
            if room >= count
            and self.used[name] + count <= limit * self.nodes[name].num_gpus
        ]
        if single:
            best = min(single, key=lambda name: (self.load(name), name))
            return Allocation(slots=((best, count),))
        if any(room >= count for room in whole.values()):
            return None
        rooms = {
            name: min(room, int(limit * self.nodes[name].num_gpus) - self.used[name])
            for name, room in whole.items()
        }
        return _gathered(
            rooms, self.nodes, count, by_load={name: self.load(name) for name in rooms}
        )


def _gathered(
    rooms: Mapping[NodeId, int],
    nodes: Mapping[NodeId, Node],
    count: int,
    by_load: Mapping[NodeId, float] | None = None,
) -> Allocation | None:
    """Return `count` GPUs of several nodes, least load or most room first; in one rack
    if any can.
    """
    racks = sorted({nodes[name].rack for name in rooms})
    groups = [[name for name in rooms if nodes[name].rack == rack] for rack in racks]
    for group in [*groups, list(rooms)]:
        ranked = sorted(
            group, key=lambda name: ((by_load or {}).get(name, 0.0), -rooms[name], name)
        )
        slots = []
        left = count
        for name in ranked:
            if (taken := min(rooms[name], left)) > 0:
                slots.append((name, taken))
                left -= taken
        if not left:
            return Allocation(slots=tuple(slots))
    return None


def _types(nodes: Iterable[Node]) -> list[str]:
    """Return the GPU types of `nodes`, those of the most GPUs first."""
    gpus: dict[str, int] = {}
    for node in nodes:
        gpus[node.gpu_type] = gpus.get(node.gpu_type, 0) + node.num_gpus
    return sorted(gpus, key=lambda name: (-gpus[name], name))


def shared_by(homes: Mapping[JobId, Allocation], home: Allocation) -> int:
    """Return how many of `homes` are on a server of `home`."""
    names = {name for name, _ in home.slots}
    return sum(any(name in names for name, _ in each.slots) for each in homes.values())
