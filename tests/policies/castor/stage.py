"""Jobs that were timed, for stories about castor."""

from collections.abc import Mapping

import numpy as np

from coadapt.model import (
    WAITING,
    Allocation,
    BatchLimits,
    GradStats,
    Grant,
    JobSpec,
    JobView,
    Measured,
    ReplicaLimits,
    RescaleContract,
    ThroughputParams,
    TypeProfile,
    Usage,
)
from coadapt.policies.castor.arrays import FloatArray, JobRows
from coadapt.policies.castor.lengths import Lengths, Reported, hinted

PARAMS = ThroughputParams(
    alpha_c=0.05,
    beta_c=0.001,
    alpha_r=0.01,
    beta_r=0.001,
    alpha_n=0.03,
    beta_n=0.002,
    gamma=1.5,
)
GRAD = GradStats(sqr=1.0, var=20.0)
BATCH = BatchLimits(initial=64, max_total=4096, min_atomic=8)


def timed(
    name: str,
    *,
    gpus: tuple[int, int] = (1, 16),
    progress: float = 0.0,
    target: float | None = 1e6,
    held: Allocation = WAITING,
    at: float = 0.0,
    batch: BatchLimits = BATCH,
    contract: RescaleContract = RescaleContract.ADAPTIVE,
    tenant: str = "default",
    priority: int = 0,
    deadline_at: float | None = None,
    grad: GradStats | None = GRAD,
    by_type: Mapping[str, TypeProfile] | None = None,
) -> JobView:
    """Return a job that was timed on up to 4 GPUs."""
    spec = JobSpec(
        name=name,
        batch=batch,
        replicas=ReplicaLimits(min=gpus[0], max=gpus[1]),
        contract=contract,
        tenant=tenant,
        priority=priority,
        deadline_at=deadline_at,
    )
    known = (
        {"gpu": TypeProfile(params=PARAMS, num_replicas_profiled=4)}
        if by_type is None
        else by_type
    )
    return JobView(
        id=name,
        spec=spec,
        submitted_at=at,
        grant=Grant(allocation=held),
        measured=Measured(
            progress=progress, progress_target=target, by_type=known, grad=grad
        ),
        usage=Usage(started_at=at if held else None),
    )


def observe(lengths: Lengths, *jobs: JobView, alone: float = 1.0) -> FloatArray:
    """Return what these jobs, each of this goodput on one GPU, have left by `lengths`;
    it sees no others.
    """
    hints = [hinted(job) for job in jobs]
    reported = Reported(
        JobRows([job.id for job in jobs]),
        np.array([job.measured.progress for job in jobs]),
        np.full(len(jobs), alone),
        np.array([np.inf if hint is None else hint for hint in hints]),
    )
    return lengths.left(jobs, reported)


def left(lengths: Lengths, job: JobView, alone: float = 1.0) -> float:
    """Return what `job` has left by `lengths`, once it was seen."""
    return float(observe(lengths, job, alone=alone)[0])
