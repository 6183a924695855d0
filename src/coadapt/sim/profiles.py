"""Built-in applications, so that everything works with no download: step times are our own fits to public
measurements, noise curves are synthetic. docs/builtin-profiles.md tells where each number comes from.
"""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from coadapt.goodput.efficiency import gain
from coadapt.goodput.throughput import step_time
from coadapt.model import BatchLimits, GradStats, Placement, ThroughputParams


@dataclass(frozen=True, slots=True, kw_only=True)
class NoiseCurve:
    """Gradient noise scale over training, synthetic, in samples.

    It grows from `first` by the factor `growth` over the whole training, evenly on a log scale, and besides
    by the factor `jump` at each share of the training named in `drops`, where the learning rate falls.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class ParametricApplication:
    """An Application (see applications.py) given by equations: any placement and any batch is known."""

    name: str
    limits: BatchLimits
    num_epochs: int
    samples_per_epoch: int
    params: ThroughputParams
    noise: NoiseCurve

    def __post_init__(self) -> None:
        if self.num_epochs < 1 or self.samples_per_epoch < 1:
            raise ValueError(f"{self.name}: num_epochs and samples_per_epoch must be >= 1")

    def step_time(self, placement: tuple[int, ...], atomic: int) -> tuple[float, float]:
        """Return seconds of one step without accumulation, and the part of it that is synchronising."""
        if not placement or atomic < 1:
            raise ValueError(f"{self.name}: placement {placement} with atomic batch {atomic} takes no step")
        return _step_time(self.params, placement, atomic)

    def grad_stats(self, total: int, epoch: int) -> GradStats:
        """Return the statistics in the middle of `epoch`: squared norm 1, whatever the batch."""
        if total < 1 or not 0 <= epoch < self.num_epochs:
            raise ValueError(f"{self.name}: no epoch {epoch} at batch {total}, it has {self.num_epochs}")
        share = (epoch + 0.5) / self.num_epochs
        return GradStats(sqr=1.0, var=self.noise.at(share) / self.limits.initial)

    def progress_at(self, epoch: int) -> float:
        """Return the progress after `epoch` epochs, in optimiser steps at the initial batch size."""
        if not 0 <= epoch <= self.num_epochs:
            raise ValueError(f"{self.name}: {epoch} epochs asked, it has {self.num_epochs}")
        return epoch * self.samples_per_epoch / self.limits.initial

    def steps(self, total: int, epoch: int) -> float:
        """Return the optimiser steps that `epoch` epochs take at total batch `total` (progress over gain)."""
        if total < 1 or not 0 <= epoch <= self.num_epochs:
            raise ValueError(f"{self.name}: no {epoch} epochs at batch {total}, it has {self.num_epochs}")
        return float(_cumulative_steps(self, total)[epoch])


@lru_cache(maxsize=65536)
def _step_time(params: ThroughputParams, placement: tuple[int, ...], atomic: int) -> tuple[float, float]:
    step_s = float(step_time(params, Placement(placement), float(atomic)))
    return step_s, step_s - (params.alpha_c + params.beta_c * atomic)


@lru_cache(maxsize=4096)
def _cumulative_steps(application: ParametricApplication, total: int) -> NDArray[np.float64]:
    """Return steps done after 0, 1, … num_epochs epochs, (num_epochs + 1,)."""
    var = np.array([application.grad_stats(total, epoch).var for epoch in range(application.num_epochs)])
    gains = np.asarray(gain(np.full_like(var, total / application.limits.initial), 1.0, var))
    return np.concatenate([[0.0], np.cumsum(application.progress_at(1) / gains)])


def _application(
    name: str,
    batch: tuple[int, int, int, int],
    epochs: tuple[int, int],
    noise: NoiseCurve,
    fit: ThroughputParams,
) -> ParametricApplication:
    initial, max_total, min_atomic, max_atomic = batch
    return ParametricApplication(
        name=name,
        limits=BatchLimits(
            initial=initial, max_total=max_total, min_atomic=min_atomic, max_atomic=max_atomic
        ),
        num_epochs=epochs[0],
        samples_per_epoch=epochs[1],
        params=fit,
        noise=noise,
    )


# Per row: batch (initial, largest total, smallest and largest atomic), training (epochs, samples per epoch),
# noise, fit. Origin of each column: docs/builtin-profiles.md.
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

BUILTIN_APPLICATIONS: dict[str, ParametricApplication] = {row.name: row for row in _ROWS}
