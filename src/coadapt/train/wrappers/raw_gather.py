"""Refuse torch's own all_gather of a pass whose shares have different sizes."""

# torch wants as many rows of every replica. Where a step cannot be shared equally, gloo
# ends the process without a Python error, and NCCL waits or returns wrong rows. So
# while a run trains, a gather of the pass's rows is looked at before it begins:
# `run.gather` takes any shares. Once a loop has called one, a replica that would make
# shares unequal does not join (rescale/dry_step.py).
#
# What calls it under another name (`from torch.distributed import all_gather`, before
# the run trains) is not seen.

import functools
from collections.abc import Callable
from typing import Any

import torch.distributed as dist
from torch import Tensor

from coadapt.model import InputError
from coadapt.train.group.group import gather_all
from coadapt.train.session import Session

NAMES = ("all_gather", "all_gather_into_tensor")
ALLOWED = (
    "run.gather(tensor), which takes any number of rows of each replica; or a batch "
    "that the replicas can share equally, with drop_last=True"
)


def check_shares(name: str, samples: int, size: int) -> None:
    """Raise InputError where a loop that calls `name` could not gather such a step."""
    if name and samples % size:
        given = (
            f"torch.distributed.{name} of a pass's rows, in a step of {samples} "
            f"samples on {size} replicas"
        )
        raise InputError("loop", given, ALLOWED)


class RawGathers:
    """Looks at torch's gathers while a run trains."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._originals: dict[str, Callable[..., Any]] = {}

    def watch(self) -> None:
        """Begin to look."""
        if self._originals or not dist.is_available():
            return
        for name in NAMES:
            original = getattr(dist, name)
            self._originals[name] = original
            setattr(dist, name, self._watched(name, original))

    def close(self) -> None:
        """Look at no further gather."""
        for name, original in self._originals.items():
            # Another library may have put its own over it: that calls this one.
            if getattr(getattr(dist, name), "coadapt_watches", None) is self:
                setattr(dist, name, original)
        self._originals = {}

    def _watched(self, name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def gather(
            out: object,
            tensor: object,
            group: dist.ProcessGroup | None = None,
            async_op: bool = False,
        ) -> dist.Work | None:
            if self._originals and group in (None, dist.group.WORLD):
                self._look(name, tensor)
            found: dist.Work | None = original(out, tensor, group, async_op)
            return found

        gather.coadapt_watches = self  # type: ignore[attr-defined]  # found by `close`
        return gather

    def _look(self, name: str, tensor: object) -> None:
        session = self._session
        current = session.current
        group = session.group
        if current is None or session.figures.validation is not None:
            return
        if not (isinstance(tensor, Tensor) and tensor.dim()):
            return
        if len(tensor) == current.num_samples and tensor.dim() > 1:
            session.raw_gather = name
        # All replicas are in the same call, so they can say how many rows they have.
        if (
            current.step_samples % group.size
            and len(set(gather_all(group, len(tensor)))) > 1
        ):
            check_shares(name, current.step_samples, group.size)
