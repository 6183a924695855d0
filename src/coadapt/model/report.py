"""What a running job tells about itself: step-time parameters, gradient statistics, progress."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from coadapt.model.batch import BatchConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class ThroughputParams:
    """Pollux's step-time model (OSDI'21, §3.2, eq. 9-11) with a rack term beside it. Seconds.

    T_grad(m)  = alpha_c + beta_c * m                                   one forward-backward pass
    T_sync     = alpha_r + beta_r * max(K - 2, 0)   on one node, K > 1
                 alpha_n + beta_n * max(K - 2, 0)   on several nodes of one rack
                 alpha_k + beta_k * max(K - 2, 0)   on several racks
    T_step     = s * T_grad + (T_grad^gamma + T_sync^gamma)^(1/gamma)
    """

    alpha_c: float
    beta_c: float
    alpha_r: float = 0.0
    beta_r: float = 0.0
    alpha_n: float = 0.0
    beta_n: float = 0.0
    alpha_k: float = 0.0
    beta_k: float = 0.0
    gamma: float = 1.0

    def __post_init__(self) -> None:
        for name in ("alpha_c", "beta_c", "alpha_r", "beta_r", "alpha_n", "beta_n", "alpha_k", "beta_k"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 0.0):
                raise ValueError(f"ThroughputParams.{name} must be finite and >= 0, got {value}")
        if not 1.0 <= self.gamma <= 10.0:
            raise ValueError(f"ThroughputParams.gamma must be in [1, 10], got {self.gamma}")


@dataclass(frozen=True, slots=True, kw_only=True)
class GradStats:
    """Squared norm of the true gradient, and the trace of its covariance at the *initial* batch size.

    The noise scale in samples is `initial * var / sqr` (Pollux §3.1; McCandlish et al. 2018, eq. 2.8).
    `noise_scale_stderr` is its standard error in samples, None where it is not known.
    """

    sqr: float
    var: float
    noise_scale_stderr: float | None = None

    def __post_init__(self) -> None:
        for name in ("sqr", "var"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 0.0):
                raise ValueError(f"GradStats.{name} must be finite and >= 0, got {value}")

    def noise_scale(self, initial: int) -> float:
        """Return φ in samples; infinite where the true gradient vanishes."""
        return math.inf if self.sqr == 0.0 else initial * self.var / self.sqr


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """What is left to do at the job's *requested* batch size, and how fast it goes.

    remaining_steps: optimiser steps left. step_time_s[k - 1]: seconds of one step on k replicas packed on as
    few nodes as possible. From a trace this is an oracle's knowledge; from a live job it is its own estimate.
    """

    remaining_steps: float
    step_time_s: tuple[float, ...]

    def __post_init__(self) -> None:
        if not math.isfinite(self.remaining_steps):
            raise ValueError(f"Forecast.remaining_steps must be finite, got {self.remaining_steps}")
        if not self.step_time_s or not math.isfinite(sum(self.step_time_s)) or min(self.step_time_s) <= 0:
            raise ValueError(f"Forecast.step_time_s must be finite seconds > 0, got {self.step_time_s}")

    def remaining_s(self, num_replicas: int) -> float:
        """Return the seconds left on `num_replicas` (clamped to the range that the forecast covers)."""
        index = min(max(num_replicas, 1), len(self.step_time_s)) - 1
        return self.remaining_steps * self.step_time_s[index]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingReport:
    """One report of a job's rank 0; None and empty mean "nothing new".

    progress: scale-invariant samples so far (samples * efficiency). progress_target: progress at which the
    job ends, if it is known. throughput: parameters per GPU type. num_replicas_profiled: the largest replica
    count that was timed. metrics: the user's own figures (loss, accuracy).
    """

    progress: float
    progress_target: float | None = None
    samples: float = 0.0
    batch: BatchConfig | None = None
    throughput: Mapping[str, ThroughputParams] = field(default_factory=dict)
    grad: GradStats | None = None
    num_replicas_profiled: int = 0
    forecast: Forecast | None = None
    step_time_s: float | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)
