"""What may lawfully be given in one round: GPUs by type, tenants' quotas, jobs' limits.
It decides nothing.

A policy that gives through a Capacity, and places with pack, gives a lawful plan on any
view.
"""

from collections import defaultdict
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
from coadapt.model.view import CurrentAllocations, current_allocations


class Verdict(StrEnum):
    """Whether a job can get a number of GPUs now; if not, what is in the way."""

    FITS = "fits"
    BUSY = "busy"  # not enough GPUs are free
    QUOTA = "quota"  # its tenant may not hold as many
    TOO_LARGE = (
        "too_large"  # no GPU type of the present cluster that it allows has as many
    )
    # frozen, and the GPUs that it holds are no longer all there: it must stop first
    STRANDED = "stranded"


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
    """Return `span`, its most cut to what the job's batch can feed where a policy
    leaves that batch alone.

    Each replica needs its smallest share of the requested batch.
    """
    low, high = span(job)
    batch = limits_in_use(job)
    return low, max(min(high, batch.requested // batch.min_atomic), low)


def gpu_type_held(job: JobView, nodes: Mapping[NodeId, Node]) -> str | None:
    """Return the GPU type that `job` holds; None if it waits, mixes types, or lost one
    of its nodes.
    """
    slots = job.grant.allocation.slots
    if len(slots) == 1:  # nearly always, and asked for every job in every round
        node = nodes.get(slots[0][0])
        return None if node is None else node.gpu_type
    types = {nodes[node].gpu_type if node in nodes else None for node, _ in slots}
    return types.pop() if len(types) == 1 else None


class FreeNodes:
    """Free GPUs of each node, while allocations are taken out; shared ones by their
    labels.
    """

    def __init__(self, nodes: Mapping[NodeId, Node] | tuple[Node, ...]) -> None:
        self._free = FreeGpus(nodes if isinstance(nodes, tuple) else nodes.values())
        self.gpus: Mapping[NodeId, int] = self._free.whole

    def num_new(self, allocation: Allocation) -> int:
        """Return how many GPUs `allocation` needs of which nothing is taken yet."""
        if not allocation.shared:
            return allocation.num_replicas
        return self._free.num_new(holding(allocation))

    def take(self, allocation: Allocation) -> bool:
        """Take `allocation` if all of it is free; return whether it was."""
        if (
            not allocation.shared
        ):  # nearly always, and asked for every job in every round
            whole = self._free.whole
            slots = allocation.slots
            for node, count in slots:
                if whole.get(node, 0) < count:
                    return False
            for node, count in slots:
                whole[node] -= count
            return True
        wanted = holding(allocation)
        if not self._free.fits(wanted):
            return False
        self._free.take(wanted)
        return True


def _no_gpus() -> defaultdict[str, int]:
    return defaultdict(int)


class Capacity:
    """The GPUs left to give, by type and by quota, and what was given so far.

    Frozen jobs that run keep their allocations: they may not be rescaled, and a tenant
    cannot yet allow them to be preempted. They lose GPUs only if the cluster or their
    quota shrank.

    counts: replicas given per job. gpu_types: the type they are of. A job that shares
    GPUs may keep them; new GPUs are whole ones (gpu_sharing.py places the others).
    """

    def __init__(self, view: ClusterView) -> None:
        self.counts: dict[JobId, int] = {}
        self.gpu_types: dict[JobId, str] = {}
        self._inventory = view.inventory
        self._unkept = FreeNodes(view.nodes)
        self._free = dict(self._inventory.by_type)
        self._quotas = view.quotas()
        self._quota_left: dict[str, float] = dict(self._quotas)
        self._sharing: set[JobId] = set()
        self._held_by: defaultdict[TenantId, defaultdict[str, int]] = defaultdict(
            _no_gpus
        )
        for job in current_allocations(view).frozen:
            self.keep(job)

    def verdict(self, job: JobView, count: int) -> Verdict:
        """Return whether `job`, which has nothing yet, can be given `count` replicas (≥
        1).
        """
        if self._is_stranded(job):
            return Verdict.STRANDED
        if count > max(self._of_types(job, self._inventory.by_type), default=0):
            return Verdict.TOO_LARGE
        if count > self.quota_left(job):
            return Verdict.QUOTA
        return Verdict.FITS if self._type_for(job, count) is not None else Verdict.BUSY

    def keep(self, job: JobView) -> bool:
        """Give `job`, which has nothing yet, what it holds now; return whether it may
        keep it.
        """
        held = job.grant.allocation
        limits = job.spec.replicas
        slots = held.slots
        if not slots:
            return False
        count = held.num_replicas
        gpu_type = gpu_type_held(job, self._inventory.by_id)
        if (
            gpu_type is None
            or not limits.min <= count <= limits.max
            or not limits.allows_type(gpu_type)
        ):
            return False
        num_new = self._unkept.num_new(held) if held.shared else count
        if num_new > self._free[gpu_type] or (
            self._quotas and held.num_gpus > self.quota_left(job)
        ):
            return False
        if not self._unkept.take(held):
            return False
        self._book(job, count, gpu_type)
        if held.shared:
            self._sharing.add(job.id)
            self._free[gpu_type] += count - num_new
            self._give_back_quota(job, count - held.num_gpus)
        return True

    def keep_all(self, held: CurrentAllocations) -> bool:
        """Give all jobs at once what they hold; return False, and give nothing, where
        it takes a closer look.

        It does where other things were given before, GPUs are shared, or tenants have
        quotas. Until the round is over `keep` and `held_by` count without what was
        given so.
        """
        whole = held.free.whole
        if self._quotas or held.free.parts or min(whole.values(), default=0) < 0:
            return False
        if not self.counts.keys() <= held.allocations.keys():
            return False
        self.counts.update(
            {job_id: each.num_replicas for job_id, each in held.allocations.items()}
        )
        for gpu_type, racks in self._inventory.groups.items():
            self._free[gpu_type] = sum(
                [whole[node] for rack in racks.values() for _, node in rack]
            )
        return True

    def give(self, job: JobView, count: int, gpu_type: str | None = None) -> bool:
        """Give `count` replicas of `gpu_type` to `job`, all or nothing; return whether
        it got them.

        None: of the type that it holds if possible, else of the type with most free
        GPUs. Raises ValueError if the job has some already, or if `count` is outside
        `span(job)`.
        """
        limits = job.spec.replicas
        frozen = job.spec.contract is RescaleContract.FROZEN
        low, high = span(job) if frozen else (limits.min, limits.max)
        if job.id in self.counts or not low <= count <= high:
            raise ValueError(
                f"job {job.id!r}: cannot give {count}, has {self.counts.get(job.id, 0)}"
            )
        if gpu_type is None:
            gpu_type = self._type_for(job, count)
        elif not limits.allows_type(gpu_type) or self._free.get(gpu_type, 0) < count:
            return False
        # Where a type has room, the verdict can only be one of these two.
        if (
            gpu_type is None
            or (frozen and job.allocation)
            or (self._quotas and count > self.quota_left(job))
        ):
            return False
        self._book(job, count, gpu_type)
        return True

    def grow(self, job: JobView, by: int = 1) -> bool:
        """Give `by` more replicas to `job`, which has some, all or nothing; return
        whether it got them.

        One that keeps its share of GPUs does not: it would need whole ones in their
        place.
        """
        gpu_type = self.gpu_types[job.id]
        if self._free[gpu_type] < by or self.counts[job.id] + by > self.most(job):
            return False
        if self._quotas and self.quota_left(job) < by:
            return False
        self._book(job, by, gpu_type)
        return True

    def most(self, job: JobView) -> int:
        """Return how many replicas `job`, which has some, may grow to where GPUs and
        its quota allow it.
        """
        return self.counts[job.id] if job.id in self._sharing else span(job)[1]

    def most_free(self, job: JobView) -> int:
        """Return the number of free GPUs of the type, of those that `job` allows, that
        has most of them.
        """
        return max(self._of_types(job, self._free), default=0)

    def free(self) -> dict[str, int]:
        """Return how many GPUs of each type are left."""
        return self._free.copy()

    def held_by(self, tenant: TenantId) -> Mapping[str, int]:
        """Return how many replicas of each GPU type the jobs of `tenant` were given so
        far.
        """
        return self._held_by.get(tenant, {})

    def quota(self, job: JobView) -> int | None:
        """Return the most GPUs that the tenant of `job` may hold; None if it has no
        quota.
        """
        return self._quotas.get(job.spec.tenant)

    def quota_left(self, job: JobView) -> float:
        """Return how many more GPUs the tenant of `job` may hold; infinity if it has no
        quota.
        """
        return self._quota_left.get(job.spec.tenant, float("inf"))

    def _is_stranded(self, job: JobView) -> bool:
        return job.spec.contract is RescaleContract.FROZEN and bool(job.allocation)

    def _type_for(self, job: JobView, count: int) -> str | None:
        allowed = job.spec.replicas.gpu_types
        held = (
            gpu_type_held(job, self._inventory.by_id)
            if job.grant.allocation.slots
            else None
        )
        if (
            held is not None
            and (not allowed or held in allowed)
            and self._free[held] >= count
        ):
            return held
        roomiest = None
        most = count - 1
        for gpu_type, free in self._free.items():
            if free > most and (not allowed or gpu_type in allowed):
                roomiest = gpu_type
                most = free
        return roomiest

    def _of_types(self, job: JobView, by_type: Mapping[str, int]) -> list[int]:
        """Return the numbers of `by_type` for the types that `job` allows."""
        return [
            count
            for name, count in by_type.items()
            if job.spec.replicas.allows_type(name)
        ]

    def _book(self, job: JobView, count: int, gpu_type: str) -> None:
        job_id = job.id
        self.counts[job_id] = self.counts.get(job_id, 0) + count
        self.gpu_types[job_id] = gpu_type
        self._free[gpu_type] -= count
        tenant = job.spec.tenant
        self._held_by[tenant][gpu_type] += count
        if self._quotas and tenant in self._quota_left:
            self._quota_left[tenant] -= count

    def _give_back_quota(self, job: JobView, gpus: float) -> None:
        if job.spec.tenant in self._quota_left:
            self._quota_left[job.spec.tenant] += gpus
