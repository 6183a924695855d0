"""How a job's efficiency is to be estimated: named in its spec, measured in its
reports. Values only.
"""

import math
from dataclasses import dataclass
from enum import StrEnum

# Critical batch sizes follow a power of the tokens that runs were trained on, whatever
# the size of the model:
# the abstracts of Bergsma et al. 2025 ("Power Lines", arXiv 2505.13738) and Zhang et
# al. 2024 (2410.21676).
# The number is our choice, a little below a square root, and so is its use within one
# run, by tokens seen.
TOKENS_EXPONENT = 0.46


class EfficiencyKind(StrEnum):
    """The model that estimates a job's efficiency (goodput/efficiency_models.py)."""

    # Pollux's formula, from the gradient statistics that the job reports
    NOISE_SCALE = "noise-scale"
    MEASURED = (
        "measured"  # a curve measured over progress, for instance by short branches
    )
    TOKENS = "tokens"  # a prior that grows with the tokens seen


@dataclass(frozen=True, slots=True, kw_only=True)
class EfficiencyPoint:
    """Measured progress per sample at batch `total`, relative to the initial batch.

    progress: the job's progress at the measurement, in samples. expected: the measured
    value; low, high: its interval. The value may be above 1: under some learning-rate
    schedules a larger batch needs less data.
    """

    progress: float
    total: int
    low: float
    expected: float
    high: float

    def __post_init__(self) -> None:
        if not (
            math.isfinite(self.progress) and self.progress >= 0.0 and self.total >= 1
        ):
            raise ValueError(
                f"EfficiencyPoint: progress >= 0 and total >= 1 are needed, got {self}"
            )
        if not 0.0 < self.low <= self.expected <= self.high < math.inf:
            raise ValueError(
                f"EfficiencyPoint: 0 < low <= expected <= high is needed, got {self}"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class EfficiencySpec:
    """The model that estimates the efficiency of an adaptive job, and its calibration.

    points: for `measured`, what is known before the first report. For `tokens`:
    `critical_batch` is the critical batch (samples at which training needs twice the
    data) after `reference_tokens` tokens; a sample has `tokens_per_sample` tokens.
    """

    kind: EfficiencyKind = EfficiencyKind.NOISE_SCALE
    points: tuple[EfficiencyPoint, ...] = ()
    critical_batch: float | None = None
    reference_tokens: float | None = None
    tokens_per_sample: float | None = None
    exponent: float = TOKENS_EXPONENT

    def __post_init__(self) -> None:
        if self.kind is EfficiencyKind.TOKENS:
            for name in ("critical_batch", "reference_tokens", "tokens_per_sample"):
                value = getattr(self, name)
                if value is None or not 0.0 < value < math.inf:
                    raise ValueError(
                        f"efficiency.{name} must be > 0 for kind tokens, got {value}"
                    )
        if not 0.0 <= self.exponent <= 1.0:
            raise ValueError(
                f"efficiency.exponent must be in [0, 1], got {self.exponent}"
            )
