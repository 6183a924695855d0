"""A first decision on a made-up round: it loads all that a policy needs, and compiles its kernels."""

from coadapt.model import (
    Allocation,
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
    Plan,
    ReplicaLimits,
    RescaleContract,
    ThroughputParams,
    TypeProfile,
)
from coadapt.policies.base import Policy

_PROFILE = TypeProfile(
    params=ThroughputParams(alpha_c=0.01, beta_c=0.001, alpha_r=0.02, alpha_n=0.1), num_replicas_profiled=8
)


def _job(index: int) -> JobView:
    """Return one of a few jobs that hold one GPU each and want more, no two of them alike."""
    return JobView(
        id=f"job-{index}",
        spec=JobSpec(
            name=f"job {index}",
            batch=BatchLimits(initial=32 + 8 * index, max_total=1024),
            replicas=ReplicaLimits(min=1, max=6, requested=1 + index % 3),
            contract=RescaleContract.ADAPTIVE,
        ),
        submitted_at=float(index),
        grant=Grant(allocation=Allocation(slots=((f"node-{index % 3}", 1),))),
        measured=Measured(
            by_type={"gpu": _PROFILE},
            grad=GradStats(sqr=1.0, var=1.0 + index),
            forecast=Forecast(remaining_steps=1000.0 * (1 + index), step_time_s=(0.2, 0.12, 0.09, 0.08)),
        ),
    )


# What jobs hold is in the way of what they want, and Pollux's bound cannot be met: policies have to search.
REHEARSAL = ClusterView(
    at=60.0,
    nodes=tuple(Node(id=f"node-{index}", num_gpus=3) for index in range(3)),
    jobs=tuple(_job(index) for index in range(5)),
)


def rehearse(policy: Policy) -> Plan:
    """Return the plan of `policy`, which is spent then. Raises what it raises."""
    return policy.allocate(REHEARSAL)


def rehearse_fit() -> None:
    """Fit a step-time model, as jobs that choose their own batch do."""
    from coadapt.goodput.fit import fit_throughput
    from coadapt.goodput.profile import ProfileBuilder

    profile = ProfileBuilder()
    profile.add(Placement((1,)), 32, 0.1, 0.1)
    fit_throughput(profile.build())
