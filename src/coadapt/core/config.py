"""The scheduler's settings: values that the journal carries, so a replay decides as the scheduler did."""

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerConfig:
    """Durations in seconds.

    round_s: rounds happen at whole multiples of it while a job is active. reaction_s: how long after an
    arrival, an exit or a node's change a round happens besides (None: only the periodic ones).
    retry_s: an order without an answer is repeated after this. silence_s: a job that gave no sign of life for
    this long is asked by repeating its order. solve_timeout_s: after this a missing plan is given up.
    rescale_default_s: what a rescale is taken to cost before one was measured.
    """

    round_s: float = 60.0
    reaction_s: float | None = None
    retry_s: float = 120.0
    silence_s: float = 180.0
    solve_timeout_s: float = 300.0
    rescale_default_s: float = 30.0
    resize_in_place: bool = True

    def __post_init__(self) -> None:
        for name in ("round_s", "retry_s", "silence_s", "solve_timeout_s"):
            if not (math.isfinite(value := getattr(self, name)) and value > 0):
                raise ValueError(f"SchedulerConfig.{name} must be finite and > 0, got {value}")
        if self.reaction_s is not None and self.reaction_s < 0:
            raise ValueError(f"SchedulerConfig.reaction_s must be >= 0, got {self.reaction_s}")
