"""How the state of a sharded run is sent to a new group: from the source rank, which
has the whole state.

The other ranks hold only one whole tensor at a time. All replicas make the same calls,
with models sharded for the new group.
"""

from collections.abc import Mapping
from typing import cast

import torch
import torch.distributed as dist
from torch import Tensor

from coadapt.train.checkpoint.saver import CUT, Saver
from coadapt.train.dtensors import flatten, shard_like, unflatten
from coadapt.train.group.group import Group
from coadapt.train.group.transfer import receive_state, send_state

OPTIMIZER_PATH = "/objects/optimizer/"

Objects = dict[str, dict[str, object]]


def send_shards(
    saver: Saver, group: Group, whole: Mapping[str, object], joining: list[int]
) -> None:
    """Send the state `whole` to the ranks `joining`, and its sharded parts to staying
    ranks. Load this rank's own shards.
    """
    if not group.distributed:
        saver.load_objects(_cut_objects(whole))
        return
    names = saver.shard_paths()
    wholes = dict[str, Tensor]()

    def goes_sharded(path: str, tensor: Tensor) -> bool:
        return path in names or (path.startswith(OPTIMIZER_PATH) and tensor.dim() > 0)

    outline = cast("dict[str, object]", flatten(whole, wholes, which=goes_sharded))
    staying = [rank for rank in range(group.size) if rank not in (group.rank, *joining)]
    cut = {"objects": _cut_objects(outline)}
    send_state(group, cut, staying)
    send_state(group, outline, joining)
    saver.load_objects(_cut_objects(_fill(saver, group, group.rank, cut, wholes)))


def receive_shards(saver: Saver, group: Group, source_rank: int) -> dict[str, object]:
    """Return the state that rank `source_rank` sends. Sharded tensors are this
    replica's shards.
    """
    outline = cast("dict[str, object]", receive_state(group, source_rank, None))
    return _fill(saver, group, source_rank, outline, {})


def receive_own_shards(saver: Saver, group: Group, source_rank: int) -> None:
    """Load this replica's shards. A staying replica already has the rest of the
    state.
    """
    saver.load_objects(_cut_objects(receive_shards(saver, group, source_rank)))


def _fill(
    saver: Saver,
    group: Group,
    source_rank: int,
    outline: Mapping[str, object],
    wholes: Mapping[str, Tensor],
) -> dict[str, object]:
    """Return `outline` with this replica's shards of `wholes`, which `source_rank` has
    in host memory.
    """
    targets = saver.load_targets(outline)
    with torch.no_grad():
        for path, target in targets.items():
            whole = (
                wholes[path]
                if path in wholes
                else torch.empty(target.shape, dtype=target.dtype)
            )
            whole = whole.contiguous()
            dist.broadcast(whole, src=source_rank, group=group.control)
            target.copy_(shard_like(whole, target))
    return cast("dict[str, object]", unflatten(dict(outline), targets))


def _cut_objects(state: Mapping[str, object]) -> Objects:
    objects = cast("Objects", state["objects"])
    return {name: objects[name] for name in objects if name in CUT}
