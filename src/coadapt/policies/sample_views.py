"""Views to try policies on: corner cases by name, random ones by seed, and the view that follows a plan.

They are meant to be nasty and need not be likely: lost nodes, shrunken quotas, jobs of every contract, with
and without models.
"""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from numpy.random import Generator

from coadapt.model import (
    WAITING,
    Allocation,
    BatchLimits,
    ClusterView,
    Forecast,
    GradStats,
    JobSpec,
    JobView,
    Node,
    Plan,
    ReplicaLimits,
    RescaleContract,
    Tenant,
    ThroughputParams,
)

GPU_TYPES = ("gpu", "big", "small")
MAX_NODES = 12
MAX_JOBS = 16
ROUND_S = 60.0


def corner_views() -> dict[str, ClusterView]:
    """Return one view per corner case, by name."""
    job, nodes = _plain_job("job"), _plain_nodes(4)
    huge = replace(job, spec=replace(job.spec, replicas=ReplicaLimits(min=1000, max=2000)))
    pair = replace(job.spec, replicas=ReplicaLimits(min=2, max=8))
    frozen = replace(job.spec, contract=RescaleContract.FROZEN, replicas=ReplicaLimits(max=4))
    lost = Allocation(slots=(("gone", 1), ("node-0", 1)))
    kept = Allocation(slots=(("node-0", 1),))
    poor = replace(job.spec, tenant=Tenant(id="poor", quota_gpus=0))
    mixed = (Node(id="a", num_gpus=1), Node(id="b", num_gpus=1, gpu_type="big"))
    return {
        "no jobs and no nodes": _view((), ()),
        "no jobs": _view(nodes, ()),
        "no nodes": _view((), (job, replace(job, id="job-2", allocation=lost))),
        "one job": _view(nodes, (job,)),
        "one huge job": _view(nodes, (huge, replace(job, id="small"))),
        "a gang that fits no GPU type": _view(mixed, (replace(job, spec=pair),)),
        "a frozen job that runs": _view(nodes, (replace(job, spec=frozen, allocation=kept),)),
        "a frozen job on a lost node": _view(nodes, (replace(job, spec=frozen, allocation=lost),)),
        "a running job on a lost node": _view(nodes, (replace(job, spec=pair, allocation=lost),)),
        "a tenant that may hold nothing": _view(nodes, (replace(job, spec=poor), replace(job, id="rich"))),
        "all jobs came at one instant": _view(nodes, tuple(_plain_job(f"job-{i:02d}") for i in range(20))),
    }


def generate_views(seed: int, num_views: int = 40) -> Iterator[ClusterView]:
    """Yield `num_views` random views; the i-th depends on `seed` and i only."""
    for index in range(num_views):
        yield _random_view(np.random.default_rng((seed, index)))


def later_view(view: ClusterView, plan: Plan, rng: Generator) -> ClusterView:
    """Return a view one round after `plan` was carried out for `view`.

    Running jobs progress, learn their models, or end; jobs arrive; now and then a node goes away.
    """
    nodes = view.nodes
    if len(nodes) > 1 and rng.random() < 0.1:
        gone = int(rng.integers(len(nodes)))
        nodes = nodes[:gone] + nodes[gone + 1 :]
    alive = {node.id for node in nodes}
    jobs = [
        _later_job(job, plan.allocations.get(job.id, WAITING), alive, rng)
        for job in view.jobs
        if job.id not in plan.allocations or rng.random() > 0.1
    ]
    at = view.at + ROUND_S
    for index in range(int(rng.integers(0, 3))):
        jobs.append(replace(_random_job(rng, f"new-{at:.0f}-{index}", at), submitted_at=at - 1.0))
    jobs.sort(key=lambda job: (job.submitted_at, job.id))
    return ClusterView(at=at, nodes=nodes, jobs=tuple(jobs))


def _later_job(job: JobView, allocation: Allocation, alive: set[str], rng: Generator) -> JobView:
    lost = any(node not in alive for node, _ in allocation.slots)
    held = WAITING if lost else allocation
    count = allocation.num_replicas
    moved = bool(allocation) and allocation != job.allocation and job.started_at is not None
    forecast = job.forecast
    if forecast is not None and count:
        forecast = replace(forecast, remaining_steps=forecast.remaining_steps * 0.9)
    return replace(
        job,
        allocation=held,
        started_at=job.started_at if job.started_at is not None or not count else job.submitted_at + ROUND_S,
        attained_service_gpu_s=job.attained_service_gpu_s + count * ROUND_S,
        num_rescales=job.num_rescales + moved,
        progress=job.progress + 100.0 * count,
        num_replicas_profiled=max(job.num_replicas_profiled, count),
        throughput=job.throughput or (_random_throughput(rng) if count else {}),
        grad=job.grad or (_random_grad(rng) if count else None),
        forecast=forecast,
    )


def _random_view(rng: Generator) -> ClusterView:
    """Return a view whose running jobs fitted the cluster before, perhaps, some nodes went away."""
    num_types = int(rng.choice([1, 1, 2, 3]))
    nodes = tuple(
        Node(
            id=f"node-{index:02d}",
            num_gpus=int(rng.choice([1, 2, 4, 8])),
            gpu_type=GPU_TYPES[int(rng.integers(num_types))],
            rack=f"rack-{index // 4}",
        )
        for index in range(int(rng.integers(1, MAX_NODES)))
    )
    at = ROUND_S * int(rng.integers(1, 1000))
    free = {node.id: node.num_gpus for node in nodes}
    names = rng.permutation(MAX_JOBS)[: int(rng.integers(0, MAX_JOBS + 1))]
    jobs = []
    for name in names:
        job = _random_job(rng, f"job-{name}", at)
        jobs.append(_started(job, nodes, free, rng) if rng.random() < 0.6 else job)
    jobs.sort(key=lambda job: (job.submitted_at, job.id))
    if rng.random() < 0.2:
        nodes = tuple(node for node in nodes if rng.random() < 0.8)
    return ClusterView(at=at, nodes=nodes, jobs=tuple(jobs))


