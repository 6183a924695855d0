"""Jobs that were timed, for stories about castor."""

from collections.abc import Mapping

import numpy as np

from coadapt.model import (
    WAITING,
    Allocation,
    BatchLimits,
    ClusterView,
    GradStats,
    Grant,
    JobSpec,
    JobView,
    Measured,
    Placement,
    ReplicaLimits,
    RescaleContract,
    ThroughputParams,
    TypeProfile,
    Usage,
)
from coadapt.policies.castor.situation import Predictors, Situation, situation
from coadapt.policies.castor.topology import topology_of
from coadapt.policies.predictors.application_models import Applications
from coadapt.policies.predictors.measured_step_times import Shape
from coadapt.policies.predictors.remaining_work import RemainingWork
from coadapt.policies.solvers.arrays import FloatArray

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


def placement_of(shape: Shape) -> Placement:
    """Return a placement of this shape."""
    fewest, more = divmod(shape.gpus, shape.nodes)
    counts = (fewest + 1,) * more + (fewest,) * (shape.nodes - more)
    return Placement(counts, num_racks=shape.racks)


def after(
    work: RemainingWork, *jobs: JobView, alone: float = 1.0
) -> tuple[FloatArray, RemainingWork]:
    """Return what these jobs have left, and the record after a round with no others.

    alone: the goodput of each on one GPU.
    """
    return work.left(jobs, np.full(len(jobs), alone))


def observed(work: RemainingWork, *jobs: JobView, alone: float = 1.0) -> RemainingWork:
    """Return the record of lengths after a round with these jobs only."""
    return after(work, *jobs, alone=alone)[1]


def left(work: RemainingWork, job: JobView, alone: float = 1.0) -> float:
    """Return what `job` has left in a round in which it is alone."""
    return float(after(work, job, alone=alone)[0][0])


def situation_of(
    seen: ClusterView, known: Applications | None = None, *, room: bool = False
) -> Situation:
    """Return the situation of a first round."""
    applications = Applications() if known is None else known
    predictors = Predictors(applications=applications)
    return situation(seen, topology_of(seen), predictors, room=room)[0]
