"""Nodes on which one job cannot run although others can: what a plan gives it there is
moved to other nodes.

Called by Scheduler.handle only.
"""

# Why the core moves GPUs. When an engine starts a replica, it may find that a node
# lacks something that this job needs, for instance its work directory. The node works
# for other jobs, so it stays in the cluster, and policies do not know that one job
# cannot use it. Therefore the core exchanges the job's planned GPUs on such a node for
# GPUs of the same type that the plan leaves free. If there are too few, the job gets
# fewer GPUs or waits.

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
    """Return an allocation like `planned` without the nodes in `unfit`, WAITING if it
    would have fewer than `least` replicas.

    held: the job's present allocation. The job keeps it if it is as large and its GPUs
    are free. free: whole GPUs that the plan leaves on each node; it is updated.
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
