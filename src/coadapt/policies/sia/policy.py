"""Sia (Jayaram Subramanya et al., SOSP 2023): which GPU type and how many of it, for
all jobs at once.
"""

from dataclasses import dataclass
from typing import ClassVar

from coadapt.model import Allocation, ClusterView, JobId, JobView, Plan, RescaleContract
from coadapt.policies.allocation.capacity import Capacity, FreeNodes, gpu_type_held
from coadapt.policies.allocation.reasons import gets, waits
from coadapt.policies.base import PolicyCard
from coadapt.policies.sia.explain import Decision, explain
from coadapt.policies.sia.objective import (
    SiaOptions,
    configurations,
    costs,
    held,
    least_gpus,
    values,
)
from coadapt.policies.sia.placing import place
from coadapt.policies.sia.solve import Room, choose


@dataclass(frozen=True, kw_only=True)
class Sia(SiaOptions):
    """Gives each job a GPU type and a count by an integer programme over normalised
    goodput. Stateless.

    Options as in SiaOptions. Adaptive jobs pick their own batch. `plan.diagnostics`:
    objective (what the programme's optimum pays, less what queueing all jobs would),
    bound, and gap = objective - bound.
    """

    card: ClassVar = PolicyCard(
        paper="Jayaram Subramanya et al., Sia, SOSP 2023",
        decides="GPU types and counts",
        needs_scipy=True,
    )

    def allocate(self, view: ClusterView) -> Plan:
        """Return the plan of this round."""
        capacity = Capacity(view)
        kept = {
            job.id: job.allocation for job in view.jobs if job.id in capacity.counts
        }
        free = FreeNodes({node.id: node for node in view.nodes})
        for allocation in kept.values():
            free.take(allocation)
        jobs = [job for job in view.jobs if job.id not in kept and not _stranded(job)]
        configs = configurations(view.nodes, jobs)
        worth = values(jobs, configs, self)
        room = Room(
            gpus=_by_type(view, free),
            quotas={
                job.spec.tenant: capacity.quota_left(job)
                for job in jobs
                if capacity.quota(job) is not None
            },
            tenant_J=[job.spec.tenant for job in jobs],
        )
        choice = choose(
            costs(view, jobs, configs, worth.value_JC, self), configs, room, self.gap
        )
        chosen = {
            job.id: column
            for job, column in zip(jobs, choice.config_J, strict=True)
            if column >= 0
        }
        stay: dict[JobId, Allocation] = {}
        for job in jobs:
            column = chosen.get(job.id)
            if column is None:
                continue
            capacity.give(job, configs[column].num_gpus, configs[column].gpu_type)
            if column == held(job, view, configs) and free.take(job.allocation):
                stay[job.id] = job.allocation
        wanted = {name: configs[column] for name, column in chosen.items()}
        allocations = place(view, wanted, kept | stay)
        nodes = {node.id: node for node in view.nodes}
        types = {job.id: gpu_type_held(job, nodes) or "" for job in jobs}
        decision = Decision(
            jobs=jobs, configs=configs, chosen=chosen, worth=worth, types=types
        )
        reasons = {
            job.id: gets(job, job.allocation) for job in view.jobs if job.id in kept
        }
        stranded = {
            job.id: waits(job, least_gpus(job), capacity)
            for job in view.jobs
            if _stranded(job)
        }
        return Plan(
            allocations=allocations,
            reasons=stranded | reasons | explain(decision, allocations, capacity),
            diagnostics={
                "objective": choice.value,
                "bound": choice.bound,
                "gap": max(choice.value - choice.bound, 0.0),
            },
        )


def _stranded(job: JobView) -> bool:
    """Return whether `job` is frozen and cannot keep what it holds: `Capacity` keeps
    all that can.
    """
    return job.spec.contract is RescaleContract.FROZEN and bool(job.allocation)


def _by_type(view: ClusterView, free: FreeNodes) -> dict[str, int]:
    gpus: dict[str, int] = {}
    for node in view.nodes:
        gpus[node.gpu_type] = gpus.get(node.gpu_type, 0) + free.gpus[node.id]
    return gpus
