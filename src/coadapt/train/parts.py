"""Tensors of which each replica holds a part (DTensor): the part, the whole, and states with such tensors.

Loads `torch.distributed.tensor` (0.4 s) only where there are parts.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeGuard

import torch
from torch import Tensor

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor

Which = Callable[[str, Tensor], bool]

# Where a state names a tensor in parts, under this key of a dict of its own.
MARK = "coadapt.parts"


def in_parts(value: object) -> "TypeGuard[DTensor]":
    """Return whether `value` is a tensor in parts."""
    return isinstance(value, Tensor) and hasattr(value, "to_local")


def own_parts(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Return this replica's part of each; what is whole stays as it is. No copies."""
    return [tensor.to_local() if in_parts(tensor) else tensor for tensor in tensors]


def cut_like(whole: Tensor, like: Tensor) -> Tensor:
    """Return `whole`, which all replicas have, cut as `like` is; or what is cut made whole, if `like` is.

    Collective where `whole` is cut.
    """
    if whole.shape != like.shape:
        return whole
    if not in_parts(like):
        return whole.full_tensor() if in_parts(whole) else whole
    if in_parts(whole):
        return whole.redistribute(like.device_mesh, like.placements)
    from torch.distributed.tensor import distribute_tensor

    whole = whole.to(like.device_mesh.device_type)
    return distribute_tensor(whole, like.device_mesh, like.placements, src_data_rank=None)


def whole_like(part: Tensor, like: Tensor) -> Tensor:
    """Return the whole of which each replica has a `part`, cut as `like` is. Collective, if it is cut."""
    if not in_parts(like):
        return part
    from torch.distributed.tensor import DTensor

    mesh, placements = like.device_mesh, like.placements
    cut = DTensor.from_local(part, mesh, placements, shape=like.shape, stride=like.stride())
    return cut.full_tensor()


def take_out(
    value: object, parts: dict[str, Tensor], path: str = "", *, which: Which | None = None
) -> object:
    """Return `value` with marks for tensors, which go into `parts` under their paths.

    which: of a path and its tensor, whether it is taken out; those in parts by default.
    """
    if isinstance(value, Tensor) and (in_parts(value) if which is None else which(path, value)):
        parts[path] = value
        return {MARK: path, "shape": list(value.shape), "dtype": value.dtype}
    if isinstance(value, Mapping):
        return {key: take_out(item, parts, f"{path}/{key}", which=which) for key, item in value.items()}
    if isinstance(value, list | tuple):
        items = [take_out(item, parts, f"{path}/{index}", which=which) for index, item in enumerate(value)]
        return tuple(items) if type(value) is tuple else items
    return value


def put_in(value: object, tensors: Mapping[str, Tensor]) -> object:
    """Return `value` with `tensors` in place of their marks."""
    if isinstance(value, dict):
        if MARK in value:
            return tensors[value[MARK]]
        return {key: put_in(item, tensors) for key, item in value.items()}
    if isinstance(value, list | tuple):
        items = [put_in(item, tensors) for item in value]
        return tuple(items) if type(value) is tuple else items
    return value


def make_room(value: object, own: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return a tensor to load into for each mark in `value`, by path.

    own: this replica's tensors in parts. One of the same path and shape is returned itself, for others a new
    one is cut as they are; where there are none, all are whole, in host memory.
    """
    room: dict[str, Tensor] = {}
    pattern = next(iter(own.values()), None)
    for path, shape, dtype in _marks(value):
        mine = own.get(path)
        if mine is not None and mine.shape == shape and mine.dtype == dtype:
            room[path] = mine
        elif not in_parts(pattern):
            room[path] = torch.empty(shape, dtype=dtype)
        else:
            from torch.distributed.tensor import empty

            mesh = pattern.device_mesh
            room[path] = empty(shape, dtype=dtype, device_mesh=mesh, placements=pattern.placements)
    return room


def copy_parts(parts: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return copies in host memory, in parts as well."""
    with torch.no_grad():
        return {path: part.to("cpu", copy=True) for path, part in parts.items()}


def gather_whole(value: object, *, keep: bool) -> object:
    """Return `value` with whole tensors in host memory in place of those in parts; without `keep`, marks.

    All replicas must call alike. One tensor at a time is whole on the replicas that do not keep it.
    """
    parts: dict[str, Tensor] = {}
    outline = take_out(value, parts)
    wholes: dict[str, Tensor] = {}
    with torch.no_grad():
        for path, part in parts.items():
            assert in_parts(part)
            whole = part.full_tensor()
            if keep:
                wholes[path] = whole.cpu()
    return put_in(outline, wholes) if keep else outline


def _marks(value: object) -> list[tuple[str, torch.Size, torch.dtype]]:
    if isinstance(value, dict):
        if MARK in value:
            return [(value[MARK], torch.Size(value["shape"]), value["dtype"])]
        value = list(value.values())
    if isinstance(value, list | tuple):
        return [mark for item in value for mark in _marks(item)]
    return []
