"""AntMan (Xiao et al., OSDI 2020): guaranteed jobs run as if they were alone,
opportunistic jobs use what these leave.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import ClassVar
from zlib import crc32

from coadapt.model import (
    Allocation,
    BatchConfig,
    ClusterView,
    FreeGpus,
    JobId,
    JobView,
    Node,
    NodeId,
    Plan,
    RescaleContract,
    TenantId,
    holding,
)
from coadapt.policies.allocation.capacity import Capacity
from coadapt.policies.allocation.counted_plan import requested_batch
from coadapt.policies.allocation.gpu_sharing import beside, fits_share
from coadapt.policies.allocation.queue import requested_gpus
from coadapt.policies.allocation.reasons import gets, waits
from coadapt.policies.base import PolicyCard

SHARERS = 2  # jobs on one GPU at most (Muri's copy of AntMan)
FULL = 840  # parts of a whole GPU, as FreeGpus counts them: no other job may join


@dataclass(slots=True)
class _Kept:
    """The state kept from round to round. If it is lost, so are the measured slowdowns,
    and which jobs were guaranteed first.

    alone_s: the allocation and the step time of a guaranteed job that shared no GPU.
    disturb: pairs of a guaranteed job and an opportunistic job that slowed it.
    disturb_as: the applications of such pairs, where they have names. held: the
    allocation of each job in the last view, and the jobs that shared its GPUs.
    """

    guaranteed: set[JobId] = field(default_factory=set)
    alone_s: dict[JobId, tuple[Allocation, float]] = field(default_factory=dict)
    disturb: set[tuple[JobId, JobId]] = field(default_factory=set)
    disturb_as: set[tuple[str, str]] = field(default_factory=set)
    held: dict[JobId, tuple[Allocation, frozenset[JobId]]] = field(default_factory=dict)


@dataclass(slots=True)
class _Round:
    """The state of one round's decision. free: free GPUs and shares. notes: a part of
    each job's reason.
    """

    view: ClusterView
    capacity: Capacity
    free: FreeGpus
    given: dict[JobId, Allocation] = field(default_factory=dict)
    notes: dict[JobId, str] = field(default_factory=dict)
    borrowed: dict[TenantId, int] = field(default_factory=dict)

    def put(self, job: JobView, allocation: Allocation) -> None:
        self.given[job.id] = allocation
        self.free.take(holding(allocation))


class AntMan:
    """Jobs within their tenant's part of the GPUs are guaranteed. The other jobs are
    opportunistic, and run on the GPUs that guaranteed jobs leave.

    tolerance: the slowdown of a guaranteed job from which on its company has to go.
    opportunistic: the part of jobs that are opportunistic whatever their tenant has,
    drawn by `seed`; those of a priority below 0 always are. share: whether jobs share
    GPUs at all. seed: of the draw.
    """

    card: ClassVar[PolicyCard] = PolicyCard(
        paper="Xiao et al., AntMan, OSDI 2020",
        decides="which jobs are guaranteed, their order, and which share GPUs",
    )

    def __init__(
        self,
        *,
        tolerance: float = 0.02,
        opportunistic: float = 0.0,
        share: bool = True,
        seed: int = 0,
    ) -> None:
        if not tolerance >= 0.0:
            raise ValueError(f"tolerance must be >= 0, got {tolerance}")
        if not 0.0 <= opportunistic <= 1.0:
            raise ValueError(f"opportunistic must be in 0..1, got {opportunistic}")
        self._tolerance = tolerance
        self._part = opportunistic
        self._share = share
        self._seed = seed
        self._kept = _Kept()

    def allocate(self, view: ClusterView) -> Plan:
        self._observe(view)
        now = _Round(view, Capacity(view), FreeGpus(view.nodes))
        for job in view.jobs:
            if job.id in now.capacity.counts:
                now.put(job, job.allocation)
                now.notes[job.id] = "it is frozen"
        order = sorted(view.jobs, key=lambda job: -job.spec.priority)
        self._guarantee(now, [job for job in order if job.id not in now.given])
        self._fill(now, [job for job in order if job.id not in now.given])
        return _plan(now)

    # -- introspection
    # ----------------------------------------------------------------------------------

    def _observe(self, view: ClusterView) -> None:
        """Record the step times of guaranteed jobs that share no GPU, and which jobs
        slowed a guaranteed job beside them.
        """
        kept = self._kept
        jobs = {job.id: job for job in view.jobs}
        kept.guaranteed &= set(jobs)
        kept.alone_s = {
            job: known for job, known in kept.alone_s.items() if job in jobs
        }
        kept.disturb = {pair for pair in kept.disturb if set(pair) <= jobs.keys()}
        on_gpu: dict[tuple[NodeId, int], set[JobId]] = {}
        for job in view.jobs:
            for gpu in job.allocation.shared_gpus():
                on_gpu.setdefault(gpu, set()).add(job.id)
        held = {}
        for job in view.jobs:
            company = set().union(
                *(on_gpu[gpu] for gpu in job.allocation.shared_gpus())
            ) - {job.id}
            held[job.id] = (job.allocation, frozenset(company))
            same = kept.held.get(job.id) == held[job.id]
            if (
                job.id not in kept.guaranteed
                or not same
                or not job.measured.step_time_s
            ):
                continue
            step_s = job.measured.step_time_s
            known = kept.alone_s.get(job.id)
            if not company:
                kept.alone_s[job.id] = (job.allocation, step_s)
            elif (
                known
                and known[0] == job.allocation
                and step_s > known[1] * (1.0 + self._tolerance)
            ):
                self._blame(job, [jobs[other] for other in sorted(company)])
        kept.held = held

    def _blame(self, job: JobView, company: list[JobView]) -> None:
        """Record that the jobs `company` slowed `job`, and the applications of both."""
        for other in company:
            self._kept.disturb.add((job.id, other.id))
            if job.spec.application and other.spec.application:
                self._kept.disturb_as.add(
                    (job.spec.application, other.spec.application)
                )

    # -- guaranteed jobs
    # ----------------------------------------------------------------------------------

    def _guarantee(self, now: _Round, order: list[JobView]) -> None:
        """Let guaranteed jobs keep their GPUs, then admit other jobs to the guarantee,
        in order of arrival within each tenant.
        """
        left = _parts(now.view)
        for job in order:
            if job.id in self._kept.guaranteed and self._keep(now, job):
                left[job.spec.tenant] -= requested_gpus(job)
        self._kept.guaranteed &= set(now.given)
        blocked: set[TenantId] = set()
        most = _parts(now.view)
        for job in order:
            count = requested_gpus(job)
            tenant = job.spec.tenant
            if (
                job.id in now.given
                or tenant in blocked
                or count > most[tenant]
                or self._marked(job)
            ):
                continue
            if count <= left[tenant] and (
                self._keep(now, job) or self._place_guaranteed(now, job, count)
            ):
                left[tenant] -= count
                self._kept.guaranteed.add(job.id)
            else:
                blocked.add(tenant)
        for job in order:
            if job.id in now.given:
                now.notes[job.id] = "it is guaranteed"

    def _marked(self, job: JobView) -> bool:
        """Return whether `job` is opportunistic even if its tenant has free guaranteed
        GPUs.
        """
        if job.spec.priority < 0:
            return True
        return crc32(f"{self._seed} {job.id}".encode()) < self._part * 2**32

    def _keep(self, now: _Round, job: JobView) -> bool:
        """Let `job` keep its allocation, if no job planned before uses these GPUs.
        Return whether it keeps it.
        """
        held = job.allocation
        alone = not any(gpu in now.free.parts for gpu in held.shared_gpus())
        if not held or held.num_replicas != requested_gpus(job) or not alone:
            return False
        if (
            not now.free.fits(holding(held))
            or not self._within_quota(now, job)
            or not now.capacity.keep(job)
        ):
            return False
        now.put(job, held)
        return True

    def _place_guaranteed(self, now: _Round, job: JobView, count: int) -> bool:
        """Give `job` GPUs that no guaranteed job uses: idle GPUs if there are enough,
        otherwise GPUs of opportunistic jobs too. Return whether there are enough.
        """
        if job.spec.contract is RescaleContract.FROZEN and job.allocation:
            return False
        idle = FreeGpus(now.view.nodes)
        idle.whole = dict(now.free.whole)
        for other in now.view.jobs:
            if other.id not in now.given:
                idle.take(holding(other.allocation))
        for rooms in (idle.whole, now.free.whole):
            slots = _fewest(job, count, now.view.nodes, rooms)
            if slots:
                break
        else:
            return False
        kind = next(node.gpu_type for node in now.view.nodes if node.id == slots[0][0])
        if not now.capacity.give(job, count, kind):
            return False
        now.put(
            job,
            self._shared(now, job, slots)
            if self._can_share(job)
            else Allocation(slots=slots),
        )
        return True

    def _can_share(self, job: JobView) -> bool:
        return self._share and fits_share(job, requested_gpus(job), SHARERS)

    def _shared(
        self, now: _Round, job: JobView, slots: tuple[tuple[NodeId, int], ...]
    ) -> Allocation:
        """Return an allocation of `slots` with labels that no other job has, neither in
        the plan nor in the view.
        """
        labels: list[int] = []
        for name, count in slots:
            held = [each.allocation for each in now.view.jobs if each.id != job.id]
            used = {
                label
                for each in (*held, *now.given.values())
                for label in each.labels_on(name)
            }
            labels += [
                label for label in range(count + len(used)) if label not in used
            ][:count]
        return Allocation(slots=slots, gpu_share=1.0 / SHARERS, shared=tuple(labels))

    # -- opportunistic jobs
    # ---------------------------------------------------------------------------------

    def _fill(self, now: _Round, order: list[JobView]) -> None:
        """Let the other jobs run where they slow no guaranteed job: where they are, on
        idle GPUs, or beside guaranteed jobs.
        """
        note = (
            "it is opportunistic: it may have to go when guaranteed jobs need its GPUs"
        )
        for job in order:
            if self._keep(now, job) or self._stay_beside(now, job):
                now.notes[job.id] = note
        for job in order:
            count = requested_gpus(job)
            if job.id in now.given:
                continue
            if self._on_idle(now, job, count) or self._beside_guaranteed(
                now, job, count
            ):
                now.notes[job.id] = note
            else:
                ahead = "guaranteed jobs go first, and slow company has to go"
                now.notes[job.id] = waits(job, count, now.capacity, ahead)

    def _stay_beside(self, now: _Round, job: JobView) -> bool:
        """Let `job` stay beside the guaranteed jobs with which it shares GPUs, if it
        slows none of them. Return whether it stays.
        """
        held = job.allocation
        count = requested_gpus(job)
        if (
            held.num_sharers != SHARERS
            or held.num_replicas != count
            or not self._within_quota(now, job)
        ):
            return False
        company = self._company(now, held)
        if not all(self._bears(other, job.id) for other in company):
            return False
        if not now.free.fits(holding(held)) or not _lawful(job, held, now.view.nodes):
            return False
        self._borrow(now, job, held)
        return True

    def _bears(self, other: JobId, job: JobId) -> bool:
        """Return whether `other` is guaranteed and has not been slowed by `job`."""
        return other in self._kept.guaranteed and (other, job) not in self._kept.disturb

    def _on_idle(self, now: _Round, job: JobView, count: int) -> bool:
        if job.spec.contract is RescaleContract.FROZEN and job.allocation:
            return False
        slots = _fewest(job, count, now.view.nodes, now.free.whole)
        if not slots:
            return False
        kind = next(node.gpu_type for node in now.view.nodes if node.id == slots[0][0])
        if not self._within_quota(now, job) or not now.capacity.give(job, count, kind):
            return False
        now.put(
            job,
            self._shared(now, job, slots)
            if self._can_share(job)
            else Allocation(slots=slots),
        )
        return True

    def _beside_guaranteed(self, now: _Round, job: JobView, count: int) -> bool:
        """Put `job` on GPUs of guaranteed jobs whose step time alone is known, and on
        idle GPUs for the rest. Return whether there is room.
        """
        if not self._can_share(job) or not self._within_quota(now, job):
            return False
        jobs = {each.id: each for each in now.view.jobs}
        open_to = {
            gpu
            for other, allocation in now.given.items()
            if self._open(jobs[other], allocation, job)
            for gpu in allocation.shared_gpus()
        }
        closed = FreeGpus(now.view.nodes)
        closed.whole = dict(now.free.whole)
        closed.parts = {
            gpu: parts if gpu in open_to else max(parts, FULL)
            for gpu, parts in now.free.parts.items()
        }
        place = beside(job, count, SHARERS, now.view.nodes, closed)
        if place is None:
            return False
        self._borrow(now, job, place)
        return True

    def _open(self, other: JobView, allocation: Allocation, job: JobView) -> bool:
        """Return whether the guaranteed job `other` may share the GPUs of `allocation`
        with `job`.
        """
        known = self._kept.alone_s.get(other.id)
        if (
            other.id not in self._kept.guaranteed
            or known is None
            or known[0] != allocation
        ):
            return False
        alike = (other.spec.application, job.spec.application) in self._kept.disturb_as
        return not alike and (other.id, job.id) not in self._kept.disturb

    def _company(self, now: _Round, held: Allocation) -> Iterator[JobId]:
        gpus = set(held.shared_gpus())
        return (
            other for other, each in now.given.items() if gpus & set(each.shared_gpus())
        )

    def _within_quota(self, now: _Round, job: JobView) -> bool:
        """Return whether the tenant's quota allows `job`. GPUs that the tenant's jobs
        share with guaranteed jobs count as whole GPUs.
        """
        borrowed = now.borrowed.get(job.spec.tenant, 0)
        return borrowed + requested_gpus(job) <= now.capacity.quota_left(job)

    def _borrow(self, now: _Round, job: JobView, place: Allocation) -> None:
        tenant = job.spec.tenant
        now.borrowed[tenant] = now.borrowed.get(tenant, 0) + place.num_replicas
        now.put(job, place)


def _parts(view: ClusterView) -> dict[TenantId, float]:
    """Return the number of GPUs that is guaranteed to each tenant with jobs: its part
    by weight, at most its quota.
    """
    weights = {
        job.spec.tenant: view.tenant(job.spec.tenant).weight for job in view.jobs
    }
    quotas = view.quotas()
    whole = sum(weights.values())
    return {
        tenant: min(view.num_gpus * weight / whole + 1e-9, quotas.get(tenant, math.inf))
        for tenant, weight in sorted(weights.items())
    }


def _lawful(job: JobView, held: Allocation, nodes: tuple[Node, ...]) -> bool:
    kinds = {node.id: node.gpu_type for node in nodes}
    limits = job.spec.replicas
    types = {kinds.get(name, "") for name, _ in held.slots}
    return len(types) == 1 and "" not in types and limits.allows_type(types.pop())


def _fewest(
    job: JobView, count: int, nodes: tuple[Node, ...], rooms: dict[NodeId, int]
) -> tuple[tuple[NodeId, int], ...]:
    """Return `count` GPUs of one type. rooms: the free GPUs by node. They are on one
    node if possible, the one with the least room, or else in one rack if possible.
    Empty if there are too few.
    """
    allowed = [node for node in nodes if job.spec.replicas.allows_type(node.gpu_type)]
    for kind in sorted({node.gpu_type for node in allowed}):
        pool = [
            node for node in allowed if node.gpu_type == kind and rooms[node.id] > 0
        ]
        single = [node for node in pool if rooms[node.id] >= count]
        if single:
            return (
                (min(single, key=lambda node: (rooms[node.id], node.id)).id, count),
            )
    for kind in sorted({node.gpu_type for node in allowed}):
        pool = [
            node for node in allowed if node.gpu_type == kind and rooms[node.id] > 0
        ]
        racks = [
            [node for node in pool if node.rack == rack]
            for rack in sorted({n.rack for n in pool})
        ]
        for group in (*racks, pool):
            slots = []
            left = count
            for node in sorted(group, key=lambda node: (-rooms[node.id], node.id)):
                taken = min(rooms[node.id], left)
                slots += [(node.id, taken)] if taken else []
                left -= taken
            if not left:
                return tuple(slots)
    return ()


def _plan(now: _Round) -> Plan:
    reasons: dict[JobId, str] = {}
    batches: dict[JobId, BatchConfig] = {}
    names = {job.id: job.spec.name for job in now.view.jobs}
    for job in now.view.jobs:
        given = now.given.get(job.id)
        note = now.notes.get(job.id, "")
        if given is None:
            reasons[job.id] = note
            continue
        gpus = set(given.shared_gpus())
        company = [
            names[other]
            for other, each in sorted(now.given.items())
            if other != job.id and gpus & set(each.shared_gpus())
        ]
        beside_whom = f", and shares GPUs with {', '.join(company)}" if company else ""
        reasons[job.id] = f"{gets(job, given)}; {note}{beside_whom}"
        batch = requested_batch(job, given.num_replicas)
        if batch is not None:
            batches[job.id] = batch
    return Plan(allocations=now.given, batches=batches, reasons=reasons)
