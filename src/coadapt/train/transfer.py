"""Send a state of nested plain values and tensors from one replica to others."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from coadapt.train.group import Group

# Smaller tensors travel inside the message that describes the others: a message each costs more.
INLINE_BYTES = 4096


@dataclass(frozen=True, slots=True)
class _Slot:
    """Stands for a tensor that is sent by itself."""

    index: int
    shape: torch.Size
    dtype: torch.dtype
    on_cpu: bool


def send_state(group: Group, state: object, receivers: Sequence[int]) -> None:
    """Send `state` to the ranks `receivers`. Each of them must call `receive_state`."""
    tensors: list[Tensor] = []
    outline = _take_out(state, tensors)
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


def receive_state(group: Group, sender: int, own: object) -> object:
    """Return the state that rank `sender` sends; what lay on its GPU lies on this replica's own.

    own: a state of this replica; where the other has a tensor of equal kind in the same place, that tensor
    is overwritten and returned, which saves memory and a copy.
    """
    box: list[object] = [None]
    dist.recv_object_list(box, src=sender, group=group.control)
    tensors: list[Tensor] = []
    _make_room(box[0], own, group.device, tensors)
    works = [
        dist.irecv(tensor, src=sender, group=_carrier(group, tensor), tag=tag)
        for tag, tensor in enumerate(tensors)
    ]
    for work in works:
        assert work is not None
        work.wait()
    return _put_back(box[0], tensors)


def _carrier(group: Group, tensor: Tensor) -> dist.ProcessGroup | None:
    return group.control if tensor.device.type == "cpu" else None


def _take_out(value: object, tensors: list[Tensor]) -> object:
    if isinstance(value, Tensor):
        value = value.detach()
        if value.device.type == "cpu" and value.numel() * value.element_size() <= INLINE_BYTES:
            return value.clone()  # of its own storage: a view would take all of its base along
        tensors.append(value.contiguous())
        return _Slot(len(tensors) - 1, value.shape, value.dtype, value.device.type == "cpu")
    if isinstance(value, dict):
        return {key: _take_out(item, tensors) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)([_take_out(item, tensors) for item in value])
    return value


def _make_room(value: object, own: object, device: torch.device, tensors: list[Tensor]) -> None:
    """Append a tensor for each slot in `value`, in the order in which they were taken out."""
    if isinstance(value, _Slot):
        where = torch.device("cpu") if value.on_cpu else device
        tensors.append(
            own.detach()
            if isinstance(own, Tensor) and _fits(own, value, where)
            else torch.empty(value.shape, dtype=value.dtype, device=where)
        )
    elif isinstance(value, dict):
        for key, item in value.items():
            _make_room(item, own.get(key) if isinstance(own, dict) else None, device, tensors)
    elif isinstance(value, list | tuple):
        for item in value:
            _make_room(item, None, device, tensors)


def _fits(own: Tensor, slot: _Slot, device: torch.device) -> bool:
    kind = (own.shape, own.dtype, own.device.type)
    return kind == (slot.shape, slot.dtype, device.type) and own.is_contiguous()


def _put_back(value: object, tensors: list[Tensor]) -> object:
    if isinstance(value, _Slot):
        return tensors[value.index]
    if isinstance(value, dict):
        return {key: _put_back(item, tensors) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)([_put_back(item, tensors) for item in value])
    return value
