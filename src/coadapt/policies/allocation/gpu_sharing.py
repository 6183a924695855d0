"""Placing on shared GPUs: beside others where there is room, and two jobs together on
GPUs of their own.
"""

from collections.abc import Sequence

from coadapt.model import (
    Allocation,
    FreeGpus,
    JobView,
    Node,
    NodeId,
    RescaleContract,
    holding,
)
from coadapt.policies.allocation.counted_plan import requested_batch


def beside(
    job: JobView, count: int, sharers: int, nodes: Sequence[Node], free: FreeGpus
) -> Allocation | None:
    """Return `count` replicas of `job` with 1/`sharers` of a GPU each, taken out of
    `free`; None if none fit.

    All are on one GPU type that the job allows. GPUs that others share come before free
    ones, then one rack before several, then few nodes. A frozen job that runs gets
    None: it may only keep what it holds.
    """
    if job.spec.contract is RescaleContract.FROZEN and job.allocation:
        return None
    types = sorted(
        {
            node.gpu_type
            for node in nodes
            if job.spec.replicas.allows_type(node.gpu_type)
        }
    )
    found: list[tuple[int, int, int, Allocation]] = []
    for gpu_type in types:
        of_type = [node for node in nodes if node.gpu_type == gpu_type]
        racks = sorted({node.rack for node in of_type})
        for group in [
            [node for node in of_type if node.rack == rack] for rack in racks
        ] + [of_type]:
            allocation = _among(count, sharers, group, free)
            if allocation is not None:
                num_racks = len({node.rack for node in group if allocation.on(node.id)})
                num_new = free.num_new(holding(allocation))
                found.append((num_new, num_racks, allocation.num_nodes, allocation))
    if not found:
        return None
    best = min(found, key=lambda each: each[:3])[3]
    free.take(holding(best))
    return best


def together(
    pair: tuple[JobView, JobView], count: int, nodes: Sequence[Node], free: FreeGpus
) -> Allocation | None:
    """Return what both of `pair` get to share `count` GPUs by halves, taken out of
    `free`; None if none fit.

    No other job is on these GPUs, and both jobs allow their type.
    """
    first, second = pair
    untouched = FreeGpus(nodes)
    untouched.whole = dict(free.whole)
    allowed = [
        node for node in nodes if second.spec.replicas.allows_type(node.gpu_type)
    ]
    bound = second.spec.contract is RescaleContract.FROZEN and second.allocation
    fresh = None if bound else beside(first, count, 2, allowed, untouched)
    if fresh is None:
        return None
    used = {
        node: {label for name, label in free.parts if name == node}
        for node, _ in fresh.slots
    }
    labels: list[int] = []
    for node, num_replicas in fresh.slots:
        unused = (
            label
            for label in range(len(used[node]) + num_replicas)
            if label not in used[node]
        )
        labels += [next(unused) for _ in range(num_replicas)]
    both = Allocation(slots=fresh.slots, gpu_share=0.5, shared=tuple(labels))
    for _ in pair:
        free.take(holding(both))
    return both


def _among(
    count: int, sharers: int, nodes: Sequence[Node], free: FreeGpus
) -> Allocation | None:
    """Return `count` replicas on `nodes`: most shared GPUs first, then most open ones;
    None if too few.
    """
    open_at = {node.id: free.open_labels(node.id, sharers) for node in nodes}
    num_shared = {
        node: sum((node, label) in free.parts for label in labels)
        for node, labels in open_at.items()
    }
    left = count
    slots: list[tuple[NodeId, int]] = []
    shared: list[int] = []
    for node in sorted(
        open_at, key=lambda node: (-num_shared[node], -len(open_at[node]), node)
    ):
        if taken := min(left, len(open_at[node])):
            slots.append((node, taken))
            shared += open_at[node][:taken]
            left -= taken
    if left:
        return None
    if sharers == 1:
        shared = []
    return Allocation(slots=tuple(slots), gpu_share=1 / sharers, shared=tuple(shared))


def fits_share(job: JobView, count: int, sharers: int) -> bool:
    """Return whether passes of the requested batch on `count` replicas fit 1/`sharers`
    of a GPU's memory.

    True where nothing is known of the memory. A job for which it is False would need
    more passes per step.
    """
    batch = requested_batch(job, count) or job.measured.batch
    known = [
        profile.max_atomic
        for profile in job.measured.by_type.values()
        if profile.max_atomic is not None
    ]
    most = min(known, default=job.spec.batch.max_atomic)
    return batch is None or most is None or batch.atomic * sharers <= most
