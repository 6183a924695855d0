"""Built-in applications, so that everything works with no download: step times are our
own fits to public measurements, noise curves are synthetic. docs/builtin-profiles.md
tells where each number comes from.
"""

from dataclasses import dataclass, field, replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from coadapt.goodput.efficiency import gain
from coadapt.goodput.throughput import step_time
from coadapt.model import (
    DEFAULT_GPU_TYPE,
    BatchLimits,
    GradStats,
    Placement,
    ThroughputParams,
)
from coadapt.sim.applications import Setting, UnmeasuredError
from coadapt.sim.colocation import kept_speed


@dataclass(frozen=True, slots=True, kw_only=True)
class NoiseCurve:
    """Gradient noise scale over training, synthetic, in samples.

    The noise scale grows from `first` by the factor `growth` over the whole training,
    evenly on a log scale. In addition it grows by the factor `jump` each time the
    learning rate drops; `drops` has the shares of the training at which that happens.
    """

    first: float
    growth: float
    drops: tuple[float, ...] = ()
    jump: float = 1.0

    def __post_init__(self) -> None:
        if not (self.first > 0 and self.growth > 0 and self.jump > 0):
            raise ValueError("NoiseCurve.first, growth and jump must be > 0")

    def at(self, share: float) -> float:
        """Return the noise scale (samples) after `share` of the training, in [0, 1]."""
        if not 0.0 <= share <= 1.0:
            raise ValueError(f"share must be in [0, 1], got {share}")
        num_drops = sum(share >= drop for drop in self.drops)
        return float(self.first * self.growth**share * self.jump**num_drops)


