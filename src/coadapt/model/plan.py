"""What all jobs get this round, and the check that stands between any policy and the
core.
"""

from collections.abc import Callable, Iterable, Mapping, Set
from dataclasses import dataclass, field
from typing import ClassVar, TypeVar

from coadapt.model.batch import BatchConfig
from coadapt.model.cluster import Allocation, JobId, Node, NodeId
from coadapt.model.devices import FreeGpus, holding
from coadapt.model.job import OWNS_BATCH, RescaleContract
from coadapt.model.report import ApplicationTimes
from coadapt.model.tenant import EVERYBODY, beyond_quota
from coadapt.model.view import (
    ClusterView,
    CurrentAllocations,
    JobView,
    current_allocations,
)

T = TypeVar("T")


class PlanError(ValueError):
    """A plan violates a limit of the cluster or of a job. The text names job, value and
    what is allowed.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The allocations of all jobs. A job that is left out waits.

    batches: only if the policy chooses the batch; else the job chooses its own.
    reasons: per job, one sentence for its user. diagnostics: figures of the solver
    (such as objective, bound, gap), for people and benchmarks only. set_aside: jobs
    that the policy did not see because it fails with them, each with the instant (s) of
    the next try. application_times: step times that other jobs of a job's application
    measured; the core does not use them, and they are not journaled.
    """

    WIRE_RENAMED: ClassVar[Mapping[str, str]] = {"kin_times": "application_times"}

    allocations: Mapping[JobId, Allocation] = field(default_factory=dict)
    batches: Mapping[JobId, BatchConfig] = field(default_factory=dict)
    reasons: Mapping[JobId, str] = field(default_factory=dict)
    diagnostics: Mapping[str, float] = field(default_factory=dict)
    set_aside: Mapping[JobId, float] = field(default_factory=dict)
    application_times: Mapping[JobId, ApplicationTimes] = field(default_factory=dict)

    def names_only(self, held: CurrentAllocations) -> bool:
        """Return whether the plan names only jobs of `held`."""
        jobs = held.jobs.keys()
        return all(
            part is held.allocations or part.keys() <= jobs for part in self._parts
        )

    @property
    def _parts(self) -> tuple[Mapping[JobId, object], ...]:
        return self.allocations, self.batches, self.reasons, self.set_aside

    def unlike(self, other: "Plan") -> set[JobId]:
        """Return the jobs for which this plan and `other` differ."""
        found: set[JobId] = set()
        for mine, theirs in zip(self._parts, other._parts, strict=True):
            if mine is not theirs and mine != theirs:
                found.update(
                    [job for job, part in mine.items() if part != theirs.get(job)]
                )
                found.update([job for job in theirs if job not in mine])
        return found

    def made_of(self, held: CurrentAllocations, before: "Plan") -> "Plan":
        """Return an equal plan that uses the same objects as the jobs and the previous
        plan.

        A plan from another process has none of these objects, and comparing equal but
        distinct objects is slow.
        """
        return Plan(
            allocations=_made_of(held.allocations, self.allocations),
            batches=_made_of(held.batches, self.batches),
            reasons=_made_of(before.reasons, self.reasons),
            diagnostics=self.diagnostics,
            set_aside=self.set_aside,
            application_times=self.application_times,
        )

    def without(self, gone: Callable[[JobId], bool], beside: Set[JobId]) -> "Plan":
        """Return the plan without those of the `gone` jobs that are not in `beside`."""
        out = {job for part in self._parts for job in part.keys() - beside if gone(job)}
        return Plan(
            allocations={
                job: given for job, given in self.allocations.items() if job not in out
            },
            batches={
                job: batch for job, batch in self.batches.items() if job not in out
            },
            reasons={job: why for job, why in self.reasons.items() if job not in out},
            diagnostics=self.diagnostics,
            set_aside={
                job: until for job, until in self.set_aside.items() if job not in out
            },
        )


def check_plan(view: ClusterView, plan: Plan, *, names_known: bool = False) -> None:
    """Raise PlanError unless `plan` is valid for `view`.

    names_known: the caller has checked that the plan names only jobs of the view. A
    valid plan has only known jobs and nodes, and no over-committed GPU (devices.py).
    Replicas are within each job's limits. Each job is on one GPU type that it allows. A
    frozen job keeps its replicas or is stopped whole. Each tenant, and all together,
    are within their quota. A batch is only set for a job that holds GPUs, within its
    limits, and never for a `self` or `schedule` job.
    """
    held = current_allocations(view)
    given = plan.allocations
    jobs = held.jobs
    kept = held.allocations
    batches = held.batches
    nodes = view.inventory.by_id
    if not names_known and not plan.names_only(held):
        unknown = {job for part in plan._parts for job in part.keys() - jobs.keys()}
        raise PlanError(f"job {min(unknown)!r} is not an active job of this round")
    # Most jobs keep the same allocation object, which is known to be valid and is
    # counted already.
    new: dict[JobId, Allocation] = {}
    gone: list[Allocation] = []
    if (
        given is not kept and given != kept
    ):  # which is known sooner than where they differ
        new = {
            job_id: each
            for job_id, each in given.items()
            if each is not kept.get(job_id) and each.slots
        }
        gone = [each for job_id, each in kept.items() if given.get(job_id) is not each]
    for job_id, allocation in new.items():
        _check_allocation(jobs[job_id], allocation, nodes)
    _check_capacity(held.free.copy(), gone, new.values())
    _check_quotas(view, plan, jobs)
    for job_id, batch in plan.batches.items():
        if batch is not batches.get(job_id) or given.get(job_id) is not kept.get(
            job_id
        ):
            _check_batch(jobs[job_id], given.get(job_id), batch)


