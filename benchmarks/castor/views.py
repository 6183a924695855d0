"""Crowded clusters for timing decisions: many timed jobs on nodes of 8 GPUs, and how
they go on.
"""

import zlib
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from coadapt.goodput.throughput import step_time
from coadapt.model import (
    Allocation,
    BatchConfig,
    BatchLimits,
    ClusterView,
    Forecast,
    GradStats,
    Grant,
    JobSpec,
    JobView,
    Measured,
    Node,
    Placement,
    ReplicaLimits,
    RescaleContract,
    ThroughputParams,
    TypeProfile,
)
from coadapt.policies.castor.policy import Castor

NUM_APPLICATIONS = 10
GPU_TYPES = "gpu", "fast", "faster"
FASTER = 0.9, 4.0  # a pass on the next GPU type: at the least and at the most


def crowded_views(
    num_gpus: int, num_jobs: int, rounds: int, *, shared: bool = False, types: int = 1
) -> Iterator[ClusterView]:
    """Yield views a minute apart: each follows castor's plan, one job in fifty is
    replaced by a new one.

    shared: each job is of one of ten applications, and reports another batch in each
    round in which it trains. Steps take what the application's model says, up to a
    fifth more or less. types: of GPUs, on each of which every job was timed. Raises
    ValueError for both: shared tells of steps on one type.
    """
    if shared and types > 1:
        raise ValueError(f"shared times are of GPUs of one type, got types={types}")
    rng = np.random.default_rng(0)
    guide = Castor()
    nodes = tuple(
        Node(id=f"n{number:05d}", num_gpus=8, gpu_type=GPU_TYPES[number % types])
        for number in range(num_gpus // 8)
    )
    kinds = [
        _job(np.random.default_rng(number), f"a{number}", 0.0)
        for number in range(NUM_APPLICATIONS)
    ]

    def new_job(name: str, at: float) -> JobView:
        job = _job(rng, name, at)
        if shared:
            return _of(kinds[zlib.crc32(name.encode()) % len(kinds)], job)
        return _on(GPU_TYPES[1:types], job, rng)

    jobs = [new_job(f"j{number:06d}", 0.0) for number in range(num_jobs)]
    for number in range(rounds):
        at = 60.0 * (number + 1)
        view = ClusterView(at=at, nodes=nodes, jobs=tuple(jobs))
        yield view
        plan = guide.allocate(view)
        jobs = [
            _later(job, plan.allocations.get(job.id), rng if shared else None)
            for job in jobs
        ]
        for new in range(num_jobs // 50):
            jobs.pop(int(rng.integers(len(jobs))))
            jobs.append(new_job(f"k{number:03d}{new:06d}", at))


def _of(kind: JobView, job: JobView) -> JobView:
    spec = replace(job.spec, application=kind.id, batch=kind.spec.batch)
    return replace(
        job, spec=spec, measured=replace(job.measured, by_type=kind.measured.by_type)
    )


def _on(others: Sequence[str], job: JobView, rng: np.random.Generator) -> JobView:
    """Return `job` as timed on other GPU types, too."""
    by_type = dict(job.measured.by_type)
    (profile,) = by_type.values()
    for gpu_type in others:
        passes = 1.0 / float(rng.uniform(*FASTER))
        params = replace(
            profile.params,
            alpha_c=profile.params.alpha_c * passes,
            beta_c=profile.params.beta_c * passes,
        )
        profile = by_type[gpu_type] = replace(profile, params=params)
    return replace(job, measured=replace(job.measured, by_type=by_type))


def _later(
    job: JobView, held: Allocation | None, rng: np.random.Generator | None
) -> JobView:
    """Return `job` a round later; rng: it tells of some batch and its step time."""
    if held is None:
        return replace(job, grant=Grant())
    told = replace(job.measured, progress=1.02 * job.measured.progress)
    if rng is not None:
        limits, (profile,) = job.spec.batch, told.by_type.values()
        most = min(
            limits.max_total // held.num_replicas, limits.max_atomic or limits.max_total
        )
        atomic = int(rng.integers(limits.min_atomic, most + 1))
        batch = BatchConfig(total=atomic * held.num_replicas, atomic=atomic)
        placement = Placement(tuple(gpus for _, gpus in held.slots))
        said_s = float(step_time(profile.params, placement, atomic))
        told = replace(
            told, batch=batch, step_time_s=said_s * float(rng.uniform(0.8, 1.2))
        )
    return replace(job, grant=Grant(allocation=held), measured=told)


def _job(rng: np.random.Generator, name: str, at: float) -> JobView:
    initial = int(2 ** rng.integers(5, 9))
    params = ThroughputParams(
        alpha_c=float(rng.uniform(0.02, 0.1)),
        beta_c=float(rng.uniform(0.2, 2.0)) / 1000,
        alpha_r=float(rng.uniform(0.0, 0.05)),
        beta_r=1e-3,
        alpha_n=float(rng.uniform(0.05, 0.1)),
        beta_n=2e-3,
        gamma=2.0,
    )
    whole = float(rng.lognormal(14.0, 1.5))
    return JobView(
        id=name,
        spec=JobSpec(
            name=name,
            batch=BatchLimits(
                initial=initial,
                max_total=initial * 32,
                min_atomic=8,
                max_atomic=initial * 4,
            ),
            replicas=ReplicaLimits(min=1, max=64),
            contract=RescaleContract.ADAPTIVE,
        ),
        submitted_at=at,
        measured=Measured(
            progress=whole * float(rng.uniform(0.05, 0.9)),
            progress_target=whole,
            by_type={
                "gpu": TypeProfile(
                    params=params, num_replicas_profiled=int(2 ** rng.integers(0, 6))
                )
            },
            grad=GradStats(sqr=1.0, var=float(rng.lognormal(2.0, 1.0))),
            forecast=Forecast(  # for policies that go by one
                remaining_steps=whole / initial,
                step_time_s=(params.alpha_c + params.beta_c * initial,),
            ),
        ),
    )
