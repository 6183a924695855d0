"""The view of a policy: the cluster at the start of a round, the current allocations of
its jobs, and the update of a view from what changed.
"""

# Why the current allocations are updated, and not collected again.
#
# In a round of a large cluster a few jobs come, end or change, and hundreds go on as
# they were. The scheduler gives the few changed jobs to a JobViews. The current
# allocations of all jobs are then copies of mappings, which cost a hundredth of looking
# at each job. A policy that leaves most jobs alone plans from them, and `check_plan`
# checks only jobs whose planned allocation is not the same object as the current one.
#
# A view that was made in another way (by a test, or of a part of the cluster) collects
# its current allocations at the first use.

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from coadapt.model.batch import BatchConfig
from coadapt.model.cluster import (
    NO_GRANT,
    Allocation,
    Grant,
    Inventory,
    JobId,
    Node,
    inventory,
)
from coadapt.model.devices import FreeGpus, holding
from coadapt.model.job import JobSpec, ReplicaLimits, RescaleContract
from coadapt.model.measured import Measured, Usage
from coadapt.model.tenant import Tenant, TenantId, quotas_of, unconfigured


@dataclass(frozen=True, slots=True, kw_only=True)
class JobView:
    """One active job, as a policy sees it. It has no reference to live state: it can be
    pickled and kept.
    """

    id: JobId
    spec: JobSpec
    submitted_at: float
    grant: Grant = NO_GRANT
    """What the last order gave it; nothing if it waits or is being stopped."""
    measured: Measured = field(default_factory=Measured)
    """What its training reported."""
    usage: Usage = field(default_factory=Usage)
    """What it used until what it holds changed last; `ClusterView.service_gpu_s` counts
    up to the view.
    """
    rescale_s: float = 30.0
    """Mean cost of its starts and rescales, s; the cluster's default before one was
    measured.
    """
    num_gpus_held: float = 0.0
    """GPUs that it holds since `usage` was booked; while an order is unanswered, both
    the previous and the ordered ones.
    """

    @property
    def allocation(self) -> Allocation:
        """The GPUs that the job holds, as policies count them."""
        return self.grant.allocation


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterView:
    """The cluster at instant `at` (s): live nodes by id, and active jobs by
    (submitted_at, id).
    """

    at: float
    nodes: tuple[Node, ...]
    jobs: tuple[JobView, ...]
    tenants: Mapping[TenantId, Tenant] = field(default_factory=dict)
    """The tenants that the operator configured; ask `tenant` for any other."""
    _current: object = field(init=False, compare=False, repr=False, default=None)
    """The result of `current_allocations`; None before its first call."""

    @property
    def num_gpus(self) -> int:
        return sum(node.num_gpus for node in self.nodes)

    @property
    def inventory(self) -> Inventory:
        """What follows from the nodes alone."""
        return inventory(self.nodes)

    def service_gpu_s(self, job: JobView) -> float:
        """Return the GPU-seconds that `job` has held so far, up to the instant of this
        view.
        """
        usage = job.usage
        held_s = max(self.at - usage.accounted_at, 0.0)
        return usage.attained_service_gpu_s + job.num_gpus_held * held_s

    def tenant(self, tenant: TenantId) -> Tenant:
        """Return the settings of `tenant`; the default is weight 1 and no quota."""
        return self.tenants.get(tenant) or unconfigured(tenant)

    def quotas(self) -> dict[TenantId, int]:
        """Return the GPUs that each tenant with a quota may hold."""
        return quotas_of(self.tenants.values())


class CurrentAllocations(NamedTuple):
    """The current allocations of a view's jobs, as policies count them. Read-only.

    jobs: all jobs of the view. allocations: those within the job's limits, on live
    nodes of one GPU type that the job allows. batches: the batches that were dictated
    to these jobs. free: the GPUs that they leave. unlike_requested: jobs that hold
    another number of GPUs than they requested. frozen: jobs that may not be rescaled,
    in the view's order.
    """

    jobs: Mapping[JobId, JobView]
    allocations: Mapping[JobId, Allocation]
    batches: Mapping[JobId, BatchConfig]
    free: FreeGpus
    unlike_requested: frozenset[JobId]
    frozen: Sequence[JobView]


_Held = tuple[
    Mapping[JobId, Allocation], Mapping[JobId, BatchConfig], FreeGpus, frozenset[JobId]
]


