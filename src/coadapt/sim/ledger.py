"""The world's own books: which job holds how many GPUs on which node. They take no word from the core."""

from collections.abc import Mapping

from coadapt.model import Allocation, JobId, Node, NodeId

# GPU shares are sums of decimal fractions; this slack in GPUs absorbs their rounding.
SLACK_GPUS = 1e-9


class Ledger:
    """GPUs per live node and job. A node that is given out beyond its GPUs is an AssertionError."""

    def __init__(self) -> None:
        self.nodes: dict[NodeId, Node] = {}
        self._held: dict[NodeId, dict[JobId, float]] = {}

    def add(self, node: Node) -> None:
        """Take a node in, empty. It must not be there yet."""
        assert node.id not in self.nodes, f"node {node.id} joined twice"
        self.nodes[node.id] = node
        self._held[node.id] = {}

    def remove(self, node: NodeId) -> None:
        """Forget a node, which must be empty by now."""
        assert not self._held[node], f"node {node} left while {sorted(self._held[node])} held its GPUs"
        del self.nodes[node], self._held[node]

    def missing(self, allocation: Allocation) -> list[NodeId]:
        """Return the nodes of `allocation` that are not there."""
        return [node for node, _ in allocation.slots if node not in self.nodes]

    def take(self, job: JobId, allocation: Allocation) -> None:
        """Book `allocation` for `job`, which must hold nothing."""
        for node, count in allocation.slots:
            held = self._held[node]
            assert job not in held, f"job {job} runs twice on {node}"
            held[job] = count * allocation.gpu_share
            gpus = self.nodes[node].num_gpus
            assert sum(held.values()) <= gpus + SLACK_GPUS, f"{node} has {gpus} GPUs, held are {held}"

    def take_more(self, job: JobId, allocation: Allocation) -> None:
        """Book for `job` what `allocation` has beyond what it holds already."""
        for node, count in allocation.slots:
            held = self._held[node]
            held[job] = max(held.get(job, 0.0), count * allocation.gpu_share)
            gpus = self.nodes[node].num_gpus
            assert sum(held.values()) <= gpus + SLACK_GPUS, f"{node} has {gpus} GPUs, held are {held}"

    def release(self, job: JobId) -> None:
        """Free whatever `job` holds."""
        for held in self._held.values():
            held.pop(job, None)

    @property
    def held(self) -> Mapping[NodeId, Mapping[JobId, float]]:
        """GPUs held, per live node and job."""
        return self._held
