"""Views to try policies on: corner cases by name, random ones by seed, and the view
that follows a plan.

They are meant to be nasty and need not be likely: lost nodes, shrunken quotas, jobs of
every contract, with and without models.
"""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from numpy.random import Generator

from coadapt.model import (
    NO_GRANT,
    WAITING,
    Allocation,
    BatchLimits,
    BatchSchedule,
    ClusterView,
    Forecast,
    GradStats,
    Grant,
    JobSpec,
    JobView,
    Measured,
    Node,
    Plan,
    ReplicaLimits,
    RescaleContract,
    Tenant,
    ThroughputParams,
    TypeProfile,
    Usage,
)

GPU_TYPES = ("gpu", "big", "small")
MAX_NODES = 12
MAX_JOBS = 16
ROUND_S = 60.0
SCHEDULED_AT = 10_000  # samples at which a declared schedule changes the batch


_LOST = Grant(allocation=Allocation(slots=(("gone", 1), ("node-0", 1))))
_MIXED_NODES = (Node(id="a", num_gpus=1), Node(id="b", num_gpus=1, gpu_type="big"))


def corner_views() -> dict[str, ClusterView]:
    """Return one view per corner case, by name."""
    return {**_corners_of_size(), **_corners_of_running_jobs(), **_corners_of_limits()}


def _corners_of_size() -> dict[str, ClusterView]:
    """Return views with few or many jobs and nodes."""
    job = _plain_job("job")
    nodes = _plain_nodes(4)
    huge = replace(
        job, spec=replace(job.spec, replicas=ReplicaLimits(min=1000, max=2000))
    )
    return {
        "no jobs and no nodes": _view((), ()),
        "no jobs": _view(nodes, ()),
        "no nodes": _view((), (job, replace(job, id="job-2", grant=_LOST))),
        "one job": _view(nodes, (job,)),
        "one huge job": _view(nodes, (huge, replace(job, id="small"))),
        "all jobs came at one instant": _view(
            nodes, tuple(_plain_job(f"job-{i:02d}") for i in range(20))
        ),
    }


def _corners_of_running_jobs() -> dict[str, ClusterView]:
    """Return views whose jobs hold what is lost, shrunk or frozen."""
    job = _plain_job("job")
    nodes = _plain_nodes(4)
    pair = replace(job.spec, replicas=ReplicaLimits(min=2, max=8))
    frozen = replace(
        job.spec, contract=RescaleContract.FROZEN, replicas=ReplicaLimits(max=4)
    )
    shrunk = Grant(allocation=Allocation(slots=(("node-0", 6),)))
    kept = Grant(allocation=Allocation(slots=(("node-0", 1),)))
    return {
        "a frozen job that runs": _view(
            nodes, (replace(job, spec=frozen, grant=kept),)
        ),
        "a frozen job on a lost node": _view(
            nodes, (replace(job, spec=frozen, grant=_LOST),)
        ),
        "a running job on a lost node": _view(
            nodes, (replace(job, spec=pair, grant=_LOST),)
        ),
        "a node with fewer GPUs than its jobs hold": _view(
            _plain_nodes(2),
            (replace(job, spec=pair, grant=shrunk), replace(job, id="other")),
        ),
    }


def _corners_of_limits() -> dict[str, ClusterView]:
    """Return views whose jobs are limited by GPU types, gangs and quotas."""
    job = _plain_job("job")
    nodes = _plain_nodes(4)
    pair = replace(job.spec, replicas=ReplicaLimits(min=2, max=8))
    poor = replace(job.spec, tenant="poor")
    quota = {"poor": Tenant(id="poor", quota_gpus=0)}
    picky = replace(job.spec, replicas=ReplicaLimits(max=2, gpu_types=("big",)))
    nowhere = replace(job.spec, replicas=ReplicaLimits(gpu_types=("tpu",)))
    return {
        "a gang that fits no GPU type": _view(_MIXED_NODES, (replace(job, spec=pair),)),
        "a tenant that may hold nothing": replace(
            _view(nodes, (replace(job, spec=poor), replace(job, id="rich"))),
            tenants=quota,
        ),
        "a job that allows one GPU type": _view(
            _MIXED_NODES, (replace(job, spec=picky), replace(job, id="any"))
        ),
        "a job that allows no GPU type of the cluster": _view(
            _MIXED_NODES, (replace(job, spec=nowhere), replace(job, id="any"))
        ),
        "a running job whose GPU type it does not allow": _view(
            _MIXED_NODES,
            (
                replace(
                    job,
                    spec=picky,
                    grant=Grant(allocation=Allocation(slots=(("a", 1),))),
                ),
            ),
        ),
    }


