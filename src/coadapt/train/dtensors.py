"""Tensors that are sharded over the replicas (DTensor): shards, whole tensors, and
states with such tensors.

Loads `torch.distributed.tensor` (0.4 s) only where there are sharded tensors.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeGuard

import torch
from torch import Tensor

from coadapt.train.nested import leaves, map_leaves

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor

Which = Callable[[str, Tensor], bool]

# Where a state names a sharded tensor, under this key of a dict of its own.
MARK = "coadapt.shard"


def is_sharded(value: object) -> "TypeGuard[DTensor]":
    """Return whether `value` is sharded over the replicas."""
    return isinstance(value, Tensor) and hasattr(value, "to_local")


def local_shards(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Return this replica's shard of each; what is whole stays as it is. No copies."""
    return [tensor.to_local() if is_sharded(tensor) else tensor for tensor in tensors]


def shard_like(whole: Tensor, like: Tensor) -> Tensor:
    """Return `whole`, which all replicas have, sharded as `like` is; or a sharded one
    whole, if `like` is.

    Collective where `whole` is sharded.
    """
    if whole.shape != like.shape:
        return whole
    if not is_sharded(like):
        return whole.full_tensor() if is_sharded(whole) else whole
    if is_sharded(whole):
        return whole.redistribute(like.device_mesh, like.placements)
    from torch.distributed.tensor import distribute_tensor

    whole = whole.to(like.device_mesh.device_type)
    return distribute_tensor(
        whole, like.device_mesh, like.placements, src_data_rank=None
    )


def whole_like(part: Tensor, like: Tensor) -> Tensor:
    """Return the whole tensor of which each replica has `part`, sharded as `like` is.
    Collective then.
    """
    if not is_sharded(like):
        return part
    from torch.distributed.tensor import DTensor

    mesh = like.device_mesh
    placements = like.placements
    cut = DTensor.from_local(
        part, mesh, placements, shape=like.shape, stride=like.stride()
    )
    return cut.full_tensor()


def flatten(
    state: object, shards: dict[str, Tensor], *, which: Which | None = None
) -> object:
    """Return `state` with marks for tensors, which go into `shards` under their paths.

    which: of a path and its tensor, whether it is taken out; sharded ones by default.
    """

    def marked(path: str, leaf: object) -> object:
        if isinstance(leaf, Tensor) and (
            is_sharded(leaf) if which is None else which(path, leaf)
        ):
            shards[path] = leaf
            return {MARK: path, "shape": list(leaf.shape), "dtype": leaf.dtype}
        return leaf

    return map_leaves(marked, state)


def unflatten(state: object, tensors: Mapping[str, Tensor]) -> object:
    """Return `state` with `tensors` in place of their marks."""
    return map_leaves(
        lambda _, leaf: tensors[leaf[MARK]] if _is_mark(leaf) else leaf,
        state,
        is_leaf=_is_mark,
    )


def empty_shards(value: object, own: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return a tensor to load into for each mark in `value`, by path.

    own: this replica's sharded tensors. One of the same path and shape is returned
    itself, for others a new one is sharded as they are; where there are none, all are
    whole, in host memory.
    """
    targets: dict[str, Tensor] = {}
    pattern = next(iter(own.values()), None)
    for path, shape, dtype in _marks(value):
        mine = own.get(path)
        if mine is not None and mine.shape == shape and mine.dtype == dtype:
            targets[path] = mine
        elif not is_sharded(pattern):
            targets[path] = torch.empty(shape, dtype=dtype)
        else:
            from torch.distributed.tensor import empty

            mesh = pattern.device_mesh
            targets[path] = empty(
                shape, dtype=dtype, device_mesh=mesh, placements=pattern.placements
            )
    return targets


def copy_shards(parts: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return copies in host memory, sharded as well."""
    with torch.no_grad():
        return {path: part.to("cpu", copy=True) for path, part in parts.items()}


def gather_whole(value: object, *, keep: bool) -> object:
    """Return `value` with whole tensors in host memory in place of sharded ones;
    without `keep`, marks.

    All replicas must call alike. One tensor at a time is whole on the replicas that do
    not keep it.
    """
    parts: dict[str, Tensor] = {}
    outline = flatten(value, parts)
    wholes: dict[str, Tensor] = {}
    with torch.no_grad():
        for path, part in parts.items():
            assert is_sharded(part)
            whole = part.full_tensor()
            if keep:
                wholes[path] = whole.cpu()
    return unflatten(outline, wholes) if keep else outline


def _marks(state: object) -> Iterator[tuple[str, torch.Size, torch.dtype]]:
    for _, leaf in leaves(state, is_leaf=_is_mark):
        if _is_mark(leaf):
            yield leaf[MARK], torch.Size(leaf["shape"]), leaf["dtype"]


def _is_mark(value: object) -> "TypeGuard[dict[str, Any]]":
    return isinstance(value, dict) and MARK in value
