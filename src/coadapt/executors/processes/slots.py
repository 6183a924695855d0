"""Physical slots of nodes: which of them are free, and which slot belongs to the label
of a shared GPU.
"""

# A plan names a shared GPU by a label, which says only which jobs share the GPU
# (model/devices.py). Here a label gets a slot: the first free one when the first job
# with this label starts. The label keeps this slot as long as any job holds it. Only
# the orders of running jobs record which label has which slot, so a new executor knows
# it once it has adopted these jobs.

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from coadapt.model import Node, NodeId
from coadapt.model.devices import PARTS


@dataclass(frozen=True, slots=True, order=True)
class Slot:
    """One slot of a node, by its number on the node. label: the label of a shared GPU,
    None if one job has the slot alone.

    parts: the job's share of the slot, out of PARTS.
    """

    number: int
    label: int | None = None
    parts: int = PARTS


Slots = Mapping[NodeId, tuple[Slot, ...]]
"""By node, in rank order, or by number where the order has no meaning."""


def union(one: Slots, other: Slots) -> Slots:
    """Return all slots that are in either argument. A slot in both has the larger
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
    """The slots that a job may take besides the slots that `others` hold, and besides
    its `own` slots, whose replicas may stay.
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
        """Return `count` wholly free slots, or fewer if there are not enough."""
        return [Slot(number) for number in self._whole.get(node, ())[:count]]

    def shared(self, node: NodeId, labels: Iterable[int], parts: int) -> list[Slot]:
        """Return `parts` of the slot of each label. Labels whose slot has no room now
        are left out.
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