def generate_views(seed: int, num_views: int = 40) -> Iterator[ClusterView]:
    """Yield `num_views` random views; the i-th depends on `seed` and i only."""
    for index in range(num_views):
        yield _random_view(np.random.default_rng((seed, index)))


def later_view(view: ClusterView, plan: Plan, rng: Generator) -> ClusterView:
    """Return a view one round after `plan` was carried out for `view`.

    Running jobs progress, learn their models, or end; jobs arrive; now and then a node
    goes away.
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
        jobs.append(
            replace(
                _random_job(rng, f"new-{at:.0f}-{index}", at), submitted_at=at - 1.0
            )
        )
    jobs.sort(key=lambda job: (job.submitted_at, job.id))
    return replace(view, at=at, nodes=nodes, jobs=tuple(jobs))


def _later_job(
    job: JobView, allocation: Allocation, alive: set[str], rng: Generator
) -> JobView:
    lost = any(node not in alive for node, _ in allocation.slots)
    count = allocation.num_replicas
    return replace(
        job,
        grant=NO_GRANT if lost else Grant(allocation=allocation),
        measured=_later_measured(job.measured, count, rng),
        usage=_later_usage(job, allocation),
    )


def _later_measured(measured: Measured, count: int, rng: Generator) -> Measured:
    forecast = measured.forecast
    if forecast is not None and count:
        forecast = replace(forecast, remaining_steps=forecast.remaining_steps * 0.9)
    by_type = measured.by_type or (_random_by_type(rng, count) if count else {})
    return replace(
        measured,
        progress=measured.progress + 100.0 * count,
        by_type={
            gpu_type: replace(
                each, num_replicas_profiled=max(each.num_replicas_profiled, count)
            )
            for gpu_type, each in by_type.items()
        },
        grad=measured.grad or (_random_grad(rng) if count else None),
        forecast=forecast,
    )


def _later_usage(job: JobView, allocation: Allocation) -> Usage:
    usage = job.usage
    count = allocation.num_replicas
    started = usage.started_at is not None
    return replace(
        usage,
        started_at=usage.started_at
        if started or not count
        else job.submitted_at + ROUND_S,
        attained_service_gpu_s=usage.attained_service_gpu_s + count * ROUND_S,
        num_rescales=usage.num_rescales
        + (started and bool(allocation) and allocation != job.allocation),
    )


def _random_view(rng: Generator) -> ClusterView:
    """Return a view whose running jobs fitted the cluster before, perhaps, some nodes
    went away.
    """
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
    if rng.random() < 0.3:
        nodes = tuple(node for node in nodes if rng.random() < 0.7)
    return ClusterView(
        at=at, nodes=nodes, jobs=tuple(jobs), tenants=_random_tenants(rng)
    )


def _scheduled(spec: JobSpec) -> JobSpec:
    """Return the job with its batch ramped up to its largest; drawn from nothing, so
    that other jobs stay.
    """
    ramp = BatchSchedule(
        steps=((0, spec.batch.requested), (SCHEDULED_AT, spec.batch.max_total))
    )
    return replace(
        spec,
        contract=RescaleContract.SCHEDULE,
        batch=replace(spec.batch, schedule=ramp),
    )


def _random_job(rng: Generator, name: str, at: float) -> JobView:
    low = int(rng.choice([1, 1, 1, 2, 4]))
    high = low * int(rng.choice([1, 2, 4, 64]))
    initial = int(rng.choice([1, 8, 12, 100]))
    max_total = initial * int(rng.choice([1, 4, 32]))
    min_atomic = int(rng.integers(1, initial + 1))
    spec = JobSpec(
        name=name,
        contract=RescaleContract(rng.choice(["fixed", "adaptive", "self", "frozen"])),
        replicas=ReplicaLimits(
            min=low,
            max=high,
            requested=int(rng.integers(low, min(high, 16) + 1)),
            gpu_types=tuple(name for name in GPU_TYPES if rng.random() < 0.5)
            if rng.random() < 0.2
            else (),
        ),
        batch=BatchLimits(
            initial=initial,
            requested=int(rng.integers(1, max_total + 1)),
            max_total=max_total,
            min_atomic=min_atomic,
            max_atomic=None
            if rng.random() < 0.3
            else min_atomic * int(rng.integers(1, 8)),
            accumulation=bool(rng.random() < 0.7),
        ),
        tenant=str(rng.choice(["default", "default", "small", "heavy", "shifting"])),
    )
    if spec.contract is RescaleContract.FIXED and spec.batch.requested % 3 == 0:
        spec = _scheduled(spec)
    forecast = None
    if rng.random() < 0.7:
        times = np.minimum.accumulate(
            rng.uniform(0.1, 1.0, int(rng.choice([1, 4, 64])))
        )
        forecast = Forecast(
            remaining_steps=float(rng.choice([0.0, 10.0, 10_000.0])),
            step_time_s=tuple(float(step_s) for step_s in times),
        )
    # Whole minutes, so that some jobs arrive at the same instant and ties must be
    # broken.
    submitted_at = max(at - ROUND_S * int(rng.integers(0, 10)), 0.0)
    grown = spec.batch.schedule is not None and spec.batch.initial % 2 == 0
    measured = Measured(
        forecast=forecast, samples=float(SCHEDULED_AT) if grown else 0.0
    )
    return JobView(id=name, spec=spec, submitted_at=submitted_at, measured=measured)


def _random_tenants(rng: Generator) -> dict[str, Tenant]:
    """Return a few tenants with quotas and weights, without `default`."""
    tenants = (
        Tenant(id="small", quota_gpus=3),
        Tenant(id="heavy", quota_gpus=16, weight=2.0, priority=1),
        Tenant(id="shifting", quota_gpus=int(rng.integers(0, 9))),
    )
    return {tenant.id: tenant for tenant in tenants}


def _started(
    job: JobView, nodes: tuple[Node, ...], free: dict[str, int], rng: Generator
) -> JobView:
    """Return `job` running on some free GPUs of one type, if there are enough; take
    them out of `free`.
    """
    limits = job.spec.replicas
    gpu_type = str(rng.choice(limits.gpu_types or GPU_TYPES))
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
    usage = Usage(
        started_at=job.submitted_at + 1.0,
        attained_service_gpu_s=float(rng.choice([0.0, 600.0, 57_600.0, 1e6])),
        num_rescales=int(rng.integers(0, 5)),
    )
    measured = replace(
        job.measured,
        progress=float(rng.uniform(0, 1e4)),
        by_type=_random_by_type(rng, allocation.num_replicas)
        if rng.random() < 0.8
        else {},
        grad=_random_grad(rng) if rng.random() < 0.8 else None,
    )
    return replace(
        job, grant=Grant(allocation=allocation), measured=measured, usage=usage
    )


def _random_by_type(rng: Generator, num_replicas: int) -> dict[str, TypeProfile]:
    known = [gpu_type for gpu_type in GPU_TYPES if rng.random() < 0.8]
    return {
        gpu_type: TypeProfile(
            params=_random_params(rng), num_replicas_profiled=num_replicas
        )
        for gpu_type in known
    }


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
    spec = JobSpec(
        name=name, batch=BatchLimits(initial=32), replicas=ReplicaLimits(max=8)
    )
    return JobView(id=name, spec=spec, submitted_at=0.0)


def _plain_nodes(count: int) -> tuple[Node, ...]:
    return tuple(Node(id=f"node-{index}", num_gpus=4) for index in range(count))


def _view(nodes: tuple[Node, ...], jobs: tuple[JobView, ...]) -> ClusterView:
    return ClusterView(
        at=ROUND_S, nodes=nodes, jobs=tuple(sorted(jobs, key=lambda job: job.id))
    )
