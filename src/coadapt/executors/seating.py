"""Who sits where: which replicas of a job take which slots, at a start and at a change in place. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from coadapt.executors.generation_dir import LaunchOrder
from coadapt.model import Allocation, NodeId
from coadapt.model.rescale import member_name

Slots = Mapping[NodeId, tuple[int, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Seating:
    """members: names in rank order. slots: theirs, node by node in that order. root: see LaunchOrder."""

    members: tuple[str, ...]
    slots: Slots
    root: int


def seat(
    generation: int,
    allocation: Allocation,
    free: Mapping[NodeId, Sequence[int]],
    present: Seating | None = None,
) -> Seating | None:
    """Return who takes which slots in `generation`, None while too few are free.

    `present`: replicas that go on in place; as many of them as the allocation allows stay where they are. The
    others are new, on the first of the `free` slots.
    """
    seated = {} if present is None else _by_node(present)
    members: list[str] = []
    slots: dict[NodeId, tuple[int, ...]] = {}
    for node, count in allocation.slots:
        staying = seated.get(node, [])[:count]
        joining = free.get(node, ())[: count - len(staying)]
        if len(staying) + len(joining) < count:
            return None
        members.extend(name for name, _ in staying)
        ranks = range(len(members), len(members) + len(joining))
        members.extend(member_name(generation, rank) for rank in ranks)
        slots[node] = (*(slot for _, slot in staying), *joining)
    root = generation if present is None else present.root
    return Seating(members=tuple(members), slots=slots, root=root)


def seating_of(order: LaunchOrder, generation: int) -> Seating:
    """Return the seating that was ordered for `generation`."""
    if order.roster is None:
        members = tuple(member_name(generation, rank) for rank in range(len(order.replicas)))
        return Seating(members=members, slots=order.slots, root=generation)
    return Seating(members=order.roster.members, slots=order.slots, root=order.root)


def union(one: Slots, other: Slots) -> Slots:
    """Return all slots that are taken in one of both."""
    return {node: tuple(sorted({*one.get(node, ()), *other.get(node, ())})) for node in {**one, **other}}


def _by_node(seating: Seating) -> dict[NodeId, list[tuple[str, int]]]:
    names = iter(seating.members)
    return {node: [(next(names), slot) for slot in slots] for node, slots in seating.slots.items()}
