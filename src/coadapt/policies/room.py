"""What may lawfully be given in one round: GPUs by type, tenants' quotas, jobs' limits. It decides nothing.

A policy that gives through a Room, and places with pack, gives a lawful plan on any view.
"""

from collections.abc import Mapping
from enum import StrEnum

from coadapt.model import Allocation, ClusterView, JobId, JobView, Node, NodeId, RescaleContract


class Verdict(StrEnum):
    """Whether a job can get a number of GPUs now; if not, what is in the way."""

    FITS = "fits"
    BUSY = "busy"  # not enough GPUs are free
    QUOTA = "quota"  # its tenant may not hold as many
    TOO_LARGE = "too_large"  # no GPU type of the present cluster has as many
    STRANDED = "stranded"  # frozen, and the GPUs that it holds are no longer all there: it must stop first


def span(job: JobView) -> tuple[int, int]:
    """Return the fewest and the most replicas that `job` may hold if it holds any.

    A frozen job has no choice: what it holds, or what it requested before it starts.
    """
    limits = job.spec.replicas
    if job.spec.contract is RescaleContract.FROZEN:
        count = job.allocation.num_replicas or limits.requested
        return count, count
    return limits.min, limits.max


def gpu_type_held(job: JobView, nodes: Mapping[NodeId, Node]) -> str | None:
    """Return the GPU type that `job` holds; None if it waits, mixes types, or lost one of its nodes."""
    types = {nodes[node].gpu_type if node in nodes else None for node, _ in job.allocation.slots}
    return types.pop() if len(types) == 1 else None


class FreeNodes:
    """Free GPUs of each node, while allocations are taken out."""

    def __init__(self, nodes: Mapping[NodeId, Node]) -> None:
        self.gpus = {node.id: node.num_gpus for node in nodes.values()}

    def take(self, allocation: Allocation) -> bool:
        """Take `allocation` if all of it is free; return whether it was. Shared GPUs count as whole ones."""
        if any(self.gpus.get(node, 0) < count for node, count in allocation.slots):
            return False
        for node, count in allocation.slots:
            self.gpus[node] -= count
        return True


class Room:
    """The GPUs left to give, by type and by quota, and what was given so far.

    Frozen jobs that run keep what they hold from the start: nobody may move or resize them, nor (a tenant has
    no way to allow it yet) preempt them. They lose it only where the cluster or their quota shrank.

    counts: replicas given per job. gpu_types: the type they are of.
    """

    def __init__(self, view: ClusterView) -> None:
        self.counts: dict[JobId, int] = {}
        self.gpu_types: dict[JobId, str] = {}
        self._nodes = {node.id: node for node in view.nodes}
        self._unkept = FreeNodes(self._nodes)
        self._free: dict[str, int] = {}
        for node in view.nodes:
            self._free[node.gpu_type] = self._free.get(node.gpu_type, 0) + node.num_gpus
        self._largest = max(self._free.values(), default=0)
        self._quota_left = _quotas(view)
        for job in view.jobs:
            if job.spec.contract is RescaleContract.FROZEN:
                self.keep(job)

    def verdict(self, job: JobView, count: int) -> Verdict:
        """Return whether `job`, which has nothing yet, can be given `count` replicas (≥ 1)."""
        if job.spec.contract is RescaleContract.FROZEN and job.allocation:
            return Verdict.STRANDED
        if count > self._largest:
            return Verdict.TOO_LARGE
        if count > self.quota_left(job):
            return Verdict.QUOTA
        return Verdict.FITS if self._type_for(job, count) is not None else Verdict.BUSY

    def keep(self, job: JobView) -> bool:
        """Give `job`, which has nothing yet, what it holds now; return whether it may keep it."""
        count, limits = job.allocation.num_replicas, job.spec.replicas
        gpu_type = gpu_type_held(job, self._nodes)
        if gpu_type is None or count > min(self._free[gpu_type], self.quota_left(job)):
            return False
        if not limits.min <= count <= limits.max or not self._unkept.take(job.allocation):
            return False
        self._book(job, count, gpu_type)
        return True

    def give(self, job: JobView, count: int) -> bool:
        """Give `count` replicas to `job`, all or nothing; return whether it got them.

        They are of the type that it holds if possible, else of the type with most free GPUs. Raises
        ValueError if the job has some already, or if `count` is outside `span(job)`.
        """
        low, high = span(job)
        if job.id in self.counts or not low <= count <= high:
            raise ValueError(f"job {job.id!r}: cannot give {count}, has {self.counts.get(job.id, 0)}")
        gpu_type = self._type_for(job, count)
        if gpu_type is None or self.verdict(job, count) is not Verdict.FITS:
            return False
        self._book(job, count, gpu_type)
        return True

    def grow(self, job: JobView) -> bool:
        """Give one more replica to `job`, which has some; return whether it got it."""
        count, gpu_type = self.counts[job.id], self.gpu_types[job.id]
        if count >= span(job)[1] or self._free[gpu_type] < 1 or self.quota_left(job) < 1:
            return False
        self._book(job, 1, gpu_type)
        return True

    def most_free(self) -> int:
        """Return the number of free GPUs of the type that has most of them."""
        return max(self._free.values(), default=0)

    def quota_left(self, job: JobView) -> float:
        """Return how many more GPUs the tenant of `job` may hold; infinity if it has no quota."""
        return self._quota_left.get(job.spec.tenant.id, float("inf"))

    def _type_for(self, job: JobView, count: int) -> str | None:
        held = gpu_type_held(job, self._nodes)
        if held is not None and self._free[held] >= count:
            return held
        roomiest = max(self._free, key=self._free.__getitem__, default=None)
        return roomiest if roomiest is not None and self._free[roomiest] >= count else None

    def _book(self, job: JobView, count: int, gpu_type: str) -> None:
        self.counts[job.id] = self.counts.get(job.id, 0) + count
        self.gpu_types[job.id] = gpu_type
        self._free[gpu_type] -= count
        tenant = job.spec.tenant.id
        if tenant in self._quota_left:
            self._quota_left[tenant] -= count


def _quotas(view: ClusterView) -> dict[str, int]:
    """Return the quota of each tenant that has one; the smallest where its jobs disagree (as check_plan)."""
    quotas: dict[str, int] = {}
    for job in view.jobs:
        tenant = job.spec.tenant
        if tenant.quota_gpus is not None:
            quotas[tenant.id] = min(tenant.quota_gpus, quotas.get(tenant.id, tenant.quota_gpus))
    return quotas
