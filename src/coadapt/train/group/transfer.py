"""Send a state of nested plain values and tensors from one replica to others."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from coadapt.train.group.group import Group
from coadapt.train.nested import leaves, map_leaves

# Smaller tensors are part of the message that describes the state, because a separate
# message for each costs more.
INLINE_BYTES = 4096


@dataclass(frozen=True, slots=True)
class _Slot:
    """Represents a tensor that is sent separately."""

    index: int
    shape: torch.Size
    dtype: torch.dtype
    on_cpu: bool


def send_state(group: Group, state: object, receivers: Sequence[int]) -> None:
    """Send `state` to the ranks `receivers`. Each of them must call `receive_state`."""
    tensors: list[Tensor] = []
    outline = _outline(state, tensors)
    for rank in receivers:
        dist.send_object_list([outline], dst=rank, group=group.control)
    works = [
        dist.isend(tensor, dst=rank, group=_carrier(group, tensor), tag=tag)
        for tag, tensor in enumerate(tensors)
        for rank in receivers
    ]
    for work in works:
        assert work is not None
        work.wait()


def tensor_kinds(state: object) -> dict[str, tuple[list[int], str]]:
    """Return the shape and type of each tensor in host memory that is sent separately,
    by its path in `state`.
    """
    return {
        path: (list(leaf.shape), str(leaf.dtype))
        for path, leaf in leaves(state)
        if isinstance(leaf, Tensor)
        and leaf.device.type == "cpu"
        and _bytes(leaf) > INLINE_BYTES
    }


def make_room(
    own: object, kinds: Mapping[str, tuple[list[int], str]]
) -> dict[str, Tensor]:
    """Return a tensor for each of another replica's `tensor_kinds` that the state `own`
    lacks, for `receive_state`.

    Their memory has been written to, because the kernel allocates it at the first
    touch, which takes time.
    """
    present = {path for path, leaf in leaves(own) if isinstance(leaf, Tensor)}
    return {
        path: torch.empty(
            shape, dtype=getattr(torch, kind.removeprefix("torch."))
        ).fill_(0)
        for path, (shape, kind) in kinds.items()
        if path not in present
    }


def receive_state(
    group: Group, sender: int, own: object, room: Mapping[str, Tensor] | None = None
) -> object:
    """Return the state that rank `sender` sends. Tensors from its GPU are on this
    replica's GPU.

    own: a state of this replica. If it has a tensor of the same kind at the same place,
    this tensor is overwritten and returned, which saves memory and a copy. room:
    further tensors for this, by path.
    """
    box: list[object] = [None]
    dist.recv_object_list(box, src=sender, group=group.control)
    tensors = _targets(box[0], own, room or {}, group.device)
    works = [
        dist.irecv(tensor, src=sender, group=_carrier(group, tensor), tag=tag)
        for tag, tensor in enumerate(tensors)
    ]
    for work in works:
        assert work is not None
        work.wait()
    return map_leaves(
        lambda _, leaf: tensors[leaf.index] if isinstance(leaf, _Slot) else leaf, box[0]
    )


def _carrier(group: Group, tensor: Tensor) -> dist.ProcessGroup | None:
    return group.control if tensor.device.type == "cpu" else None


def _outline(state: object, tensors: list[Tensor]) -> object:
    """Return `state` with a slot for each tensor that is sent separately. These tensors
    are appended to `tensors`.
    """

    def slotted(_path: str, leaf: object) -> object:
        if not isinstance(leaf, Tensor):
            return leaf
        value = leaf.detach()
        on_cpu = value.device.type == "cpu"
        if on_cpu and _bytes(value) <= INLINE_BYTES:
            return (
                value.clone()
            )  # a copy with its own storage: a view would send all of its base
        tensors.append(value.contiguous())
        return _Slot(len(tensors) - 1, value.shape, value.dtype, on_cpu)

    return map_leaves(slotted, state)


def _targets(
    outline: object, own: object, room: Mapping[str, Tensor], device: torch.device
) -> list[Tensor]:
    """Return a tensor for each slot to receive into, in the order in which they are
    sent.
    """
    present = {
        **room,
        **{path: leaf for path, leaf in leaves(own) if isinstance(leaf, Tensor)},
    }
    targets = []
    for path, leaf in leaves(outline):
        if isinstance(leaf, _Slot):
            where = torch.device("cpu") if leaf.on_cpu else device
            mine = present.get(path)
            targets.append(
                mine.detach()
                if mine is not None and _fits(mine, leaf, where)
                else torch.empty(leaf.shape, dtype=leaf.dtype, device=where)
            )
    return targets


def _fits(own: Tensor, slot: _Slot, device: torch.device) -> bool:
    kind = (own.shape, own.dtype, own.device.type)
    return kind == (slot.shape, slot.dtype, device.type) and own.is_contiguous()


def _bytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()
