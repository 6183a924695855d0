"""The simulated cluster's own record of which job is on which GPU, independent of the
core.

The core counts free GPUs (model/devices.py). Here jobs take single GPUs, as they do in
an executor, so a wrong count of the core fails an assertion.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction

from coadapt.model import Allocation, JobId, Node, NodeId

WHOLE = Fraction(1)


@dataclass(slots=True)
class _Gpu:
    """One GPU: the shares of the jobs on it, and its label while it is shared."""

    label: int | None = None
    shares: dict[JobId, Fraction] = field(default_factory=dict)


class Ledger:
    """The GPUs of live nodes, and the jobs on them. It raises AssertionError if more of
    a GPU is given than there is.
    """

    def __init__(self) -> None:
        self.nodes: dict[NodeId, Node] = {}
        self.gpu_types: list[str] = []  # of the live nodes, in order
        self._gpus: dict[NodeId, list[_Gpu]] = {}
        self._nodes_of: dict[JobId, set[NodeId]] = {}

    def add(self, node: Node) -> None:
        """Add an empty node, which must not be there yet."""
        assert node.id not in self.nodes, f"node {node.id} joined twice"
        self.nodes[node.id] = node
        self.gpu_types = sorted({*self.gpu_types, node.gpu_type})
        self._gpus[node.id] = [_Gpu() for _ in range(node.num_gpus)]

    def remove(self, node: NodeId) -> None:
        """Remove a node, which must be empty."""
        jobs = self.jobs_on(node)
        assert not jobs, f"node {node} left while {sorted(jobs)} held its GPUs"
        del self.nodes[node], self._gpus[node]
        self.gpu_types = sorted({each.gpu_type for each in self.nodes.values()})

    def missing(self, allocation: Allocation) -> list[NodeId]:
        """Return the nodes of `allocation` that are not there."""
        return [node for node, _ in allocation.slots if node not in self.nodes]

    def take(self, job: JobId, allocation: Allocation) -> None:
        """Give `job`, which must hold no GPUs, those of `allocation`."""
        assert not self._nodes_of.get(job), (
            f"job {job} runs twice on {sorted(self._nodes_of[job])}"
        )
        self.take_more(job, allocation)

    def take_more(self, job: JobId, allocation: Allocation) -> None:
        """Give `job` the GPUs of `allocation` that it does not hold yet."""
        types = {self.nodes[node].gpu_type for node, _ in allocation.slots}
        assert len(types) == 1, (
            f"job {job} is to train on GPU types {sorted(types)} at once"
        )
        labels = iter(allocation.shared)
        share = WHOLE / allocation.num_sharers if allocation.shared else WHOLE
        for node, count in allocation.slots:
            self._nodes_of.setdefault(job, set()).add(node)
            if allocation.shared:
                for _ in range(count):
                    self._join(node, next(labels), job, share)
            else:
                has = sum(
                    job in gpu.shares and gpu.label is None for gpu in self._gpus[node]
                )
                for _ in range(count - has):
                    self._empty(node, job).shares[job] = WHOLE

    def release(self, job: JobId) -> None:
        """Free all GPUs of `job`. A GPU without jobs has no label."""
        for node in self._nodes_of.pop(job, ()):
            for gpu in self._gpus[node]:
                gpu.shares.pop(job, None)
                if not gpu.shares:
                    gpu.label = None

    def jobs_on(self, node: NodeId) -> set[JobId]:
        """Return the jobs that hold GPUs of `node`, or parts of them."""
        return {job for gpu in self._gpus[node] for job in gpu.shares}

    def sharers(self, job: JobId) -> list[tuple[JobId, ...]]:
        """Return all jobs, by id, on each shared GPU that `job` is on."""
        return [
            tuple(sorted(gpu.shares))
            for node in sorted(self._nodes_of.get(job, ()))
            for gpu in self._gpus[node]
            if gpu.label is not None and job in gpu.shares
        ]

    def neighbours(self, job: JobId, allocation: Allocation) -> list[tuple[JobId, ...]]:
        """Return the other jobs on each shared GPU that `allocation` of `job` names, by
        id, in rank order.
        """
        at = {
            (node, gpu.label): gpu
            for node, _ in allocation.slots
            for gpu in self._gpus[node]
            if gpu.label is not None
        }
        return [
            tuple(sorted(at[gpu].shares.keys() - {job}))
            for gpu in allocation.shared_gpus()
        ]

    def shared_gpus(self, job: JobId) -> dict[tuple[NodeId, int], Fraction]:
        """Return the share that `job` has of each shared GPU, by node and label."""
        return {
            (node, gpu.label): gpu.shares[job]
            for node in sorted(self._nodes_of.get(job, ()))
            for gpu in self._gpus[node]
            if gpu.label is not None and job in gpu.shares
        }

    @property
    def held(self) -> Mapping[NodeId, Mapping[JobId, float]]:
        """GPUs held, per live node and job; a share of one counts as that share."""
        held: dict[NodeId, dict[JobId, float]] = {}
        for node, gpus in self._gpus.items():
            on_node = held[node] = {}
            for gpu in gpus:
                for job, share in gpu.shares.items():
                    on_node[job] = on_node.get(job, 0.0) + float(share)
        return held

    def _join(self, node: NodeId, label: int, job: JobId, share: Fraction) -> None:
        gpu = next((each for each in self._gpus[node] if each.label == label), None)
        if gpu is None:
            gpu = self._empty(node, job)
            gpu.label = label
        gpu.shares[job] = max(share, gpu.shares.get(job, share))
        total = sum(gpu.shares.values())
        assert total <= 1, (
            f"{node}: {total} of the GPU with label {label} are given: {gpu.shares}"
        )

    def _empty(self, node: NodeId, job: JobId) -> _Gpu:
        gpu = next((each for each in self._gpus[node] if not each.shares), None)
        assert gpu is not None, (
            f"{node} has {len(self._gpus[node])} GPUs, none is left for {job}"
        )
        return gpu
