"""Assigns slots to the replicas of a job, at a start and at a rescale in place.
Pure.
"""

from dataclasses import dataclass

from coadapt.executors.processes.records.generation_dir import LaunchOrder
from coadapt.executors.processes.slots import FreeSlots, Slot, Slots
from coadapt.model import Allocation, NodeId
from coadapt.model.devices import PARTS
from coadapt.model.rescale import member_name

Member = tuple[str, Slot]


@dataclass(frozen=True, slots=True, kw_only=True)
class RankMap:
    """Which replica has which slot. members: the replicas' names in rank order. slots:
    their slots, node by node in the same order. lead: see LaunchOrder.
    """

    members: tuple[str, ...]
    slots: Slots
    lead: int

    def node_of(self, member: str) -> NodeId | None:
        """Return the node of a replica, None for a name that is not in the map."""
        nodes = (node for node, slots in self.slots.items() for _ in slots)
        return next(
            (
                node
                for name, node in zip(self.members, nodes, strict=True)
                if name == member
            ),
            None,
        )


def map_ranks(
    generation: int,
    allocation: Allocation,
    free: FreeSlots,
    present: RankMap | None = None,
) -> RankMap | None:
    """Return which replica takes which slots in `generation`, None while too few slots
    are free.

    present: the running replicas that change in place. As many of them stay where they
    are as the allocation allows. A replica on a shared GPU stays only if the allocation
    has its label. All other replicas are joining ones.
    """
    before = {} if present is None else _by_node(present)
    members: list[str] = []
    slots: dict[NodeId, tuple[Slot, ...]] = {}
    for node, count in allocation.slots:
        staying = _staying(before.get(node, []), allocation, node)
        joining = _joining(staying, allocation, node, free)
        if len(staying) + len(joining) < count:
            return None
        members.extend(name for name, _ in staying)
        ranks = range(len(members), len(members) + len(joining))
        members.extend(member_name(generation, rank) for rank in ranks)
        slots[node] = (*(slot for _, slot in staying), *joining)
    lead = generation if present is None else present.lead
    return RankMap(members=tuple(members), slots=slots, lead=lead)


def ordered_rank_map(order: LaunchOrder) -> RankMap:
    """Return the rank map that was ordered."""
    return RankMap(members=order.rescale.members, slots=order.slots, lead=order.lead)


def _staying(
    present: list[Member], allocation: Allocation, node: NodeId
) -> list[Member]:
    """Return the replicas that stay on a node, each with its new share of its slot."""
    if not allocation.shared:
        return [(name, slot) for name, slot in present if slot.label is None][
            : allocation.on(node)
        ]
    labels = allocation.labels_on(node)
    parts = PARTS // allocation.num_sharers
    return [
        (name, Slot(slot.number, slot.label, parts))
        for name, slot in present
        if slot.label in labels
    ]


def _joining(
    staying: list[Member], allocation: Allocation, node: NodeId, free: FreeSlots
) -> list[Slot]:
    if not allocation.shared:
        return free.whole(node, allocation.on(node) - len(staying))
    there = {slot.label for _, slot in staying}
    labels = [label for label in allocation.labels_on(node) if label not in there]
    return free.shared(node, labels, PARTS // allocation.num_sharers)


def _by_node(rank_map: RankMap) -> dict[NodeId, list[Member]]:
    names = iter(rank_map.members)
    return {
        node: [(next(names), slot) for slot in slots]
        for node, slots in rank_map.slots.items()
    }
