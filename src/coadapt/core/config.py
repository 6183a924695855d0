"""The scheduler's settings: values that the journal carries, so a replay decides as the
scheduler did.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

# Seconds; instants are seconds since 1970, which a float tells apart to half a
# microsecond.
ROUND_S_MIN = 1e-3


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerConfig:
    """Durations in seconds.

    round_s: rounds happen at whole multiples of it while a job is active. reaction_s:
    how long after an arrival, an exit or a node's change a round happens besides (None:
    only the periodic ones).
    retry_s: an order without an answer is repeated after this. silence_s: a job that
    gave no sign of life for this long is asked by repeating its order. solve_timeout_s:
    after this a missing plan is given up. rescale_default_s: what a rescale is taken to
    cost before one was measured. settle_s: so long after a start plans leave a job in
    peace that has not taken a step yet (settling.py); 0: not at all.
    growth_trial_s: so long a job trains at a larger size before that size counts as one
    that works, and an end of its replicas as the job's own failure (growth.py); 0: each
    failure is the job's own.
    backoff_first_s: so long a job rests after its first failure without progress, and
    twice as long after each further one; 0: it is tried again at once.
    """

    # A journal that was written before there was this field is replayed as it was
    # decided then.
    WIRE_MISSING: ClassVar[Mapping[str, object]] = {
        "growth_trial_s": 0.0,
        "backoff_first_s": 0.0,
    }

    round_s: float = 60.0
    reaction_s: float | None = None
    retry_s: float = 120.0
    silence_s: float = 180.0
    solve_timeout_s: float = 300.0
    rescale_default_s: float = 30.0
    settle_s: float = 600.0
    growth_trial_s: float = 60.0
    backoff_first_s: float = 5.0
    rescale_in_place: bool = True

    def __post_init__(self) -> None:
        if not self.round_s >= ROUND_S_MIN:
            raise ValueError(
                f"SchedulerConfig.round_s must be >= {ROUND_S_MIN}, got {self.round_s}"
            )
        for name in ("round_s", "retry_s", "silence_s", "solve_timeout_s"):
            if not (math.isfinite(value := getattr(self, name)) and value > 0):
                raise ValueError(
                    f"SchedulerConfig.{name} must be finite and > 0, got {value}"
                )
        if not (math.isfinite(self.settle_s) and self.settle_s >= 0):
            raise ValueError(
                f"SchedulerConfig.settle_s must be finite and >= 0, got {self.settle_s}"
            )
        if not (math.isfinite(self.growth_trial_s) and self.growth_trial_s >= 0):
            raise ValueError(
                f"SchedulerConfig.growth_trial_s must be finite and >= 0, got "
                f"{self.growth_trial_s}"
            )
        if not (math.isfinite(self.backoff_first_s) and self.backoff_first_s >= 0):
            raise ValueError(
                f"SchedulerConfig.backoff_first_s must be finite and >= 0, got "
                f"{self.backoff_first_s}"
            )
        if self.reaction_s is not None and self.reaction_s < 0:
            raise ValueError(
                f"SchedulerConfig.reaction_s must be >= 0, got {self.reaction_s}"
            )
