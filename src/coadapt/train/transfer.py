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


def receive_state(group: Group, sender: int) -> object:
    """Return the state that rank `sender` sends; what lay on its GPU lies on this replica's own."""
    box: list[object] = [None]
    dist.recv_object_list(box, src=sender, group=group.control)
    slots: list[_Slot] = []
    _find_slots(box[0], slots)
    tensors = [
        torch.empty(slot.shape, dtype=slot.dtype, device="cpu" if slot.on_cpu else group.device)
        for slot in slots
    ]
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


def _find_slots(value: object, slots: list[_Slot]) -> None:
    if isinstance(value, _Slot):
        slots.append(value)
    elif isinstance(value, dict):
        for item in value.values():
            _find_slots(item, slots)
    elif isinstance(value, list | tuple):
        for item in value:
            _find_slots(item, slots)


def _put_back(value: object, tensors: list[Tensor]) -> object:
    if isinstance(value, _Slot):
        return tensors[value.index]
    if isinstance(value, dict):
        return {key: _put_back(item, tensors) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)([_put_back(item, tensors) for item in value])
    return value
