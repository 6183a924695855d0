"""What a running job tells about itself: step-time parameters, gradient statistics,
progress.

And the answer to a report: steps that jobs of the same application timed.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from coadapt.model.batch import BatchConfig
from coadapt.model.cluster import Placement
from coadapt.model.efficiency import EfficiencyPoint


@dataclass(frozen=True, slots=True, kw_only=True)
class ThroughputParams:
    """Pollux's step-time model (OSDI'21, §3.2, eq. 9-11) with a rack term beside it.
    Seconds.

    T_grad(m) = alpha_c + beta_c * m             one forward-backward pass
    T_sync    = alpha_r + beta_r * max(K - 2, 0) on one node, K > 1
                alpha_n + beta_n * max(K - 2, 0) on several nodes of one rack
                alpha_k + beta_k * max(K - 2, 0) on several racks
    T_step    = s * T_grad + (T_grad^gamma + T_sync^gamma)^(1/gamma)
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
        for name in (
            "alpha_c",
            "beta_c",
            "alpha_r",
            "beta_r",
            "alpha_n",
            "beta_n",
            "alpha_k",
            "beta_k",
        ):
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 0.0):
                raise ValueError(
                    f"ThroughputParams.{name} must be finite and >= 0, got {value}"
                )
        if not 1.0 <= self.gamma <= 10.0:
            raise ValueError(
                f"ThroughputParams.gamma must be in [1, 10], got {self.gamma}"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class GradStats:
    """Squared norm of the true gradient, and the trace of its covariance at the
    *initial* batch size.

    The noise scale in samples is `initial * var / sqr` (Pollux §3.1; McCandlish et al.
    2018, eq. 2.8). noise_scale_stderr: its standard error in samples; None if unknown.
    """

    sqr: float
    var: float
    noise_scale_stderr: float | None = None

    def __post_init__(self) -> None:
        for name, value in (("sqr", self.sqr), ("var", self.var)):
            if not 0.0 <= value < math.inf:
                raise ValueError(
                    f"GradStats.{name} must be finite and >= 0, got {value}"
                )

    def noise_scale(self, initial: int) -> float:
        """Return the noise scale φ in samples; infinite if the true gradient is 0."""
        return math.inf if self.sqr == 0.0 else initial * self.var / self.sqr


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchMode:
    """A total batch that a job with a batch rule may use, and the seconds of an epoch
    with it on its requested replicas.
    """

    total: int
    epoch_s: float

    def __post_init__(self) -> None:
        if self.total < 1:
            raise ValueError(f"BatchMode.total must be >= 1, got {self.total}")
        if not (math.isfinite(self.epoch_s) and self.epoch_s > 0.0):
            raise ValueError(
                f"BatchMode.epoch_s must be finite and > 0, got {self.epoch_s}"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """The remaining work at the job's *requested* batch size, and its speed.

    remaining_steps: optimiser steps left. step_time_s[k - 1]: seconds of one step on k
    replicas on as few nodes as possible. From a trace these values are exact; from a
    live job they are the job's own estimate. num_epochs, modes: for a job that changes
    its own batch, its length and the batches that it may use, by size (but not when); 0
    and empty if unknown.
    """

    remaining_steps: float
    step_time_s: tuple[float, ...]
    num_epochs: int = 0
    modes: tuple[BatchMode, ...] = ()

    def __post_init__(self) -> None:
        if not math.isfinite(self.remaining_steps):
            raise ValueError(
                f"Forecast.remaining_steps must be finite, got {self.remaining_steps}"
            )
        if (
            not self.step_time_s
            or not math.isfinite(sum(self.step_time_s))
            or min(self.step_time_s) <= 0
        ):
            raise ValueError(
                f"Forecast.step_time_s must be finite seconds > 0, got "
                f"{self.step_time_s}"
            )
        totals = [mode.total for mode in self.modes]
        if totals != sorted(set(totals)):
            raise ValueError(f"Forecast.modes must ascend by total, got {totals}")
        if self.num_epochs < 0 or (self.modes and self.num_epochs < 1):
            raise ValueError(
                f"Forecast.num_epochs must be >= 1 where modes are known, got "
                f"{self.num_epochs}"
            )

    def remaining_s(self, num_replicas: int) -> float:
        """Return the seconds left on `num_replicas` (clamped to the range that the
        forecast covers).
        """
        index = min(max(num_replicas, 1), len(self.step_time_s)) - 1
        return self.remaining_steps * self.step_time_s[index]


@dataclass(frozen=True, slots=True, kw_only=True)
class TypeProfile:
    """A job's own measurements on one GPU type."""

    params: ThroughputParams
    """Its step-time model, fitted to what was timed."""
    num_replicas_profiled: int = 0
    """The largest replica count that was timed."""
    max_atomic: int | None = None
    """The most samples of one pass that fit into the memory of one GPU; None where it
    was not found.
    """

    def __post_init__(self) -> None:
        if self.num_replicas_profiled < 0:
            raise ValueError(
                f"TypeProfile.num_replicas_profiled must be >= 0, got "
                f"{self.num_replicas_profiled}"
            )
        if self.max_atomic is not None and self.max_atomic < 1:
            raise ValueError(
                f"TypeProfile.max_atomic must be >= 1, got {self.max_atomic}"
            )

    def after(self, before: "TypeProfile | None") -> "TypeProfile":
        """Return this newer profile with everything else that `before` has; `before`
        itself if nothing is new.

        Most reports repeat the previous one, and values derived from a profile are
        computed again for each new object.
        """
        if before is None or before is self:
            return self
        both = TypeProfile(
            params=self.params,
            num_replicas_profiled=max(
                self.num_replicas_profiled, before.num_replicas_profiled
            ),
            max_atomic=before.max_atomic
            if self.max_atomic is None
            else self.max_atomic,
        )
        return before if both == before else both


LOGGED_MAX = 100
"""Rows of logged values that one report may have, and that are kept of a job."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Logged:
    """Values that a script logged together, after so many samples."""

    samples: float
    values: Mapping[str, float]

    def __post_init__(self) -> None:
        if not 0.0 <= self.samples < math.inf:
            raise ValueError(
                f"Logged.samples must be finite and >= 0, got {self.samples}"
            )
        for name, value in self.values.items():
            if not math.isfinite(value):
                raise ValueError(f"Logged.values must be finite, {name} is {value}")


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingReport:
    """One report of a job's rank 0. None and empty values mean "nothing new".
    `Measured` explains the fields.

    All numbers are finite: a sum or maximum with an infinite value, such as progress,
    would stay infinite for ever.
    """

    progress: float
    progress_target: float | None = None
    samples: float = 0.0
    batch: BatchConfig | None = None
    step_time_s: float | None = None
    by_type: Mapping[str, TypeProfile] = field(default_factory=dict)
    grad: GradStats | None = None
    efficiency_points: tuple[EfficiencyPoint, ...] = ()
    forecast: Forecast | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)
    logged: tuple[Logged, ...] = ()

    def __post_init__(self) -> None:
        target = self.progress_target
        step_s = self.step_time_s
        # One look at all of them, because nearly all events of a run are reports.
        if not (
            0.0 <= self.progress < math.inf
            and (target is None or 0.0 <= target < math.inf)
            and 0.0 <= self.samples < math.inf
            and (step_s is None or 0.0 <= step_s < math.inf)
        ):
            self._refuse()
        if self.metrics:
            for name, value in self.metrics.items():
                if not math.isfinite(value):
                    raise ValueError(
                        f"TrainingReport.metrics must be finite, {name} is {value}"
                    )

    def _refuse(self) -> None:
        for name in ("progress", "progress_target", "samples", "step_time_s"):
            value = getattr(self, name)
            if value is not None and not 0.0 <= value < math.inf:
                raise ValueError(
                    f"TrainingReport.{name} must be finite and >= 0, got {value}"
                )


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedStep:
    """One measured optimiser step: samples of a pass on each replica, passes before the
    last one, and seconds.
    """

    atomic: int
    accumulation: int
    seconds: float

    def __post_init__(self) -> None:
        if self.atomic < 1:
            raise ValueError(f"TimedStep.atomic must be >= 1, got {self.atomic}")
        if self.accumulation < 0:
            raise ValueError(
                f"TimedStep.accumulation must be >= 0, got {self.accumulation}"
            )
        if not (math.isfinite(self.seconds) and self.seconds > 0.0):
            raise ValueError(
                f"TimedStep.seconds must be finite and > 0, got {self.seconds}"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplicationTimes:
    """Step times that jobs of the same application measured on equal placements: nodes,
    racks, replicas, GPU type.

    params: the step-time model of one of these jobs.
    """

    gpu_type: str
    placement: Placement
    params: ThroughputParams
    steps: tuple[TimedStep, ...]

    def are_of(self, gpu_type: str, placement: Placement) -> bool:
        """Return whether these times are of `placement`."""
        theirs = self.placement
        return (
            gpu_type == self.gpu_type
            and placement.num_replicas == theirs.num_replicas
            and placement.num_nodes == theirs.num_nodes
            and placement.num_racks == theirs.num_racks
        )
