"""Applications: true step times, gradient statistics and progress per epoch of what
jobs train.

Trace importers and built-in profiles provide them. The simulated cluster trains jobs by
them, and no policy sees them.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from coadapt.goodput.throughput import packed_placement
from coadapt.model import (
    DEFAULT_GPU_TYPE,
    BatchConfig,
    BatchLimits,
    Forecast,
    GradStats,
    Placement,
)


class UnmeasuredError(ValueError):
    """A setting or batch was not measured. The text has the application and the
    setting.
    """


@dataclass(frozen=True, slots=True)
class Neighbour:
    """A job on the same GPU: its application, and the share of time, in (0, 1], that it
    keeps a GPU of its own busy.
    """

    application: str
    load: float


@dataclass(frozen=True, slots=True)
class Setting:
    """Where replicas train: what their speed depends on, besides the batch.

    placement: replicas per node in rank order, and the number of racks. gpu_share:
    their share of each GPU. neighbours: the other jobs on the most loaded of their
    GPUs, by job id; a step is as slow as that of the slowest replica.
    """

    placement: Placement
    gpu_type: str = DEFAULT_GPU_TYPE
    gpu_share: float = 1.0
    neighbours: tuple[Neighbour, ...] = ()


class Application(Protocol):
    """Measured or synthetic truth about one model. All methods are pure, and cheap on
    repeated calls.

    They raise UnmeasuredError outside the measured range: nothing is extrapolated.
    """

    @property
    def name(self) -> str: ...

    @property
    def limits(self) -> BatchLimits: ...

    @property
    def num_epochs(self) -> int: ...

    @property
    def gpu_types(self) -> tuple[str, ...]:
        """The GPU types whose truth is known; empty: all are alike."""
        ...

    @property
    def load(self) -> float:
        """The part of a GPU's time, in (0, 1], that one replica keeps busy when it has
        the GPU for itself.
        """
        ...

    def step_time(self, setting: Setting, atomic: int) -> tuple[float, float]:
        """Return seconds of one optimiser step without accumulation, and of its
        synchronising part.
        """
        ...

    def max_atomic(self, setting: Setting) -> int | None:
        """Return the most samples of one pass that fit into the memory that `setting`
        leaves a replica.
        """
        ...

    def own_batch(self, epoch: int) -> int | None:
        """Return the total batch that the script sets by itself in `epoch` (contract
        `self`).

        None: it stays with the requested one.
        """
        ...

    def grad_stats(self, total: int, epoch: int) -> GradStats:
        """Return the gradient statistics at total batch `total` in epoch `epoch` (0 is
        the first).
        """
        ...

    def progress_at(self, epoch: int) -> float:
        """Return the progress after `epoch` epochs, in optimiser steps at the initial
        batch size.
        """
        ...

    def steps(self, total: int, epoch: int) -> float:
        """Return the optimiser steps that `epoch` epochs take at total batch
        `total`.
        """
        ...


@runtime_checkable
class ForecastsItself(Protocol):
    """An Application whose jobs change their batch themselves, so that their remaining
    work depends on their progress.
    """

    def forecast(self, progress: float) -> Forecast:
        """Return what an oracle knows at `progress`, in optimiser steps at the initial
        batch size.
        """
        ...


@runtime_checkable
class TellsMetrics(Protocol):
    """An Application with known metrics of its jobs, such as the loss."""

    def metrics(self, total: int, epoch: int) -> Mapping[str, float]:
        """Return what a job logged last after `epoch` epochs (at least one) at total
        batch `total`.
        """
        ...


@runtime_checkable
class KnowsItsTimeAlone(Protocol):
    """An Application whose trace has the time of its job on GPUs of its own, s."""

    exclusive_s: float


def step_s(application: Application, setting: Setting, batch: BatchConfig) -> float:
    """Return the seconds of one optimiser step, accumulation included."""
    whole_s, sync_s = application.step_time(setting, batch.atomic)
    return whole_s + batch.accumulation * (whole_s - sync_s)


def packed(
    num_replicas: int, gpus_per_node: int, gpu_type: str = DEFAULT_GPU_TYPE
) -> Setting:
    """Return the setting of `num_replicas` on as few nodes as possible, in one rack,
    undisturbed.
    """
    return Setting(packed_placement(num_replicas, gpus_per_node), gpu_type)
