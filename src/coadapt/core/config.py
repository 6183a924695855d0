"""The scheduler's settings. The journal has them, so a replay decides the same."""

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
    an additional round happens this long after an arrival, an exit or a change of a
    node (None: only the periodic rounds). retry_s: an order without an answer is
    repeated after this. silence_s: if a job has not reported for this long, its order
    is repeated. solve_timeout_s: a plan that has not come by then is given up.
    rescale_default_s: assumed time of a rescale before one was measured. settle_s:
    plans do not change a job without a first step for this long after its start
    (settling.py); 0: they may. growth_trial_s: a larger size works if the job has
    trained at it for this long; failures before that do not count as the job's own
    (growth.py). 0: each failure is the job's own. backoff_first_s: pause after a job's
    first failure without progress; each further one doubles it. 0: the job restarts at
    once. rescale_in_place: whether the engine can change a job without stopping it.
    lost_node_first: whether a job that lost a node restarts before jobs that wait
    (lost_first.py).
    """

    # Values for journals that were written before these fields existed.
    WIRE_MISSING: ClassVar[Mapping[str, object]] = {
        "growth_trial_s": 0.0,
        "backoff_first_s": 0.0,
        "lost_node_first": False,
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
    lost_node_first: bool = True

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
