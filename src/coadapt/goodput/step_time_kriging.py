"""Step times on a placement from the model and from steps that other jobs of the
application measured there. Batches are chosen by them.

Axes: B candidate batches, S steps that were timed.
"""

# A model of seven parameters is off by several per cent on a single batch, and the best
# batch by such a model is 2 % below the best in truth (in goodput, time for time, on
# the profiles of OSDI'21). What jobs of the same application timed on the same shape
# says more: errors against the model, in logarithms, are taken for one process over the
# logarithm of the samples of a pass (kriging). Where nothing was timed nearby, a batch
# may prove faster than it looks, and a job that never tries it will not know. So
# seconds here are hopeful, by one standard deviation (an upper confidence bound of the
# goodput; Srinivas et al., ICML 2010, alg. 1).

from functools import lru_cache
from typing import TypeGuard

import numpy as np

from coadapt.goodput.throughput import (
    FloatArray,
    Floats,
    ParamArrays,
    Shapes,
    ThroughputModel,
    step_time,
)
from coadapt.model import ApplicationTimes, Placement, ThroughputParams

# Of errors in logarithms: what all steps of a shape share, what differs from batch to
# batch, over which distance (in logarithms of samples), and what a measurement is off
# by. (Goodput lost against the best batch on four recorded workloads: at distances 0.3,
# 0.5 and 0.8, noise scales known, 0.23, 0.30 and 0.41 %; with measurements off by 0.005
# and 0.02, noise scales as jobs know them, 1.05 and 1.10 %.)
SHARED = 0.07
BY_BATCH = 0.1
DISTANCE = 0.3
MEASURED = 0.02
# Some kB each. In a simulation, all jobs of an application on one shape share a model.
NUM_MODELS_KEPT = 512
# standard deviations (at a distance of 0.5, noise scales known, 0, 0.5 and 1: 0.41,
# 0.37, 0.30 %)
HOPE = 1.0


@lru_cache(maxsize=NUM_MODELS_KEPT)
def optimistic_step_times(shared: ApplicationTimes) -> ThroughputModel:
    """Return step times on the placement of `shared`, as short as what was timed
    there allows.

    The model ignores the parameters that it is given: it goes by those of `shared`.
    """
    placement = shared.placement
    theirs = shared.params
    atomic_S = np.array([step.atomic for step in shared.steps], dtype=np.float64)
    passes_S = np.array([step.accumulation for step in shared.steps], dtype=np.float64)
    taken_S = np.array([step.seconds for step in shared.steps])
    at_S = np.log(atomic_S)
    error_S = np.log(taken_S) - np.log(step_time(theirs, placement, atomic_S, passes_S))
    covariance_SS = _covariance(at_S, at_S) + MEASURED**2 * np.eye(len(at_S))
    inverse_SS = np.linalg.inv(covariance_SS)
    weight_S = inverse_SS @ error_S
    last: list[
        FloatArray
    ] = []  # asked for last, and the answer: candidates are the same from step to step

    def times(
        params: ThroughputParams | ParamArrays,  # noqa: ARG001 - as the protocol has it
        shape: Placement | Shapes,  # noqa: ARG001 - as the protocol has it
        atomic: Floats,
        accumulation: Floats = 0.0,
    ) -> Floats:
        if last and last[0] is atomic and last[1] is accumulation:
            return last[2]
        towards_BS = _covariance(
            np.log(np.atleast_1d(np.asarray(atomic, dtype=np.float64))), at_S
        )
        explained_B = np.einsum("bs,st,bt->b", towards_BS, inverse_SS, towards_BS)
        deviation_B = np.sqrt(np.maximum(SHARED**2 + BY_BATCH**2 - explained_B, 0.0))
        factor_B = np.exp(towards_BS @ weight_S - HOPE * deviation_B)
        said = step_time(theirs, placement, atomic, accumulation)
        if not np.ndim(atomic):
            return float(said) * float(factor_B[0])
        taken_B: FloatArray = said * factor_B
        if _lasting(atomic) and _lasting(accumulation):
            taken_B.flags.writeable = False
            last[:] = atomic, accumulation, taken_B
        return taken_B

    return times


def _lasting(batches: Floats) -> TypeGuard[FloatArray]:
    return isinstance(batches, np.ndarray) and not batches.flags.writeable


def _covariance(one: FloatArray, other: FloatArray) -> FloatArray:
    between: FloatArray = (one[:, None] - other[None, :]) / DISTANCE
    result: FloatArray = SHARED**2 + BY_BATCH**2 * np.exp(-0.5 * between**2)
    return result
