"""Dominant resource fairness (Ghodsi et al., NSDI 2011), with the GPU types as
resources.
"""

from collections.abc import Mapping
from typing import ClassVar

from coadapt.model import ClusterView, JobId, JobView, Plan, TenantId, gpus_by_type
from coadapt.policies.allocation.capacity import Capacity, span
from coadapt.policies.allocation.counted_plan import counted_plan
from coadapt.policies.allocation.progressive_filling import fill
from coadapt.policies.allocation.queue import by_priority
from coadapt.policies.allocation.reasons import waits
from coadapt.policies.base import PolicyCard


class Drf:
    """DRF gives each next GPU to the tenant with the smallest dominant share per
    weight. Jobs do not take turns.

    A tenant's dominant share is the largest of its shares of the GPU types. Within a
    tenant, jobs without GPUs come first, in order of priority and submission, then the
    job with the smallest dominant share. The first step of a gang is its fewest
    replicas. skip: whether a job that does not fit is passed over; otherwise it ends
    the round, as in some implementations.
    """

    card: ClassVar[PolicyCard] = PolicyCard(
        paper="Ghodsi et al., DRF, NSDI 2011", decides="GPU counts"
    )

    def __init__(self, *, skip: bool = True) -> None:
        self._skip = skip

    def allocate(self, view: ClusterView) -> Plan:
        capacity = Capacity(view)
        pools = gpus_by_type(view.nodes)

        def dominant(held: Mapping[str, int]) -> float:
            return max(
                (count / pools[name] for name, count in held.items()), default=0.0
            )

        def of_tenant(tenant: TenantId) -> float:
            return dominant(capacity.held_by(tenant)) / view.tenant(tenant).weight

        def of_job(job: JobView) -> float:
            count = capacity.counts.get(job.id, 0)
            return count / pools[capacity.gpu_types[job.id]] if count else 0.0

        fill(by_priority(view, view.jobs), capacity, of_tenant, of_job, skip=self._skip)
        notes: dict[JobId, str] = {}
        for job in view.jobs:
            share = dominant(capacity.held_by(job.spec.tenant))
            note = f"the dominant share of tenant {job.spec.tenant} is {share:.0%}"
            notes[job.id] = (
                note
                if job.id in capacity.counts
                else waits(job, span(job)[0], capacity, note)
            )
        return counted_plan(view, capacity, notes)
