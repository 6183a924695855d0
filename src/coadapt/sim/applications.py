"""The truth about what jobs train: true step times, gradient statistics and progress per epoch.

Importers and built-in profiles provide Applications; the world advances jobs by them, no policy sees them.
"""

from typing import Protocol

from coadapt.goodput.throughput import packed_placement
from coadapt.model import BatchConfig, BatchLimits, GradStats


class UnmeasuredError(ValueError):
    """A placement or batch whose truth is not known. The text names the application and what was asked."""


class Application(Protocol):
    """Measured or synthetic truth about one model. All methods are pure and cheap on repeated calls.

    They raise UnmeasuredError outside the range that is known: truth is never extrapolated.
    """

    @property
    def name(self) -> str: ...

    @property
    def limits(self) -> BatchLimits: ...

    @property
    def num_epochs(self) -> int: ...

    def step_time(self, placement: tuple[int, ...], atomic: int) -> tuple[float, float]:
        """Return seconds of one optimiser step without accumulation, and of its synchronising part.

        `placement`: replicas per node, in rank order.
        """
        ...

    def grad_stats(self, total: int, epoch: int) -> GradStats:
        """Return the gradient statistics at total batch `total` in epoch `epoch` (0 is the first)."""
        ...

    def progress_at(self, epoch: int) -> float:
        """Return the progress after `epoch` epochs, in optimiser steps at the initial batch size."""
        ...

    def steps(self, total: int, epoch: int) -> float:
        """Return the optimiser steps that `epoch` epochs take at total batch `total`."""
        ...


def step_s(application: Application, placement: tuple[int, ...], batch: BatchConfig) -> float:
    """Return the seconds of one optimiser step, accumulation included."""
    whole_s, sync_s = application.step_time(placement, batch.atomic)
    return whole_s + batch.accumulation * (whole_s - sync_s)


def packed(num_replicas: int, gpus_per_node: int) -> tuple[int, ...]:
    """Return the replicas per node of `num_replicas` on as few nodes as possible."""
    return packed_placement(num_replicas, gpus_per_node).replicas_per_node
