"""Refuse torch's own all_gather of a pass whose shares have different sizes.

torch wants as many rows of every replica. Where a step cannot be shared equally, gloo
ends the process without a Python error, and NCCL waits or returns wrong rows. So while
a run trains, a gather of the pass's rows is looked at before it begins: `run.gather`
takes any shares.
"""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch.distributed as dist
from torch import Tensor

from coadapt.model import InputError
from coadapt.train.samples.order import STAND_IN
from coadapt.train.session import Session

NAMES = ("all_gather", "all_gather_into_tensor")
ALLOWED = (
    "run.gather(tensor), which takes any number of rows of each replica; or a batch that "
    "the replicas can share equally, with drop_last=True"
)


def given(name: str, samples: int, size: int) -> str:
    """Return what to say of a gather that cannot be."""
    return (
        f"torch.distributed.{name} of a pass's rows, in a step of {samples} samples on "
        f"{size} replicas"
    )


@dataclass(slots=True)
class RawGathers:
    """Looks at torch's gathers while a run trains. name: of the last one of a pass's
    rows, empty without.
    """

    session: Session
    name: str = ""
    _originals: dict[str, Callable[..., Any]] = field(default_factory=dict)

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
        session = self.session
        current = session.current
        size = session.group.size
        if current is None or session.figures.validation is not None:
            return
        rows = current.num_samples or STAND_IN
        if not (isinstance(tensor, Tensor) and tensor.dim() and len(tensor) == rows):
            return
        self.name = name
        if current.step_samples % size:
            raise InputError("loop", given(name, current.step_samples, size), ALLOWED)


def check_shares(name: str, samples: int, members: Sequence[str]) -> None:
    """Raise InputError where a loop that calls `name` could not gather a step of
    `samples`.
    """
    size = len(members)
    if name and samples % size:
        raise InputError("loop", given(name, samples, size), ALLOWED)
