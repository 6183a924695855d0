"""Physical slots of nodes: which of them are free, and which one a label of a shared
GPU stands for.
"""

# A plan names a shared GPU by a label, which says only which jobs share it
# (model/devices.py). Here it is tied to a slot: to the first free one when the first
# job comes with it, and for as long as any job holds it. The tie is kept nowhere but in
# the orders of the jobs that run: a new executor knows it again once it has adopted
# them.

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from coadapt.model import Node, NodeId
from coadapt.model.devices import PARTS


@dataclass(frozen=True, slots=True, order=True)
class Slot:
    """One slot of a node, by its number there. label: by which jobs share it, None: it
    is this job's alone.

    parts: how much of it, out of PARTS.
    """

    number: int
    label: int | None = None
    parts: int = PARTS


Slots = Mapping[NodeId, tuple[Slot, ...]]
"""Per node, in rank order; where order means nothing, by number."""


def union(one: Slots, other: Slots) -> Slots:
    """Return all slots that are taken in one of both; of a slot in both, the larger
    share.
    """
    both: dict[NodeId, tuple[Slot, ...]] = {}
    for node in {**one, **other}:
        largest: dict[int, Slot] = {}
        for slot in sorted(
            (*one.get(node, ()), *other.get(node, ())), key=lambda slot: slot.parts
        ):
            largest[slot.number] = slot
        both[node] = tuple(sorted(largest.values()))
    return both


class FreeSlots:
    """What a job may take beside what `others` hold, and beside its `own` slots, whose
    replicas may stay.
    """

    def __init__(
        self,
        nodes: Iterable[Node],
        others: Iterable[Slots] = (),
        own: Slots | None = None,
    ) -> None:
        self._whole = {node.id: list(range(node.num_gpus)) for node in nodes}
        self._tied: dict[tuple[NodeId, int], int] = {}
        self._parts: dict[tuple[NodeId, int], int] = {}
        for held in others:
            self._take_out(held)
            for node, label, parts in _labels(held):
                self._parts[node, label] = self._parts.get((node, label), 0) + parts
        self._take_out(own or {})

    def whole(self, node: NodeId, count: int) -> list[Slot]:
        """Return `count` slots that nobody holds any part of, fewer if there are not as
        many.
        """
        return [Slot(number) for number in self._whole.get(node, ())[:count]]

    def shared(self, node: NodeId, labels: Iterable[int], parts: int) -> list[Slot]:
        """Return `parts` of the slot of each label, leaving out those for which there
        is no room now.
        """
        free = iter(self._whole.get(node, ()))
        found: list[Slot] = []
        for label in labels:
            if self._parts.get((node, label), 0) + parts > PARTS:
                continue
            number = self._tied.get((node, label))
            if number is None and (number := next(free, None)) is None:
                continue
            found.append(Slot(number, label, parts))
        return found

    def _take_out(self, held: Slots) -> None:
        for node, slots in held.items():
            numbers = {slot.number for slot in slots}
            self._whole[node] = [
                number for number in self._whole.get(node, ()) if number not in numbers
            ]
            self._tied |= {
                (node, slot.label): slot.number
                for slot in slots
                if slot.label is not None
            }


def _labels(held: Slots) -> Iterable[tuple[NodeId, int, int]]:
    for node, slots in held.items():
        for slot in slots:
            if slot.label is not None:
                yield node, slot.label, slot.parts
