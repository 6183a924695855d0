"""Looks at one small gradient every few steps, so that a loss that is not finite is
reported soon.
"""

# A loss that is infinite or not a number makes every gradient that follows from it so.
# The norms of all gradients show it too, but where the noise scale is not used they are
# taken every 64 steps. One gradient of few elements costs some microseconds, so it is
# looked at every PERIOD steps. On a GPU the sum is copied beside the work, and read at
# a later look, so nothing is waited for.

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from coadapt.train.dtensors import local_shards

PERIOD = 4
WHAT = "gradients are infinite or not a number (NaN)"


class FiniteLook:
    """Looks at the gradients of a step before the optimiser uses them."""

    def __init__(
        self, parameters: Callable[[], Sequence[Tensor]], tell: Callable[[int], None]
    ) -> None:
        """`tell`: called with the step whose gradient was not finite, once."""
        self._parameters = parameters
        self._tell = tell
        self._smallest: Tensor | None = None
        self._pending: tuple[int, Tensor, torch.cuda.Event] | None = None
        self._over = False

    def look(self, step: int) -> None:
        """The gradients of `step`, which runs, are in `.grad`."""
        if self._over or step % PERIOD:
            return
        self._read()
        grad = self._grad()
        if grad is None:
            return
        total = grad.sum()
        if not total.is_cuda:
            self._judge(step, float(total))
        elif self._pending is None:
            at_hand = torch.empty((), dtype=total.dtype, pin_memory=True)
            at_hand.copy_(total, non_blocking=True)
            event = torch.cuda.Event()  # type: ignore[no-untyped-call]  # torch's own
            event.record()
            self._pending = (step, at_hand, event)

    def _read(self) -> None:
        """Judge what a GPU has copied meanwhile."""
        if self._pending is None:
            return
        step, total, event = self._pending
        if event.query():  # type: ignore[no-untyped-call]  # torch's own
            self._pending = None
            self._judge(step, float(total))

    def _judge(self, step: int, total: float) -> None:
        if not (self._over or math.isfinite(total)):
            self._over = True
            self._tell(step)

    def _grad(self) -> Tensor | None:
        """Return the smallest gradient, or this replica's part; None without any."""
        if self._smallest is None or self._smallest.grad is None:
            dense = [
                item
                for item in self._parameters()
                if item.grad is not None and item.grad.layout is torch.strided
            ]
            self._smallest = min(dense, key=Tensor.numel, default=None)
        if self._smallest is None or self._smallest.grad is None:
            return None
        (grad,) = local_shards([self._smallest.grad])
        return grad
