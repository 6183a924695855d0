"""What holds for all jobs of a simulated world."""

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class WorldConfig:
    """How the world behaves. Durations in seconds.

    report_s: running jobs report at whole multiples of it. rescale_s: training time
    that each start and each change of allocation costs jobs that do not say otherwise.
    prepare_s: how long a change in place is prepared while training goes on.
    checkpoint_s: least time between checkpoints, which are made at reports. save_s:
    training time that a checkpoint costs; above 0, a job on spot nodes chooses its
    period itself (model/checkpoint_period.py), not below checkpoint_s.
    interference: the part of its speed that a job on several nodes loses while it
    shares a node with another such job (Pollux, OSDI'21, §5.3.2).
    """

    report_s: float = 60.0
    rescale_s: float = 30.0
    prepare_s: float = 0.0
    checkpoint_s: float = 0.0
    save_s: float = 0.0
    interference: float = 0.0
    rescales_in_place: bool = True

    def __post_init__(self) -> None:
        if not (math.isfinite(self.report_s) and self.report_s > 0.0):
            raise ValueError(f"report_s must be finite and > 0, got {self.report_s}")
        for name in ("rescale_s", "prepare_s", "checkpoint_s", "save_s"):
            if not (math.isfinite(value := getattr(self, name)) and value >= 0.0):
                raise ValueError(f"{name} must be finite and >= 0, got {value}")
        if not 0.0 <= self.interference < 1.0:
            raise ValueError(f"interference must be in [0, 1), got {self.interference}")
