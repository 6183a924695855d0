"""Hypothesis strategies for floor 0: any lawful node, job view, cluster view."""

from dataclasses import replace

from hypothesis import strategies as st

from coadapt.model import (
    Allocation,
    BatchLimits,
    BatchSchedule,
    ClusterView,
    JobSpec,
    JobView,
    Node,
    ReplicaLimits,
    RescaleContract,
)


@st.composite
def replica_limits(draw: st.DrawFn) -> ReplicaLimits:
    least = draw(st.integers(1, 4))
    most = draw(st.integers(least, 16))
    return ReplicaLimits(min=least, max=most, requested=draw(st.integers(least, most)))


@st.composite
def batch_limits(draw: st.DrawFn) -> BatchLimits:
    initial = draw(st.integers(1, 512))
    max_total = draw(st.integers(initial, 8192))
    min_atomic = draw(st.integers(1, 32))
    return BatchLimits(
        initial=initial,
        requested=draw(st.integers(1, max_total)),
        max_total=max_total,
        min_atomic=min_atomic,
        max_atomic=draw(st.none() | st.integers(min_atomic, 1024)),
        accumulation=draw(st.booleans()),
    )


@st.composite
def schedules(draw: st.DrawFn) -> BatchSchedule:
    keys = [0, *sorted(draw(st.sets(st.integers(1, 10**14), max_size=6)))]
    return BatchSchedule(steps=tuple((key, draw(st.integers(1, 4096))) for key in keys))


@st.composite
def job_specs(draw: st.DrawFn, *, contract: RescaleContract | None = None) -> JobSpec:
    contract = contract or draw(st.sampled_from(RescaleContract))
    batch = draw(batch_limits())
    if contract is RescaleContract.SCHEDULE:
        ramp = draw(schedules())
        most = max(batch.max_total, *ramp.totals)
        batch = replace(batch, requested=ramp.totals[0], max_total=most, schedule=ramp)
    return JobSpec(
        name=draw(st.text("abcxyz-", min_size=1, max_size=8)),
        batch=batch,
        replicas=draw(replica_limits()),
        contract=contract,
        max_failures=draw(st.integers(0, 5)),
    )


@st.composite
def clusters(draw: st.DrawFn) -> tuple[Node, ...]:
    sizes = draw(st.lists(st.integers(1, 8), max_size=6))
    racks = draw(st.integers(1, 3))
    return tuple(
        Node(id=f"n{i}", num_gpus=size, rack=f"r{i % racks}")
        for i, size in enumerate(sizes)
    )


@st.composite
def cluster_views(draw: st.DrawFn, *, max_jobs: int = 6) -> ClusterView:
    """Views in which no job holds anything yet."""
    specs = draw(st.lists(job_specs(), max_size=max_jobs))
    jobs = tuple(
        JobView(id=f"j{index}", spec=spec, submitted_at=float(index))
        for index, spec in enumerate(specs)
    )
    return ClusterView(at=draw(st.floats(0, 1e6)), nodes=draw(clusters()), jobs=jobs)


@st.composite
def allocations(draw: st.DrawFn) -> Allocation:
    names = draw(
        st.lists(st.sampled_from([f"n{i}" for i in range(8)]), unique=True, max_size=6)
    )
    sharers = draw(st.sampled_from([1, 1, 2, 3, 8]))
    slots = tuple((name, draw(st.integers(1, 8))) for name in names)
    labels: list[int] = []
    if sharers > 1:
        for _, count in slots:
            labels += draw(
                st.lists(st.integers(0, 9), unique=True, min_size=count, max_size=count)
            )
    return Allocation(slots=slots, gpu_share=1 / sharers, shared=tuple(labels))