@dataclass(frozen=True, slots=True)
class GpuSpeed:
    """The speed of one application on a GPU type, relative to the GPU type for which
    its parameters are given.

    compute: the factor by which a pass is faster. link: the factor by which
    synchronisation is faster. memory: the factor by which more samples of a pass fit.
    """

    name: str
    compute: float
    link: float = 1.0
    memory: float = 1.0

    def __post_init__(self) -> None:
        if not (self.name and self.compute > 0 and self.link > 0 and self.memory > 0):
            raise ValueError(f"GpuSpeed: a name and factors > 0 are needed, got {self}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ParametricApplication:
    """An Application (see applications.py) given by equations, so every placement and
    every batch has known values.

    params: step times on the first of `speeds`, or on any GPU type if `speeds` is
    empty. load: see Application. own_batches: for each change that the script makes by
    itself, the pair (first epoch, total batch).
    """

    name: str
    limits: BatchLimits
    num_epochs: int
    samples_per_epoch: int
    params: ThroughputParams
    noise: NoiseCurve
    speeds: tuple[GpuSpeed, ...] = ()
    load: float = 1.0
    own_batches: tuple[tuple[int, int], ...] = ()
    _stats: dict[int, GradStats] = field(
        init=False, repr=False, compare=False, default_factory=dict
    )

    def __post_init__(self) -> None:
        if self.num_epochs < 1 or self.samples_per_epoch < 1:
            raise ValueError(
                f"{self.name}: num_epochs and samples_per_epoch must be >= 1"
            )
        if not 0.0 < self.load <= 1.0:
            raise ValueError(f"{self.name}: load must be in (0, 1], got {self.load}")

    @property
    def gpu_types(self) -> tuple[str, ...]:
        return tuple(speed.name for speed in self.speeds)

    def step_time(self, setting: Setting, atomic: int) -> tuple[float, float]:
        """Return the seconds of one step without accumulation, and how many of them
        synchronisation takes.
        """
        if not setting.placement.replicas_per_node or atomic < 1:
            raise ValueError(
                f"{self.name}: placement {setting.placement} with atomic batch "
                f"{atomic} takes no step"
            )
        params = self.params
        speed = self._speed(setting)
        if setting.neighbours or speed.compute != 1.0 or speed.link != 1.0:
            params = _params_in(
                params, speed, kept_speed(self.load, setting.neighbours)
            )
        return _step_time(params, setting.placement, atomic)

    def max_atomic(self, setting: Setting) -> int | None:
        """Return the largest pass in samples that fits into the memory of the GPU type,
        multiplied by the job's share of the GPU. None: no bound.
        """
        if self.limits.max_atomic is None:
            return None
        fits = self.limits.max_atomic * self._speed(setting).memory * setting.gpu_share
        return max(int(fits), self.limits.min_atomic)

    def own_batch(self, epoch: int) -> int | None:
        """Return the total batch of the last change at or before `epoch`, None before
        the first change.
        """
        return next(
            (total for first, total in reversed(self.own_batches) if first <= epoch),
            None,
        )

    def _speed(self, setting: Setting) -> GpuSpeed:
        if not self.speeds:
            return ALIKE
        for speed in self.speeds:
            if speed.name == setting.gpu_type:
                return speed
        known = ", ".join(self.gpu_types)
        raise UnmeasuredError(
            f"{self.name}: GPU type {setting.gpu_type!r} is not known; known are "
            f"{known}"
        )

    def grad_stats(self, total: int, epoch: int) -> GradStats:
        """Return the statistics in the middle of `epoch`. The squared norm is 1 at any
        batch.
        """
        if total < 1 or not 0 <= epoch < self.num_epochs:
            raise ValueError(
                f"{self.name}: no epoch {epoch} at batch {total}, it has "
                f"{self.num_epochs}"
            )
        stats = self._stats.get(epoch)
        if stats is None:
            var = self.noise.at((epoch + 0.5) / self.num_epochs) / self.limits.initial
            stats = self._stats[epoch] = GradStats(sqr=1.0, var=var)
        return stats

    def progress_at(self, epoch: int) -> float:
        """Return the progress after `epoch` epochs, in optimiser steps at the initial
        batch size.
        """
        if not 0 <= epoch <= self.num_epochs:
            raise ValueError(
                f"{self.name}: {epoch} epochs asked, it has {self.num_epochs}"
            )
        return epoch * self.samples_per_epoch / self.limits.initial

    def steps(self, total: int, epoch: int) -> float:
        """Return the optimiser steps that `epoch` epochs take at total batch `total`
        (progress over gain).
        """
        if total < 1 or not 0 <= epoch <= self.num_epochs:
            raise ValueError(
                f"{self.name}: no {epoch} epochs at batch {total}, it has "
                f"{self.num_epochs}"
            )
        return float(_cumulative_steps(self, total)[epoch])


ALIKE = GpuSpeed("any", 1.0)


@lru_cache(maxsize=4096)
def _params_in(
    params: ThroughputParams, speed: GpuSpeed, kept: float
) -> ThroughputParams:
    """Return `params` for a GPU type on which a replica has the part `kept` of its full
    speed.
    """
    compute = speed.compute * kept
    return replace(
        params,
        alpha_c=params.alpha_c / compute,
        beta_c=params.beta_c / compute,
        alpha_r=params.alpha_r / speed.link,
        beta_r=params.beta_r / speed.link,
        alpha_n=params.alpha_n / speed.link,
        beta_n=params.beta_n / speed.link,
        alpha_k=params.alpha_k / speed.link,
        beta_k=params.beta_k / speed.link,
    )


@lru_cache(maxsize=65536)
def _step_time(
    params: ThroughputParams, placement: Placement, atomic: int
) -> tuple[float, float]:
    step_s = float(step_time(params, placement, float(atomic)))
    return step_s, step_s - (params.alpha_c + params.beta_c * atomic)


@lru_cache(maxsize=4096)
def _cumulative_steps(
    application: ParametricApplication, total: int
) -> NDArray[np.float64]:
    """Return steps done after 0, 1, … num_epochs epochs, (num_epochs + 1,)."""
    var = np.array(
        [
            application.grad_stats(total, epoch).var
            for epoch in range(application.num_epochs)
        ]
    )
    gains = np.asarray(
        gain(np.full_like(var, total / application.limits.initial), 1.0, var)
    )
    return np.concatenate([[0.0], np.cumsum(application.progress_at(1) / gains)])


# Our own synthetic values: compute on V100, A100 and H100 relative to a T4, and the
# load of a T4 (docs/builtin-profiles.md).
_OTHER_TYPES = {
    "resnet18-cifar10": (2.6, 4.2, 7.0, 0.7),
    "neumf-movielens": (1.6, 2.1, 2.8, 0.3),
    "deepspeech2-arctic": (2.4, 3.8, 6.2, 0.8),
    "bert-squad": (3.1, 6.0, 11.0, 1.0),
    "yolov3-voc": (2.7, 4.6, 7.6, 0.9),
    "resnet50-imagenet": (2.9, 5.2, 8.8, 1.0),
}


def _application(
    name: str,
    batch: tuple[int, int, int, int],
    epochs: tuple[int, int],
    noise: NoiseCurve,
    fit: ThroughputParams,
) -> ParametricApplication:
    initial, max_total, min_atomic, max_atomic = batch
    v100, a100, h100, load = _OTHER_TYPES[name]
    return ParametricApplication(
        name=name,
        limits=BatchLimits(
            initial=initial,
            max_total=max_total,
            min_atomic=min_atomic,
            max_atomic=max_atomic,
        ),
        num_epochs=epochs[0],
        samples_per_epoch=epochs[1],
        params=fit,
        noise=noise,
        speeds=(
            GpuSpeed(DEFAULT_GPU_TYPE, 1.0),
            GpuSpeed("t4", 1.0),
            GpuSpeed("v100", v100, link=2.0, memory=1.0),
            GpuSpeed("a100", a100, link=4.0, memory=2.0),
            GpuSpeed("h100", h100, link=6.0, memory=4.0),
        ),
        load=load,
    )


# Per row: batch (initial, largest total, smallest and largest atomic), training
# (epochs, samples per epoch), noise, fit on T4. Origin of each column:
# docs/builtin-profiles.md.
_ROWS = (
    _application(
        "resnet18-cifar10",
        (128, 4096, 32, 1024),
        (100, 50_000),
        NoiseCurve(first=1_000, growth=40),
        ThroughputParams(
            alpha_c=0.01776,
            beta_c=0.0006973,
            alpha_r=0.0342,
            beta_r=0.001648,
            alpha_n=0.1277,
            beta_n=0.002605,
            alpha_k=0.1405,
            beta_k=0.002865,
            gamma=2.233,
        ),
    ),
    _application(
        "neumf-movielens",
        (256, 32_768, 32, 32_768),
        (10, 4_970_000),
        NoiseCurve(first=50_000, growth=50),
        ThroughputParams(
            alpha_c=0.007087,
            beta_c=5.709e-07,
            alpha_r=0.003726,
            beta_r=0.0005618,
            alpha_n=0.01474,
            beta_n=0.000547,
            alpha_k=0.01622,
            beta_k=0.0006017,
            gamma=1.0,
        ),
    ),
    _application(
        "deepspeech2-arctic",
        (20, 640, 10, 80),
        (80, 7_140),
        NoiseCurve(first=200, growth=200),
        ThroughputParams(
            alpha_c=0.3128,
            beta_c=0.02344,
            alpha_r=0.1083,
            beta_r=0.004509,
            alpha_n=0.5046,
            beta_n=0.009745,
            alpha_k=0.555,
            beta_k=0.01072,
            gamma=1.475,
        ),
    ),
    _application(
        "bert-squad",
        (12, 384, 4, 12),
        (2, 88_640),
        NoiseCurve(first=2_000, growth=10),
        ThroughputParams(
            alpha_c=0.1757,
            beta_c=0.05857,
            alpha_r=0.2642,
            beta_r=0.01313,
            alpha_n=1.397,
            beta_n=0.008614,
            alpha_k=1.537,
            beta_k=0.009475,
            gamma=1.842,
        ),
    ),
    _application(
        "yolov3-voc",
        (8, 512, 4, 8),
        (50, 16_550),
        NoiseCurve(first=100, growth=50),
        ThroughputParams(
            alpha_c=0.1931,
            beta_c=0.0256,
            alpha_r=0.1151,
            beta_r=0.02292,
            alpha_n=0.745,
            beta_n=0.01012,
            alpha_k=0.8195,
            beta_k=0.01114,
            gamma=1.106,
        ),
    ),
    _application(
        "resnet50-imagenet",
        (200, 12_800, 20, 200),
        (90, 1_281_167),
        NoiseCurve(first=3_000, growth=2, drops=(1 / 3, 2 / 3), jump=2),
        ThroughputParams(
            alpha_c=0.06438,
            beta_c=0.00449,
            alpha_r=0.07509,
            beta_r=0.0008752,
            alpha_n=0.3203,
            beta_n=0.006182,
            alpha_k=0.3524,
            beta_k=0.0068,
            gamma=2.482,
        ),
    ),
)

BUILTIN_APPLICATIONS: dict[str, ParametricApplication] = {
    row.name: row for row in _ROWS
}
