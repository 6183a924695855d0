"""What may lawfully be given in one round: GPUs by type, tenants' quotas, jobs' limits. It decides nothing.

A policy that gives through a Capacity, and places with pack, gives a lawful plan on any view.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping
from enum import StrEnum

from coadapt.goodput.batch import limits_in_use
from coadapt.model import (
    Allocation,
    ClusterView,
    FreeGpus,
    JobId,
    JobView,
    Node,
    NodeId,
    RescaleContract,
    TenantId,
    holding,
)


class Verdict(StrEnum):
    """Whether a job can get a number of GPUs now; if not, what is in the way."""

    FITS = "fits"
    BUSY = "busy"  # not enough GPUs are free
    QUOTA = "quota"  # its tenant may not hold as many
    TOO_LARGE = "too_large"  # no GPU type of the present cluster that it allows has as many
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


def useful_span(job: JobView) -> tuple[int, int]:
    """Return `span`, its most cut to what the job's batch can feed where a policy leaves that batch alone.

    Each replica needs its smallest share of the requested batch.
    """
    low, high = span(job)
    batch = limits_in_use(job)
    return low, max(min(high, batch.requested // batch.min_atomic), low)


def gpu_type_held(job: JobView, nodes: Mapping[NodeId, Node]) -> str | None:
    """Return the GPU type that `job` holds; None if it waits, mixes types, or lost one of its nodes."""
    slots = job.allocation.slots
    if len(slots) == 1:  # nearly always, and asked for every job in every round
        node = nodes.get(slots[0][0])
        return None if node is None else node.gpu_type
    types = {nodes[node].gpu_type if node in nodes else None for node, _ in slots}
    return types.pop() if len(types) == 1 else None


class FreeNodes:
    """Free GPUs of each node, while allocations are taken out; shared ones by their labels."""

    def __init__(self, nodes: Mapping[NodeId, Node]) -> None:
        self._free = FreeGpus(nodes.values())
        self.gpus: Mapping[NodeId, int] = self._free.whole

    def num_new(self, allocation: Allocation) -> int:
        """Return how many GPUs `allocation` needs of which nothing is taken yet."""
        if not allocation.shared:
            return allocation.num_replicas
        return self._free.num_new(holding(allocation))

    def take(self, allocation: Allocation) -> bool:
        """Take `allocation` if all of it is free; return whether it was."""
        if not allocation.shared:  # nearly always, and asked for every job in every round
            whole = self._free.whole
            if any(whole.get(node, 0) < count for node, count in allocation.slots):
                return False
            for node, count in allocation.slots:
                whole[node] -= count
            return True
        wanted = holding(allocation)
        if not self._free.fits(wanted):
            return False
        self._free.take(wanted)
        return True


class Capacity:
    """The GPUs left to give, by type and by quota, and what was given so far.

    Frozen jobs that run keep what they hold from the start: nobody may rescale them, nor (a tenant has no way
    to allow it yet) preempt them. They lose it only where the cluster or their quota shrank.

    counts: replicas given per job. gpu_types: the type they are of. A job that shares GPUs may keep them;
    what is given anew are whole ones (sharing.py places the others).
    """

    def __init__(self, view: ClusterView) -> None:
        self.counts: dict[JobId, int] = {}
        self.gpu_types: dict[JobId, str] = {}
        self._nodes = {node.id: node for node in view.nodes}
        self._unkept = FreeNodes(self._nodes)
        self._free: dict[str, int] = {}
        for node in view.nodes:
            self._free[node.gpu_type] = self._free.get(node.gpu_type, 0) + node.num_gpus
        self._num_gpus = dict(self._free)
        self._quotas = view.quotas()
        self._quota_left: dict[str, float] = dict(self._quotas)
        self._sharing: set[JobId] = set()
        self._held_by: defaultdict[TenantId, Counter[str]] = defaultdict(Counter)
        for job in view.jobs:
            if job.spec.contract is RescaleContract.FROZEN:
                self.keep(job)

    def verdict(self, job: JobView, count: int) -> Verdict:
        """Return whether `job`, which has nothing yet, can be given `count` replicas (≥ 1)."""
        if self._is_stranded(job):
            return Verdict.STRANDED
        if count > max(self._of_types(job, self._num_gpus), default=0):
            return Verdict.TOO_LARGE
        if count > self.quota_left(job):
            return Verdict.QUOTA
        return Verdict.FITS if self._type_for(job, count) is not None else Verdict.BUSY

    def keep(self, job: JobView) -> bool:
        """Give `job`, which has nothing yet, what it holds now; return whether it may keep it."""
        held, limits = job.allocation, job.spec.replicas
        count, num_new = held.num_replicas, self._unkept.num_new(held)
        gpu_type = gpu_type_held(job, self._nodes)
        if gpu_type is None or num_new > self._free[gpu_type] or held.num_gpus > self.quota_left(job):
            return False
        if not (limits.min <= count <= limits.max and limits.allows_type(gpu_type)):
            return False
        if not self._unkept.take(held):
            return False
        self._book(job, count, gpu_type)
        if held.shared:
            self._sharing.add(job.id)
            self._free[gpu_type] += count - num_new
            self._give_back_quota(job, count - held.num_gpus)
        return True

    def give(self, job: JobView, count: int, gpu_type: str | None = None) -> bool:
        """Give `count` replicas of `gpu_type` to `job`, all or nothing; return whether it got them.

        None: of the type that it holds if possible, else of the type with most free GPUs. Raises ValueError
        if the job has some already, or if `count` is outside `span(job)`.
        """
        low, high = span(job)
        if job.id in self.counts or not low <= count <= high:
            raise ValueError(f"job {job.id!r}: cannot give {count}, has {self.counts.get(job.id, 0)}")
        if gpu_type is None:
            gpu_type = self._type_for(job, count)
        elif not job.spec.replicas.allows_type(gpu_type) or self._free.get(gpu_type, 0) < count:
            return False
        # Where a type has room, the verdict can only be one of these two.
        if gpu_type is None or self._is_stranded(job) or (self._quotas and count > self.quota_left(job)):
            return False
        self._book(job, count, gpu_type)
        return True

    def grow(self, job: JobView) -> bool:
        """Give one more replica to `job`, which has some; return whether it got it.

        One that keeps its share of GPUs does not: it would need whole ones in their place.
        """
        gpu_type = self.gpu_types[job.id]
        if self._free[gpu_type] < 1 or job.id in self._sharing or self.counts[job.id] >= span(job)[1]:
            return False
        if self._quotas and self.quota_left(job) < 1:
            return False
        self._book(job, 1, gpu_type)
        return True

    def most_free(self, job: JobView) -> int:
        """Return the number of free GPUs of the type, of those that `job` allows, that has most of them."""
        return max(self._of_types(job, self._free), default=0)

    def held_by(self, tenant: TenantId) -> Mapping[str, int]:
        """Return how many replicas of each GPU type the jobs of `tenant` were given so far."""
        return self._held_by.get(tenant, {})

    def quota(self, job: JobView) -> int | None:
        """Return the most GPUs that the tenant of `job` may hold; None if it has no quota."""
        return self._quotas.get(job.spec.tenant)

    def quota_left(self, job: JobView) -> float:
        """Return how many more GPUs the tenant of `job` may hold; infinity if it has no quota."""
        return self._quota_left.get(job.spec.tenant, float("inf"))

    def _is_stranded(self, job: JobView) -> bool:
        return job.spec.contract is RescaleContract.FROZEN and bool(job.allocation)

    def _type_for(self, job: JobView, count: int) -> str | None:
        held = gpu_type_held(job, self._nodes)
        if held is not None and job.spec.replicas.allows_type(held) and self._free[held] >= count:
            return held
        roomiest, most = None, count - 1
        for gpu_type, free in self._free.items():
            if free > most and job.spec.replicas.allows_type(gpu_type):
                roomiest, most = gpu_type, free
        return roomiest

    def _of_types(self, job: JobView, by_type: Mapping[str, int]) -> list[int]:
        """Return the numbers of `by_type` for the types that `job` allows."""
        return [count for name, count in by_type.items() if job.spec.replicas.allows_type(name)]

    def _book(self, job: JobView, count: int, gpu_type: str) -> None:
        self.counts[job.id] = self.counts.get(job.id, 0) + count
        self.gpu_types[job.id] = gpu_type
        self._free[gpu_type] -= count
        tenant = job.spec.tenant
        self._held_by[tenant][gpu_type] += count
        if tenant in self._quota_left:
            self._quota_left[tenant] -= count

    def _give_back_quota(self, job: JobView, gpus: float) -> None:
        if job.spec.tenant in self._quota_left:
            self._quota_left[job.spec.tenant] += gpus
