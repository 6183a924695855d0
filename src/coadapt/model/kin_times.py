"""What jobs of one application timed, as a scheduler tells it to another of them; it is never journaled."""

import math
from dataclasses import dataclass

from coadapt.model.cluster import Placement
from coadapt.model.report import ThroughputParams


@dataclass(frozen=True, slots=True)
class TimedStep:
    """One optimiser step: samples of a pass on each replica, passes accumulated before the last, seconds."""

    atomic: int
    accumulation: int
    seconds: float

    def __post_init__(self) -> None:
        if self.atomic < 1:
            raise ValueError(f"TimedStep.atomic must be >= 1, got {self.atomic}")
        if self.accumulation < 0:
            raise ValueError(f"TimedStep.accumulation must be >= 0, got {self.accumulation}")
        if not (math.isfinite(self.seconds) and self.seconds > 0.0):
            raise ValueError(f"TimedStep.seconds must be finite and > 0, got {self.seconds}")


@dataclass(frozen=True, slots=True, kw_only=True)
class KinTimes:
    """Steps that jobs of the same application timed on placements alike: nodes, racks, replicas, GPU type.

    params: the step-time model of one of them.
    """

    gpu_type: str
    placement: Placement
    params: ThroughputParams
    steps: tuple[TimedStep, ...]

    def are_of(self, gpu_type: str, placement: Placement) -> bool:
        """Tell whether they say something of steps on `placement`."""
        theirs = self.placement
        return (
            gpu_type == self.gpu_type
            and placement.num_replicas == theirs.num_replicas
            and placement.num_nodes == theirs.num_nodes
            and placement.num_racks == theirs.num_racks
        )