def _random_job(rng: Generator, name: str, at: float) -> JobView:
    low = int(rng.choice([1, 1, 1, 2, 4]))
    high = low * int(rng.choice([1, 2, 4, 64]))
    initial = int(rng.choice([1, 8, 12, 100]))
    max_total = initial * int(rng.choice([1, 4, 32]))
    min_atomic = int(rng.integers(1, initial + 1))
    spec = JobSpec(
        name=name,
        contract=RescaleContract(rng.choice([contract.value for contract in RescaleContract])),
        replicas=ReplicaLimits(min=low, max=high, requested=int(rng.integers(low, min(high, 16) + 1))),
        batch=BatchLimits(
            initial=initial,
            requested=int(rng.integers(1, max_total + 1)),
            max_total=max_total,
            min_atomic=min_atomic,
            max_atomic=None if rng.random() < 0.3 else min_atomic * int(rng.integers(1, 8)),
            accumulation=bool(rng.random() < 0.7),
        ),
        tenant=_random_tenant(rng),
    )
    forecast = None
    if rng.random() < 0.7:
        times = np.minimum.accumulate(rng.uniform(0.1, 1.0, int(rng.choice([1, 4, 64]))))
        forecast = Forecast(
            remaining_steps=float(rng.choice([0.0, 10.0, 10_000.0])),
            step_time_s=tuple(float(step_s) for step_s in times),
        )
    # Whole minutes, so that some jobs arrive at the same instant and ties must be broken.
    submitted_at = max(at - ROUND_S * int(rng.integers(0, 10)), 0.0)
    return JobView(id=name, spec=spec, submitted_at=submitted_at, forecast=forecast)


def _random_tenant(rng: Generator) -> Tenant:
    """Draw among a few tenants; `shifting` has a quota that differs from job to job."""
    return (
        Tenant(),
        Tenant(id="small", quota_gpus=3),
        Tenant(id="heavy", quota_gpus=16, weight=2.0),
        Tenant(id="shifting", quota_gpus=int(rng.integers(0, 9))),
    )[int(rng.choice([0, 0, 1, 2, 3]))]


def _started(job: JobView, nodes: tuple[Node, ...], free: dict[str, int], rng: Generator) -> JobView:
    """Return `job` running on some free GPUs of one type, if there are enough; take them out of `free`."""
    gpu_type = GPU_TYPES[int(rng.integers(len(GPU_TYPES)))]
    limits = job.spec.replicas
    wanted = int(rng.integers(limits.min, min(limits.max, 2 * limits.min) + 1))
    slots = []
    for index in rng.permutation(len(nodes)):
        node = nodes[index]
        count = min(free[node.id], wanted) if node.gpu_type == gpu_type else 0
        if count:
            slots.append((node.id, count))
            wanted -= count
    if wanted:
        return job
    for node_id, count in slots:
        free[node_id] -= count
    allocation = Allocation(slots=tuple(slots))
    return replace(
        job,
        allocation=allocation,
        started_at=job.submitted_at + 1.0,
        attained_service_gpu_s=float(rng.choice([0.0, 600.0, 57_600.0, 1e6])),
        num_rescales=int(rng.integers(0, 5)),
        progress=float(rng.uniform(0, 1e4)),
        num_replicas_profiled=allocation.num_replicas,
        throughput=_random_throughput(rng) if rng.random() < 0.8 else {},
        grad=_random_grad(rng) if rng.random() < 0.8 else None,
    )


def _random_throughput(rng: Generator) -> dict[str, ThroughputParams]:
    known = [gpu_type for gpu_type in GPU_TYPES if rng.random() < 0.8]
    return {gpu_type: _random_params(rng) for gpu_type in known}


def _random_params(rng: Generator) -> ThroughputParams:
    alpha_c, beta_c, alpha_r, beta_r, alpha_n, beta_n = rng.uniform(0.0, 0.1, 6)
    return ThroughputParams(
        alpha_c=float(alpha_c) + 0.01,
        beta_c=float(beta_c),
        alpha_r=float(alpha_r),
        beta_r=float(beta_r),
        alpha_n=float(alpha_n),
        beta_n=float(beta_n),
        alpha_k=float(alpha_n),
        beta_k=float(beta_n),
        gamma=float(rng.uniform(1.0, 10.0)),
    )


def _random_grad(rng: Generator) -> GradStats:
    sqr, var = rng.choice([0.0, 1e-3, 1.0], 2)
    return GradStats(sqr=float(sqr), var=float(var))


def _plain_job(name: str) -> JobView:
    spec = JobSpec(name=name, batch=BatchLimits(initial=32), replicas=ReplicaLimits(max=8))
    return JobView(id=name, spec=spec, submitted_at=0.0)


def _plain_nodes(count: int) -> tuple[Node, ...]:
    return tuple(Node(id=f"node-{index}", num_gpus=4) for index in range(count))


def _view(nodes: tuple[Node, ...], jobs: tuple[JobView, ...]) -> ClusterView:
    return ClusterView(at=ROUND_S, nodes=nodes, jobs=tuple(sorted(jobs, key=lambda job: job.id)))
