"""Crowded clusters for timing decisions: many timed jobs on nodes of 8 GPUs, and how they go on."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from coadapt.model import (
    BatchLimits,
    ClusterView,
    Forecast,
    GradStats,
    Grant,
    JobSpec,
    JobView,
    Measured,
    Node,
    ReplicaLimits,
    RescaleContract,
    ThroughputParams,
    TypeProfile,
)
from coadapt.policies.castor.policy import Castor


def crowded_views(num_gpus: int, num_jobs: int, rounds: int) -> Iterator[ClusterView]:
    """Yield views a minute apart: each follows castor's plan, one job in fifty is replaced by a new one."""
    rng, guide = np.random.default_rng(0), Castor()
    nodes = tuple(Node(id=f"n{number:05d}", num_gpus=8) for number in range(num_gpus // 8))
    jobs = [_job(rng, f"j{number:06d}", 0.0) for number in range(num_jobs)]
    for number in range(rounds):
        at = 60.0 * (number + 1)
        view = ClusterView(at=at, nodes=nodes, jobs=tuple(jobs))
        yield view
        plan = guide.allocate(view)
        jobs = [_later(job, plan.allocations.get(job.id)) for job in jobs]
        for new in range(num_jobs // 50):
            jobs.pop(int(rng.integers(len(jobs))))
            jobs.append(_job(rng, f"k{number:03d}{new:06d}", at))


def _later(job: JobView, held: object) -> JobView:
    grant = Grant() if held is None else Grant(allocation=held)  # type: ignore[arg-type]  # a plan's allocation
    progress = job.measured.progress * (1.02 if held else 1.0)
    return replace(job, grant=grant, measured=replace(job.measured, progress=progress))


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
            batch=BatchLimits(initial=initial, max_total=initial * 32, min_atomic=8, max_atomic=initial * 4),
            replicas=ReplicaLimits(min=1, max=64),
            contract=RescaleContract.ADAPTIVE,
        ),
        submitted_at=at,
        measured=Measured(
            progress=whole * float(rng.uniform(0.05, 0.9)),
            progress_target=whole,
            by_type={"gpu": TypeProfile(params=params, num_replicas_profiled=int(2 ** rng.integers(0, 6)))},
            grad=GradStats(sqr=1.0, var=float(rng.lognormal(2.0, 1.0))),
            forecast=Forecast(  # for policies that go by one
                remaining_steps=whole / initial, step_time_s=(params.alpha_c + params.beta_c * initial,)
            ),
        ),
    )
