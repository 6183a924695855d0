"""What all jobs get this round, and the check that stands between any policy and the core."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from coadapt.model.batch import BatchConfig
from coadapt.model.cluster import Allocation, JobId, Node, NodeId
from coadapt.model.job import RescaleContract
from coadapt.model.view import ClusterView, JobView

# GPU shares are sums of decimal fractions; this slack in GPUs absorbs their rounding.
SHARE_SLACK_GPUS = 1e-9


class PlanError(ValueError):
    """A plan that breaks the cluster's or a job's limits. The text names job, value and what is allowed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What all jobs get; a job left out waits.

    batches: only where the policy itself dictates the batch; else the job picks its own.
    reasons: per job, one sentence that its user can read. diagnostics: figures of the solver
    (for instance objective, bound, gap), for people and benchmarks only.
    """

    allocations: Mapping[JobId, Allocation] = field(default_factory=dict)
    batches: Mapping[JobId, BatchConfig] = field(default_factory=dict)
    reasons: Mapping[JobId, str] = field(default_factory=dict)
    diagnostics: Mapping[str, float] = field(default_factory=dict)


def check_plan(view: ClusterView, plan: Plan) -> None:
    """Raise PlanError unless `plan` is lawful for `view`.

    Lawful: only known jobs and nodes; no node over-committed; replicas within each job's limits; one GPU
    type per job; a frozen job keeps its replicas unless it is stopped whole; tenants within their quota; a
    batch is dictated only to a job that holds GPUs, never to a `self` job, never past the job's limits.
    """
    jobs = {job.id: job for job in view.jobs}
    nodes = {node.id: node for node in view.nodes}
    for job_id in sorted({*plan.allocations, *plan.batches, *plan.reasons}):
        if job_id not in jobs:
            raise PlanError(f"job {job_id!r} is not an active job of this round")
    for job_id, allocation in plan.allocations.items():
        if allocation:
            _check_allocation(jobs[job_id], allocation, nodes)
    _check_capacity(plan, nodes)
    _check_quotas(plan, jobs)
    for job_id, batch in plan.batches.items():
        _check_batch(jobs[job_id], plan.allocations.get(job_id), batch)


def _check_allocation(job: JobView, allocation: Allocation, nodes: Mapping[NodeId, Node]) -> None:
    limits = job.spec.replicas
    for node, _ in allocation.slots:
        if node not in nodes:
            raise PlanError(f"job {job.id!r}: node {node!r} is not a live node")
    if not limits.min <= allocation.num_replicas <= limits.max:
        raise PlanError(
            f"job {job.id!r}: {allocation.num_replicas} replicas, allowed {limits.min}..{limits.max}"
        )
    gpu_types = sorted({nodes[node].gpu_type for node, _ in allocation.slots})
    if len(gpu_types) > 1:
        raise PlanError(f"job {job.id!r}: GPU types {gpu_types} mixed, allowed one")
    if job.spec.contract is RescaleContract.FROZEN and job.allocation and allocation != job.allocation:
        raise PlanError(f"job {job.id!r}: contract frozen, its allocation {job.allocation.slots} must stay")


def _check_capacity(plan: Plan, nodes: Mapping[NodeId, Node]) -> None:
    used: dict[NodeId, float] = dict.fromkeys(nodes, 0.0)
    for allocation in plan.allocations.values():
        for node, count in allocation.slots:
            used[node] += count * allocation.gpu_share
    for node, gpus in used.items():
        if gpus > nodes[node].num_gpus + SHARE_SLACK_GPUS:
            raise PlanError(f"node {node!r}: {gpus:g} GPUs given, it has {nodes[node].num_gpus}")


def _check_quotas(plan: Plan, jobs: Mapping[JobId, JobView]) -> None:
    held: dict[str, float] = {}
    quotas: dict[str, int] = {}
    for job_id, allocation in plan.allocations.items():
        tenant = jobs[job_id].spec.tenant
        if tenant.quota_gpus is not None:
            quotas[tenant.id] = min(tenant.quota_gpus, quotas.get(tenant.id, tenant.quota_gpus))
        held[tenant.id] = held.get(tenant.id, 0.0) + allocation.num_replicas * allocation.gpu_share
    for tenant_id, quota in sorted(quotas.items()):
        if held[tenant_id] > quota + SHARE_SLACK_GPUS:
            raise PlanError(f"tenant {tenant_id!r}: {held[tenant_id]:g} GPUs given, its quota is {quota}")


def _check_batch(job: JobView, allocation: Allocation | None, batch: BatchConfig) -> None:
    if not allocation:
        raise PlanError(f"job {job.id!r}: a batch is dictated, but the job holds no GPU")
    if job.spec.contract is RescaleContract.SELF:
        raise PlanError(f"job {job.id!r}: contract self, its batch is its own, got {batch.total}")
    limits = job.spec.batch
    most = allocation.num_replicas * batch.atomic * (batch.accumulation + 1)
    if batch.total > most:
        raise PlanError(
            f"job {job.id!r}: total batch {batch.total} exceeds {most}, which its passes can hold"
        )
    if limits.max_atomic is not None and batch.atomic > limits.max_atomic:
        raise PlanError(f"job {job.id!r}: atomic batch {batch.atomic}, allowed at most {limits.max_atomic}")
    # A total that must stay exact may need accumulation where memory forbids the shard.
    exact = job.spec.contract in (RescaleContract.FIXED, RescaleContract.FROZEN)
    if batch.accumulation and not limits.accumulation and not exact:
        raise PlanError(f"job {job.id!r}: accumulation {batch.accumulation}, but the job forbids it")
    if exact:
        if batch.total != limits.requested:
            raise PlanError(
                f"job {job.id!r}: contract {job.spec.contract}, total batch {batch.total}, "
                f"allowed only {limits.requested}"
            )
    elif batch.total > limits.max_total:
        raise PlanError(f"job {job.id!r}: total batch {batch.total}, allowed at most {limits.max_total}")
