"""Views for sizers: one offer or several, and jobs whose step times are
written down.
"""

from coadapt.model import (
    Allocation,
    BatchLimits,
    ClusterView,
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
    Usage,
)
from coadapt.model.offer import Market, Offer, Pool, SizingView

# A step of 64 samples takes 0.1 s on one GPU; synchronising costs a little on one node
# and more between nodes.
PARAMS = ThroughputParams(
    alpha_c=0.01,
    beta_c=0.0014,
    alpha_r=0.004,
    beta_r=0.0004,
    alpha_n=0.02,
    beta_n=0.001,
    gamma=2.0,
)


def offer(name: str = "a", **changed: object) -> Offer:
    return Offer(
        **{"id": name, "num_gpus": 4, "price_per_h": 4.0, "most": 16, **changed}
    )


def job(
    name: str = "job",
    *,
    gpus: int = 4,
    noise: float = 10.0,
    timed: int = 64,
    left: float = 1e6,
    deadline_at: float | None = None,
    max_gpus: int = 64,
) -> JobView:
    """Return an adaptive job of 64 to 8,192 samples, with a noise scale in initial
    batches.
    """
    spec = JobSpec(
        name=name,
        contract=RescaleContract.ADAPTIVE,
        replicas=ReplicaLimits(max=max_gpus),
        batch=BatchLimits(initial=64, max_total=8192, max_atomic=256),
        deadline_at=deadline_at,
    )
    profile = TypeProfile(params=PARAMS, num_replicas_profiled=timed)
    measured = Measured(
        progress=100.0,
        progress_target=100.0 + left,
        by_type={"gpu": profile} if timed else {},
        grad=GradStats(sqr=1.0, var=noise),
    )
    grant = Grant()
    if gpus:
        slots = tuple((f"n{i}", min(4, gpus - 4 * i)) for i in range(-(-gpus // 4)))
        grant = Grant(allocation=Allocation(slots=slots))
    usage = Usage(started_at=0.0) if timed else Usage()
    return JobView(
        id=name,
        spec=spec,
        submitted_at=0.0,
        grant=grant,
        measured=measured,
        usage=usage,
    )


def view(
    *jobs: JobView, pools: tuple[Pool, ...] = (), at: float = 3600.0, spent: float = 0.0
) -> SizingView:
    held = sorted({node for each in jobs for node, _ in each.allocation.slots})
    nodes = tuple(Node(id=name, num_gpus=4) for name in held)
    if not pools:
        pools = (Pool(offer=offer(), num_live=len(nodes)),)
    cluster = ClusterView(at=at, nodes=nodes, jobs=tuple(jobs))
    return SizingView(cluster=cluster, pools=pools, spent=spent)


def spot(name: str = "s", **changed: object) -> Offer:
    return offer(name, **{"market": Market.SPOT, "price_per_h": 1.2, **changed})
