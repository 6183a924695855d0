"""Short words for views in stories about policies."""

from coadapt.model import (
    WAITING,
    Allocation,
    BatchLimits,
    ClusterView,
    Forecast,
    JobSpec,
    JobView,
    Node,
    Plan,
    ReplicaLimits,
    RescaleContract,
    Tenant,
)


def nodes(*gpus: int, kind: str = "gpu", name: str = "n") -> tuple[Node, ...]:
    return tuple(Node(id=f"{name}{index}", num_gpus=count, gpu_type=kind) for index, count in enumerate(gpus))


def on(**slots: int) -> Allocation:
    return Allocation(slots=tuple(slots.items()))


def job(
    name: str,
    gpus: tuple[int, int] | int = 1,
    *,
    requested: int = 0,
    held: Allocation = WAITING,
    at: float = 0.0,
    service: float = 0.0,
    steps: float | None = None,
    times: tuple[float, ...] = (1.0,),
    contract: RescaleContract = RescaleContract.ADAPTIVE,
    batch: BatchLimits | None = None,
    tenant: Tenant | None = None,
) -> JobView:
    """Return a job. gpus: (low, high), or one number for a rigid job. steps: of the forecast, if any."""
    low, high = (gpus, gpus) if isinstance(gpus, int) else gpus
    return JobView(
        id=name,
        spec=JobSpec(
            name=name,
            replicas=ReplicaLimits(min=low, max=high, requested=requested),
            batch=batch or BatchLimits(initial=64, max_total=1024),
            contract=contract,
            tenant=tenant or Tenant(),
        ),
        submitted_at=at,
        allocation=held,
        started_at=at if held else None,
        attained_service_gpu_s=service,
        forecast=None if steps is None else Forecast(remaining_steps=steps, step_time_s=times),
    )


def view(cluster: tuple[Node, ...], *jobs: JobView, at: float = 60.0) -> ClusterView:
    return ClusterView(at=at, nodes=cluster, jobs=tuple(sorted(jobs, key=lambda j: (j.submitted_at, j.id))))


def counts(plan: Plan) -> dict[str, int]:
    return {name: held.num_replicas for name, held in plan.allocations.items()}