def _made_of(known: Mapping[JobId, T], planned: Mapping[JobId, T]) -> Mapping[JobId, T]:
    if planned == known:
        return known
    return {
        job: was if (was := known.get(job)) == each else each
        for job, each in planned.items()
    }


def _check_allocation(
    job: JobView, allocation: Allocation, nodes: Mapping[NodeId, Node]
) -> None:
    spec = job.spec
    slots = allocation.slots
    limits = spec.replicas
    for node, _ in slots:
        if node not in nodes:
            raise PlanError(f"job {job.id!r}: node {node!r} is not a live node")
    if not limits.min <= allocation.num_replicas <= limits.max:
        raise PlanError(
            f"job {job.id!r}: {allocation.num_replicas} replicas, allowed "
            f"{limits.min}..{limits.max}"
        )
    gpu_type = nodes[slots[0][0]].gpu_type
    if len(slots) > 1:
        gpu_types = {nodes[node].gpu_type for node, _ in slots}
        if len(gpu_types) > 1:
            raise PlanError(
                f"job {job.id!r}: GPU types {sorted(gpu_types)} mixed, allowed one"
            )
    if not limits.allows_type(gpu_type):
        allowed = ", ".join(limits.gpu_types)
        raise PlanError(
            f"job {job.id!r}: GPU type {gpu_type!r}, allowed only {allowed}"
        )
    if (
        spec.contract is RescaleContract.FROZEN
        and job.allocation
        and allocation != job.allocation
    ):
        raise PlanError(
            f"job {job.id!r}: contract frozen, its allocation {job.allocation.slots} "
            f"must stay"
        )


def _check_capacity(
    free: FreeGpus, gone: Iterable[Allocation], new: Iterable[Allocation]
) -> None:
    for allocation in gone:
        free.give(holding(allocation))
    for allocation in new:
        free.take_allocation(allocation)
    for problem in free.overfull():
        raise PlanError(problem)


def _check_quotas(view: ClusterView, plan: Plan, jobs: Mapping[JobId, JobView]) -> None:
    if not (quotas := view.quotas()):
        return
    held = [
        (jobs[job_id].spec.tenant, each.num_gpus)
        for job_id, each in plan.allocations.items()
    ]
    for tenant in sorted(beyond_quota(quotas, held)):
        gpus = sum(each for name, each in held if tenant in (name, EVERYBODY))
        raise PlanError(
            f"tenant {tenant!r}: {gpus:g} GPUs given, its quota is {quotas[tenant]}"
        )


def _check_batch(
    job: JobView, allocation: Allocation | None, batch: BatchConfig
) -> None:
    if allocation is None or not allocation.slots:
        raise PlanError(
            f"job {job.id!r}: a batch is dictated, but the job holds no GPU"
        )
    spec = job.spec
    limits = spec.batch
    contract = spec.contract
    if contract in OWNS_BATCH:
        raise PlanError(
            f"job {job.id!r}: contract {contract}, its batch is its own, got "
            f"{batch.total}"
        )
    most = allocation.num_replicas * batch.atomic * (batch.accumulation + 1)
    if batch.total > most:
        raise PlanError(
            f"job {job.id!r}: total batch {batch.total} exceeds {most}, which its "
            f"passes can hold"
        )
    if limits.max_atomic is not None and batch.atomic > limits.max_atomic:
        raise PlanError(
            f"job {job.id!r}: atomic batch {batch.atomic}, allowed at most "
            f"{limits.max_atomic}"
        )
    # A total that must stay exact may need accumulation where memory forbids the shard.
    exact = contract is RescaleContract.FIXED or contract is RescaleContract.FROZEN
    if batch.accumulation and not limits.accumulation and not exact:
        raise PlanError(
            f"job {job.id!r}: accumulation {batch.accumulation}, but the job forbids it"
        )
    if exact:
        if batch.total != limits.requested:
            raise PlanError(
                f"job {job.id!r}: contract {contract}, total batch {batch.total}, "
                f"allowed only {limits.requested}"
            )
    elif batch.total > limits.max_total:
        raise PlanError(
            f"job {job.id!r}: total batch {batch.total}, allowed at most "
            f"{limits.max_total}"
        )
