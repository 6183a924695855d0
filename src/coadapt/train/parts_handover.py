"""How the state of a sharded run goes over to a new group: from one who has it whole, to each its part.

One tensor at a time is whole on the others. All replicas of the group take part, their models cut for it.
"""

from collections.abc import Mapping
from typing import cast

import torch
import torch.distributed as dist
from torch import Tensor

from coadapt.train.group import Group
from coadapt.train.parts import cut_like, put_in, take_out
from coadapt.train.saver import CUT, Saver
from coadapt.train.transfer import receive_state, send_state

OPTIMIZER_PATH = "/objects/optimizer/"

Objects = dict[str, dict[str, object]]


def give_parts(saver: Saver, group: Group, whole: Mapping[str, object], joining: list[int]) -> None:
    """Give the ranks `joining` all of `whole`, the others what is cut; and take this replica's own parts."""
    if not group.distributed:
        saver.load_objects(_cut_objects(whole))
        return
    names, wholes = saver.part_paths(), dict[str, Tensor]()

    def goes_apart(path: str, tensor: Tensor) -> bool:
        return path in names or (path.startswith(OPTIMIZER_PATH) and tensor.dim() > 0)

    outline = cast("dict[str, object]", take_out(whole, wholes, which=goes_apart))
    staying = [rank for rank in range(group.size) if rank not in (group.rank, *joining)]
    cut = {"objects": _cut_objects(outline)}
    send_state(group, cut, staying)
    send_state(group, outline, joining)
    saver.load_objects(_cut_objects(_fill(saver, group, group.rank, cut, wholes)))


def take_parts(saver: Saver, group: Group, giver: int) -> dict[str, object]:
    """Return what rank `giver` gives, with this replica's parts of what is cut."""
    outline = cast("dict[str, object]", receive_state(group, giver, None))
    return _fill(saver, group, giver, outline, {})


def take_cut(saver: Saver, group: Group, giver: int) -> None:
    """Take over this replica's parts; all else it has already."""
    saver.load_objects(_cut_objects(take_parts(saver, group, giver)))


def _fill(
    saver: Saver, group: Group, giver: int, outline: Mapping[str, object], wholes: Mapping[str, Tensor]
) -> dict[str, object]:
    """Return `outline` with this replica's parts of `wholes`, which only `giver` has, in host memory."""
    room = saver.room(outline)
    with torch.no_grad():
        for path, target in room.items():
            whole = wholes[path] if path in wholes else torch.empty(target.shape, dtype=target.dtype)
            whole = whole.contiguous()
            dist.broadcast(whole, src=giver, group=group.control)
            target.copy_(cut_like(whole, target))
    return cast("dict[str, object]", put_in(dict(outline), room))


def _cut_objects(state: Mapping[str, object]) -> Objects:
    objects = cast("Objects", state["objects"])
    return {name: objects[name] for name in objects if name in CUT}