class JobViews:
    """The active jobs as policies see them, by (submitted_at, id)."""

    def __init__(self, nodes: tuple[Node, ...], jobs: Iterable[JobView] = ()) -> None:
        self.views: dict[JobId, JobView] = {}
        self._nodes = nodes
        self._late = False
        self._allocations: dict[JobId, Allocation] = {}
        self._batches: dict[JobId, BatchConfig] = {}
        self._unlike_requested: set[JobId] = set()
        self._frozen: dict[JobId, JobView] = {}
        self._free = FreeGpus(nodes)
        self._by_id = inventory(nodes).by_id
        # The last result, None after an allocation has changed.
        self._current: _Held | None = None
        for job in jobs:
            self.put(job)

    def put(self, job: JobView) -> None:
        """Add a job, or replace the view of a known one."""
        before = self.views.get(job.id)
        if before is job:
            return
        last = next(reversed(self.views.values()), None) if before is None else None
        self._late |= last is not None and _place(job) < _place(last)
        if before is None or before.grant is not job.grant:
            self._let_go(before)
            self._hold(job)
        self.views[job.id] = job
        if job.spec.contract is RescaleContract.FROZEN:
            self._frozen[job.id] = job

    def drop(self, job: JobId) -> None:
        """Remove a job, if it is known."""
        self._let_go(self.views.pop(job, None))
        self._frozen.pop(job, None)

    def renew(self, nodes: tuple[Node, ...], jobs: Iterable[JobId]) -> None:
        """Replace the nodes. jobs: those that may hold GPUs of a node that was added or
        removed.
        """
        there = [self.views[job] for job in jobs if job in self.views]
        for job in there:
            self._let_go(job)
        self._nodes = nodes
        self._by_id = inventory(nodes).by_id
        self._current = None
        self._free.renew(nodes)
        for job in there:
            self._hold(job)

    def view(self, at: float, tenants: Mapping[TenantId, Tenant]) -> ClusterView:
        """Return the view of this moment; later changes do not affect it."""
        current = self.current()
        jobs = tuple(current.jobs.values())
        view = ClusterView(at=at, nodes=self._nodes, jobs=jobs, tenants=tenants)
        object.__setattr__(view, "_current", current)
        return view

    def current(self) -> CurrentAllocations:
        """Return the current allocations of the jobs."""
        if self._late:
            self.views = {
                each.id: each for each in sorted(self.views.values(), key=_place)
            }
            self._late = False
        if self._current is None:
            held = self._allocations.copy()
            unlike = frozenset(self._unlike_requested)
            self._current = held, self._batches.copy(), self._free.copy(), unlike
        frozen = sorted(self._frozen.values(), key=_place)
        return CurrentAllocations(self.views.copy(), *self._current, frozen)

    def _hold(self, job: JobView) -> None:
        allocation = job.grant.allocation
        if allocation.slots and self._may_keep(job.spec.replicas, allocation):
            self._current = None
            self._allocations[job.id] = allocation
            self._free.take_allocation(allocation)
            if allocation.num_replicas != job.spec.replicas.requested:
                self._unlike_requested.add(job.id)
            if job.grant.batch is not None:
                self._batches[job.id] = job.grant.batch

    def _let_go(self, job: JobView | None) -> None:
        if job is not None and job.id in self._allocations:
            self._current = None
            self._free.give(holding(self._allocations.pop(job.id)))
            self._batches.pop(job.id, None)
            self._unlike_requested.discard(job.id)

    def _may_keep(self, limits: ReplicaLimits, held: Allocation) -> bool:
        types = {
            self._by_id[node].gpu_type if node in self._by_id else None
            for node, _ in held.slots
        }
        gpu_type = types.pop()
        alike = not types and gpu_type is not None and limits.allows_type(gpu_type)
        return alike and limits.min <= held.num_replicas <= limits.max


def current_allocations(view: ClusterView) -> CurrentAllocations:
    """Return the current allocations of the jobs of `view`; computed once."""
    if view._current is None:  # a field of the view that only this file fills
        object.__setattr__(view, "_current", JobViews(view.nodes, view.jobs).current())
    known = view._current  # as above
    assert isinstance(known, CurrentAllocations)
    return known


def _place(job: JobView) -> tuple[float, JobId]:
    return (job.submitted_at, job.id)
