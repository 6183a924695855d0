"""First decisions on made-up rounds: they load all that a policy needs, and compile its
kernels.
"""

from dataclasses import replace

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
    Plan,
    ReplicaLimits,
    RescaleContract,
    ThroughputParams,
    TypeProfile,
)
from coadapt.policies.base import Policy

_PROFILE = TypeProfile(
    params=ThroughputParams(alpha_c=0.01, beta_c=0.001, alpha_r=0.02, alpha_n=0.1),
    num_replicas_profiled=8,
)


def _job(index: int, done: float = 0.0) -> JobView:
    """Return one of a few jobs that hold one GPU each and want more, no two of them
    alike.

    done: samples that it has trained on, of a million.
    """
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
            samples=done,
            progress=done,
            progress_target=1e6,
            forecast=Forecast(
                remaining_steps=1000.0 * (1 + index),
                step_time_s=(0.2, 0.12, 0.09, 0.08),
            ),
        ),
    )


def _same_application(number: int, done: float) -> JobView:
    """Return one of some jobs of an application, which has reported a step, and is
    later than is fair.
    """
    one = _job(4, done)
    batch = BatchConfig(total=64, atomic=64, accumulation=0)
    spec = replace(one.spec, application="rehearsal")
    measured = replace(one.measured, batch=batch, step_time_s=0.1)
    return replace(
        one,
        id=f"same-application-{number}",
        spec=spec,
        measured=measured,
        submitted_at=-1e6,
    )


def _new_job() -> JobView:
    """Return a job that has not run yet."""
    return replace(_job(5), grant=Grant(), measured=Measured())


# What jobs hold is in the way of what they want, and Pollux's bound cannot be met:
# policies have to search.
REHEARSAL = ClusterView(
    at=60.0,
    nodes=tuple(Node(id=f"node-{index}", num_gpus=3) for index in range(3)),
    jobs=(
        *(_job(index) for index in range(4)),
        _same_application(0, done=1e5),
        _same_application(1, done=9e5),
    ),
)
# A round later the last job has ended, and a new one came: policies learn from the one,
# and guess about the other. And a node is of another type: what is decided in another
# way where types differ is compiled, too.
REHEARSAL_AFTER = replace(
    REHEARSAL,
    at=120.0,
    nodes=(*REHEARSAL.nodes[:-1], replace(REHEARSAL.nodes[-1], gpu_type="other")),
    jobs=(*REHEARSAL.jobs[:-1], _new_job()),
)


def rehearse(policy: Policy) -> Plan:
    """Return the first plan of `policy`, which is spent then. Raises what it raises."""
    plan = policy.allocate(REHEARSAL)
    policy.allocate(REHEARSAL_AFTER)
    return plan


def rehearse_fit() -> None:
    """Fit a step-time model, as simulated jobs that choose their own batch do."""
    from coadapt.goodput.fit import fit_throughput
    from coadapt.goodput.fit_kernel import compile_loops
    from coadapt.goodput.profile import ProfileBuilder

    compile_loops()
    profile = ProfileBuilder()
    profile.add(Placement((1,)), 32, 0.1, 0.1)
    fit_throughput(profile.build())
