"""Step time of a job on a placement: the pluggable model, and Pollux's as the default
(OSDI'21, §3.2).

Axes: J jobs, C configurations (placements), B candidate batches.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from operator import attrgetter
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from coadapt.model import Placement, ThroughputParams

FloatArray = NDArray[np.float64]
Floats = FloatArray | float

# No step is shorter: launching one kernel takes longer. It keeps all-zero parameters
# from dividing by zero.
STEP_TIME_MIN_S = 1e-9

PARAM_NAMES = tuple(each.name for each in fields(ThroughputParams))
_VALUES = attrgetter(*PARAM_NAMES)


@dataclass(frozen=True, slots=True)
class Shapes:
    """Many placements at once, as arrays that broadcast together; the plural of
    `model.Placement`.
    """

    num_nodes: FloatArray
    num_racks: FloatArray
    num_replicas: FloatArray


@dataclass(frozen=True, slots=True)
class ParamArrays:
    """Parameters of many jobs, one array (num_jobs, 1, ..., 1) per name; the plural of
    `ThroughputParams`.
    """

    alpha_c: FloatArray
    beta_c: FloatArray
    alpha_r: FloatArray
    beta_r: FloatArray
    alpha_n: FloatArray
    beta_n: FloatArray
    alpha_k: FloatArray
    beta_k: FloatArray
    gamma: FloatArray

    @classmethod
    def stack(cls, params: Sequence[ThroughputParams], ndim: int = 1) -> "ParamArrays":
        """Return the parameters of `params` as arrays of `ndim` dimensions, jobs along
        the first.
        """
        columns = (
            np.array([_VALUES(each) for each in params])
            .reshape(len(params), len(PARAM_NAMES))
            .T
        )
        return cls(*columns.reshape(len(PARAM_NAMES), -1, *[1] * (ndim - 1)))


class ThroughputModel(Protocol):
    """How long a step takes. Write another function like `step_time` and pass it as
    `model=`.
    """

    def __call__(
        self,
        params: ThroughputParams | ParamArrays,
        shape: Placement | Shapes,
        atomic: Floats,
        accumulation: Floats,
    ) -> Floats:
        """Return seconds per optimiser step; every argument may be one value or arrays
        that broadcast.
        """
        ...


def step_time(
    params: ThroughputParams | ParamArrays,
    shape: Placement | Shapes,
    atomic: Floats,
    accumulation: Floats = 0.0,
) -> Floats:
    """Return seconds of one optimiser step of s + 1 passes of `atomic` samples per
    replica: Pollux's eq. 11.

    s T_grad + (T_grad^γ + T_sync^γ)^(1/γ), which lies between s T_grad + max and s
    T_grad + sum of the terms.
    """
    # In place: large temporaries cost more than the arithmetic.
    compute_s = params.beta_c * atomic
    compute_s += params.alpha_c
    sync_s = sync_time(params, shape)
    longest_s = np.maximum(np.maximum(compute_s, sync_s), STEP_TIME_MIN_S)
    step_s = np.minimum(compute_s, sync_s)
    step_s /= longest_s
    step_s **= params.gamma
    step_s += 1.0
    step_s **= 1.0 / params.gamma
    step_s *= longest_s
    return step_s + accumulation * compute_s


def sync_time(
    params: ThroughputParams | ParamArrays, shape: Placement | Shapes
) -> Floats:
    """Return T_sync in seconds: 0 on one replica, then by the widest link in use: node,
    network, racks.
    """
    if isinstance(shape, Placement):
        return _sync_time_of_one(params, shape)
    extra = np.maximum(shape.num_replicas - 2.0, 0.0)
    sync_s = np.where(
        shape.num_racks > 1,
        params.alpha_k + params.beta_k * extra,
        np.where(
            shape.num_nodes > 1,
            params.alpha_n + params.beta_n * extra,
            params.alpha_r + params.beta_r * extra,
        ),
    )
    return np.where(shape.num_replicas > 1, sync_s, 0.0)


def _sync_time_of_one(
    params: ThroughputParams | ParamArrays, placement: Placement
) -> Floats:
    num_replicas = placement.num_replicas
    if num_replicas <= 1:
        return 0.0
    extra = num_replicas - 2
    if placement.num_racks > 1:
        return params.alpha_k + params.beta_k * extra
    if placement.num_nodes > 1:
        return params.alpha_n + params.beta_n * extra
    return params.alpha_r + params.beta_r * extra


def packed_placement(num_replicas: int, gpus_per_node: int) -> Placement:
    """Return `num_replicas` on as few nodes of `gpus_per_node` GPUs as possible, one
    rack.
    """
    if num_replicas < 1 or gpus_per_node < 1:
        raise ValueError(
            f"replicas and GPUs per node must be >= 1, got {num_replicas} and "
            f"{gpus_per_node}"
        )
    full, rest = divmod(num_replicas, gpus_per_node)
    return Placement((gpus_per_node,) * full + ((rest,) if rest else ()))
