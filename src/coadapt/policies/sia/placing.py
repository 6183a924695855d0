"""From configurations to nodes: parts of a node together, the rest on whole nodes (Sia,
SOSP 2023).
"""

# A job that keeps its configuration stays where it is. The others come largest first:
# whole nodes, then parts of a node where the least is left over. Where no node has room
# though the type has, jobs that share a node are moved off the one that needs fewest
# GPUs moved; the paper calls that evicting, and finds it rare.
#
# Nodes of unlike sizes, and counts that are no power of two, may still leave no node
# with room. Such a job is spread over the nodes with most free GPUs.

from collections.abc import Mapping, Sequence

from coadapt.model import Allocation, ClusterView, JobId, JobView, NodeId
from coadapt.policies.allocation.capacity import FreeNodes
from coadapt.policies.sia.objective import Configuration


def place(
    view: ClusterView,
    wanted: Mapping[JobId, Configuration],
    kept: Mapping[JobId, Allocation],
) -> dict[JobId, Allocation]:
    """Return where each job of `wanted` goes, and those of `kept` again.

    kept: jobs that stay if they can; those of them that are not `wanted` stay for
    certain. Raises ValueError where the counts do not fit the types.
    """
    spots = _Spots(view, wanted, kept)
    movers = [job for job in view.jobs if job.id in wanted and job.id not in kept]
    while movers:
        movers.sort(key=lambda job: -wanted[job.id].num_gpus)
        movers += spots.put(movers.pop(0))
    return {job.id: spots.given[job.id] for job in view.jobs if job.id in spots.given}


class _Spots:
    """Nodes with what is free on them, and what each job was given."""

    def __init__(
        self,
        view: ClusterView,
        wanted: Mapping[JobId, Configuration],
        kept: Mapping[JobId, Allocation],
    ) -> None:
        self.given: dict[JobId, Allocation] = dict(kept)
        self._jobs: dict[JobId, JobView] = {job.id: job for job in view.jobs}
        self._wanted = wanted
        self._size = {node.id: node.num_gpus for node in view.nodes}
        self._of_type: dict[str, list[NodeId]] = {}
        for node in view.nodes:
            self._of_type.setdefault(node.gpu_type, []).append(node.id)
        free = FreeNodes({node.id: node for node in view.nodes})
        for allocation in kept.values():
            free.take(allocation)
        self._free: dict[NodeId, int] = dict(free.gpus)

    def put(self, job: JobView) -> list[JobView]:
        """Give `job` its configuration; return the jobs that had to make room."""
        config = self._wanted[job.id]
        nodes = self._of_type[config.gpu_type]
        largest = max(self._size[node] for node in nodes)
        whole, rest = divmod(config.num_gpus, largest)
        evicted: list[JobView] = []
        slots: list[tuple[NodeId, int]] = []
        for count in [largest] * whole + [rest] * bool(rest):
            node = self._best_fit(nodes, count) or self._make_room(
                nodes, count, evicted
            )
            if node is None:
                break
            self._free[node] -= count
            slots.append((node, count))
        if sum(count for _, count in slots) < config.num_gpus:
            for node, count in slots:
                self._free[node] += count
            slots = self._spread(nodes, config.num_gpus)
        self.given[job.id] = Allocation(slots=tuple(slots))
        return evicted

    def _best_fit(self, nodes: Sequence[NodeId], count: int) -> NodeId | None:
        fitting = [node for node in nodes if self._free[node] >= count]
        return min(fitting, key=lambda node: self._free[node], default=None)

    def _make_room(
        self, nodes: Sequence[NodeId], count: int, evicted: list[JobView]
    ) -> NodeId | None:
        """Move as few GPUs' worth of jobs off a node as give it `count` free GPUs; None
        if that is no use.
        """
        best: tuple[int, NodeId, list[JobView]] | None = None
        for node in nodes:
            free = self._free[node]
            leaving = []
            for job in self._evictable(node):
                if free >= count:
                    break
                free += self.given[job.id].num_replicas
                leaving.append(job)
            moved = sum(self.given[job.id].num_replicas for job in leaving)
            if free >= count and moved < count and (best is None or moved < best[0]):
                best = moved, node, leaving
        if best is None:
            return None
        for job in best[2]:
            self._free[best[1]] += self.given.pop(job.id).num_replicas
        evicted += best[2]
        return best[1]

    def _evictable(self, node: NodeId) -> list[JobView]:
        """Return the jobs that are on `node` only and may move, fewest GPUs first."""
        here = [
            self._jobs[job_id]
            for job_id, held in self.given.items()
            if job_id in self._wanted and held.on(node) == held.num_replicas
        ]
        return sorted(
            here,
            key=lambda job: (self.given[job.id].num_replicas, job.submitted_at, job.id),
        )

    def _spread(self, nodes: Sequence[NodeId], count: int) -> list[tuple[NodeId, int]]:
        slots = []
        for node in sorted(nodes, key=lambda node: -self._free[node]):
            taken = min(self._free[node], count)
            if taken:
                self._free[node] -= taken
                slots.append((node, taken))
                count -= taken
        if count:
            raise ValueError(f"{count} more GPUs were given than there are")
        return slots
