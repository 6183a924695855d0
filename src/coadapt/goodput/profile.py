"""What a job has measured of its own step times: the input of the fit."""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from coadapt.model import Placement

FloatArray = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """Measured steps, one row per (num_nodes, num_racks, num_replicas, atomic). Arrays (num_rows,).

    compute_s: one forward-backward pass without synchronisation. step_s: a pass with it, overlapped.
    """

    num_nodes: FloatArray
    num_racks: FloatArray
    num_replicas: FloatArray
    atomic: FloatArray
    compute_s: FloatArray
    step_s: FloatArray

    def __len__(self) -> int:
        return len(self.atomic)

    def columns(self) -> FloatArray:
        """Return all of it as one array (num_rows, 6), in the order of the fields."""
        columns = (
            self.num_nodes,
            self.num_racks,
            self.num_replicas,
            self.atomic,
            self.compute_s,
            self.step_s,
        )
        return np.column_stack(columns)


@dataclass(slots=True)
class ProfileBuilder:
    """Collects observations for `Profile`, one row per key: the first one, or with `mean` their mean."""

    mean: bool = False
    rows: dict[tuple[int, int, int, int], tuple[int, float, float]] = field(default_factory=dict)

    def add(self, placement: Placement, atomic: int, compute_s: float, step_s: float) -> bool:
        """Take in one measured step; return whether its key is new (time to fit again)."""
        key = (placement.num_nodes, placement.num_racks, placement.num_replicas, atomic)
        old = self.rows.get(key)
        if old is None:
            self.rows[key] = (1, compute_s, step_s)
        elif self.mean:
            count = old[0] + 1
            mean_compute_s = old[1] + (compute_s - old[1]) / count
            self.rows[key] = (count, mean_compute_s, old[2] + (step_s - old[2]) / count)
        return old is None

    @property
    def num_replicas_profiled(self) -> int:
        """Return the largest replica count that was timed, 0 without any observation."""
        return max((key[2] for key in self.rows), default=0)

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
