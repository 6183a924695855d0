"""Short words for views in stories about policies."""

from collections.abc import Mapping

from coadapt.model import (
    WAITING,
    Allocation,
    BatchLimits,
    ClusterView,
    Forecast,
    Grant,
    JobSpec,
    JobView,
    Measured,
    Node,
    Plan,
    ReplicaLimits,
    RescaleContract,
    Tenant,
    Usage,
)


def nodes(*gpus: int, kind: str = "gpu", name: str = "n") -> tuple[Node, ...]:
    return tuple(
        Node(id=f"{name}{index}", num_gpus=count, gpu_type=kind)
        for index, count in enumerate(gpus)
    )


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
    tenant: str = "default",
    gpu_types: tuple[str, ...] = (),
    priority: int = 0,
    deadline: float | None = None,
    application: str = "",
) -> JobView:
    """Return a job. gpus: (low, high), or one number for a rigid job. steps: of the
    forecast, if any.
    """
    low, high = (gpus, gpus) if isinstance(gpus, int) else gpus
    return JobView(
        id=name,
        spec=JobSpec(
            name=name,
            replicas=ReplicaLimits(
                min=low, max=high, requested=requested, gpu_types=gpu_types
            ),
            batch=batch or BatchLimits(initial=64, max_total=1024),
            contract=contract,
            tenant=tenant,
            priority=priority,
            deadline_at=deadline,
            application=application,
        ),
        submitted_at=at,
        grant=Grant(allocation=held),
        usage=Usage(started_at=at if held else None, attained_service_gpu_s=service),
        measured=Measured(
            forecast=None
            if steps is None
            else Forecast(remaining_steps=steps, step_time_s=times)
        ),
    )


def view(
    cluster: tuple[Node, ...],
    *jobs: JobView,
    at: float = 60.0,
    quotas: Mapping[str, int] | None = None,
    tenants: tuple[Tenant, ...] = (),
) -> ClusterView:
    """Return a view; quotas: GPUs by tenant; tenants: or all that they are granted."""
    return ClusterView(
        at=at,
        nodes=cluster,
        jobs=tuple(sorted(jobs, key=lambda j: (j.submitted_at, j.id))),
        tenants={
            name: Tenant(id=name, quota_gpus=gpus)
            for name, gpus in (quotas or {}).items()
        }
        | {tenant.id: tenant for tenant in tenants},
    )


def counts(plan: Plan) -> dict[str, int]:
    return {name: held.num_replicas for name, held in plan.allocations.items()}
