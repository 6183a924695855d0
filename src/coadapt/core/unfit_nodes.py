"""Nodes on which one job cannot run although others can: what a plan gives it there is
moved to other nodes.

Called by Scheduler.handle only.
"""

# Why the core moves it. An engine finds out as it starts a replica that a node lacks
# something of this job: its work directory is not mounted there. The node is sound for
# other jobs, so it stays in the cluster, and policies know nothing of nodes that one
# job cannot use. So what a plan gives the job on such a node is exchanged for GPUs of
# the same type that the plan left free; where there are too few, the job gets fewer, or
# waits.

from collections.abc import Mapping, MutableMapping

from coadapt.model import WAITING, Allocation, Node, NodeId


def moved(
    planned: Allocation,
    held: Allocation,
    unfit: Mapping[NodeId, str],
    nodes: Mapping[NodeId, Node],
    *,
    free: MutableMapping[NodeId, int],
    least: int,
) -> Allocation:
    """Return an allocation like `planned` without the nodes in `unfit`, WAITING if none
    of `least` replicas is.

    held: what the job has now, which it keeps if it is as large and free. free: whole
    GPUs that the plan leaves on each node; what is taken of it is taken out.
    """
    if planned.shared or not any(node in unfit for node, _ in planned.slots):
        return planned
    for node, count in planned.slots:
        free[node] = free.get(node, 0) + count
    slots = dict(_kept(planned, held, unfit, free))
    if not slots:
        slots = _elsewhere(planned, unfit, nodes, free)
    if sum(slots.values()) < least:
        slots = {}
    for node, count in slots.items():
        free[node] -= count
    return Allocation(slots=tuple(slots.items())) if slots else WAITING


def _kept(
    planned: Allocation,
    held: Allocation,
    unfit: Mapping[NodeId, str],
    free: Mapping[NodeId, int],
) -> tuple[tuple[NodeId, int], ...]:
    """Return the slots of `held` if the job can keep them in place of what was planned,
    else none.
    """
    alike = held.num_replicas == planned.num_replicas and not held.shared
    fits = all(
        node not in unfit and free.get(node, 0) >= count for node, count in held.slots
    )
    return held.slots if alike and fits else ()


def _elsewhere(
    planned: Allocation,
    unfit: Mapping[NodeId, str],
    nodes: Mapping[NodeId, Node],
    free: Mapping[NodeId, int],
) -> dict[NodeId, int]:
    gpu_type = nodes[planned.slots[0][0]].gpu_type
    slots = {node: count for node, count in planned.slots if node not in unfit}
    lacking = planned.num_replicas - sum(slots.values())
    others = [
        node for node in nodes if node not in unfit and nodes[node].gpu_type == gpu_type
    ]
    # Nodes that the job is on already come first, then those with the most room.
    for node in sorted(
        others, key=lambda node: (node not in slots, -free.get(node, 0), node)
    ):
        room = free.get(node, 0) - slots.get(node, 0)
        taken = min(lacking, max(room, 0))
        if taken:
            slots[node] = slots.get(node, 0) + taken
            lacking -= taken
    return slots
