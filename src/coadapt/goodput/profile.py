"""What a job has measured of its own step times: the input of the fit."""

import math
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from coadapt.model import Placement

FloatArray = NDArray[np.float64]


class ProfileKey(NamedTuple):
    """What tells measured steps apart."""

    num_nodes: int
    num_racks: int
    num_replicas: int
    atomic: int

    @classmethod
    def of(cls, placement: Placement, atomic: int) -> "ProfileKey":
        return cls(
            placement.num_nodes, placement.num_racks, placement.num_replicas, atomic
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """Measured steps, one row per `ProfileKey`. Arrays (num_rows,).

    compute_s: one forward-backward pass without synchronisation. step_s: a pass with
    it, overlapped. Raises ValueError unless all times are finite and above 0.
    """

    num_nodes: FloatArray
    num_racks: FloatArray
    num_replicas: FloatArray
    atomic: FloatArray
    compute_s: FloatArray
    step_s: FloatArray

    def __post_init__(self) -> None:
        times_s = np.concatenate((self.compute_s, self.step_s))
        if not (np.isfinite(times_s).all() and (times_s > 0.0).all()):
            raise ValueError("Profile: all times must be finite and > 0")

    def __len__(self) -> int:
        return len(self.atomic)

    def columns(self) -> FloatArray:
        """Return all of it as one array (num_rows, 6), in the order of the fields."""
        keys = (self.num_nodes, self.num_racks, self.num_replicas, self.atomic)
        return np.column_stack((*keys, self.compute_s, self.step_s))


def check_times(compute_s: float, step_s: float) -> None:
    """Raise ValueError unless both times are finite and above 0."""
    if not (0.0 < compute_s < math.inf and 0.0 < step_s < math.inf):
        raise ValueError(
            f"times must be finite and > 0: compute_s {compute_s}, step_s {step_s}"
        )


@dataclass(slots=True)
class ProfileBuilder:
    """Collects observations for `Profile`, one row per key: the first one.

    rows: by key (count, compute_s, step_s).
    """

    rows: dict[ProfileKey, tuple[int, float, float]] = field(default_factory=dict)

    def add(
        self, placement: Placement, atomic: int, compute_s: float, step_s: float
    ) -> bool:
        """Take in one measured step; return whether its key is new (time to fit again).

        ValueError unless both times are finite and above 0.
        """
        check_times(compute_s, step_s)
        key = ProfileKey.of(placement, atomic)
        if key in self.rows:
            return False
        self.rows[key] = (1, compute_s, step_s)
        return True

    @property
    def num_replicas_profiled(self) -> int:
        """The largest replica count that was timed, 0 without any observation."""
        return max((key.num_replicas for key in self.rows), default=0)

    def build(self) -> Profile:
        """Return the observations so far."""
        keys = np.array(list(self.rows), dtype=np.float64).reshape(-1, 4)
        times = np.array(list(self.rows.values()), dtype=np.float64).reshape(-1, 3)
        return Profile(
            num_nodes=keys[:, 0],
            num_racks=keys[:, 1],
            num_replicas=keys[:, 2],
            atomic=keys[:, 3],
            compute_s=times[:, 1],
            step_s=times[:, 2],
        )
