"""Noise ahead, and the best goodput of each job on each configuration with it: one compiled pass.

Axes: J jobs, C configurations, 9 step-time parameters.
"""

# A plan looks ahead, so it must price a GPU by what it will do, not by what it does now. The gradient noise
# scale φ grows while a job learns, about like a root of its progress p. Over the next `a` of progress its
# mean is near that in the middle: φ' = φ · min(sqrt((p + a/2) / p), 30), a being what is left, or 3,000 s of
# work at the present goodput if that is less. Tried instead: φ of now (JCT +0.5 %), fitted slopes (no gain).

from typing import NamedTuple

import numpy as np

from coadapt.goodput.compiled import compiled
from coadapt.policies.castor.arrays import BoolArray, FloatArray, IntArray

AHEAD_S = 3_000.0  # how far a plan looks along the noise (tried: 1,000-10,000 alike)
GROWTH_MAX = 30.0  # of the noise scale: a job that has just begun has no p to speak of
NUM_TRIED = 50  # geometric batches, as in goodput/batch.py
ROUNDING_SLACK = 1e-8  # samples, as in goodput/batch.py
STEP_TIME_MIN_S = 1e-9  # as in goodput/throughput.py


class Trainings(NamedTuple):
    """What the goodput of each job follows from. Arrays (num_jobs, ...).

    params_JTX: step-time parameters per GPU type, in the order of ThroughputParams. known_J: whether there
    are any. batch_JTX: initial, requested, max_total, min_atomic, max_atomic (0: none), with the memory of
    each type; may_JX: adaptive, accumulation. noise_J: noise scale, samples (inf: no loss). progress_J,
    left_J: done and to do (inf: unknown), samples.
    held_JX: type, nodes, racks, replicas that it holds (replicas 0: none).
    """

    params_JTX: FloatArray
    known_J: BoolArray
    batch_JTX: FloatArray
    may_JX: BoolArray
    noise_J: FloatArray
    progress_J: FloatArray
    left_J: FloatArray
    held_JX: IntArray


class Configs(NamedTuple):
    """Configurations: GPU type, nodes, racks and replicas of each, arrays (num_configs,)."""

    type_C: IntArray
    nodes_C: IntArray
    racks_C: IntArray
    gpus_C: IntArray


@compiled
def _sync_s(params_X: FloatArray, nodes: int, racks: int, replicas: int) -> float:
    if replicas <= 1:
        return 0.0
    link = 6 if racks > 1 else (4 if nodes > 1 else 2)
    seconds: float = params_X[link] + params_X[link + 1] * max(replicas - 2, 0)
    return seconds


@compiled
def _per_step(params_X: FloatArray, sync_s: float, atomic: float, passes: float) -> float:
    compute_s = params_X[0] + params_X[1] * atomic
    longest_s = max(compute_s, sync_s, STEP_TIME_MIN_S)
    ratio = min(compute_s, sync_s) / longest_s
    gamma = params_X[8]
    overlapped_s = longest_s
    if ratio > 0.0:
        overlapped_s *= (1.0 + ratio**gamma) ** (1.0 / gamma)
    seconds: float = overlapped_s + (passes - 1.0) * compute_s
    return seconds


@compiled
def _goodput(
    params_X: FloatArray, batch_X: FloatArray, may_X: BoolArray, noise: float, shape: tuple[int, int, int]
) -> float:
    """Return the best goodput on `shape` (nodes, racks, replicas), at noise scale `noise` (samples)."""
    initial, requested, max_total, min_atomic, max_atomic = batch_X
    replicas = shape[2]
    sync_s = _sync_s(params_X, shape[0], shape[1], replicas)
    if not may_X[0]:
        if replicas * min_atomic > requested:
            return 0.0
        share = np.ceil(requested / replicas)
        passes = np.ceil(share / max_atomic) if max_atomic > 0.0 else 1.0
        kept: float = requested / _per_step(params_X, sync_s, np.ceil(share / passes), passes)
        return kept
    smallest, largest = max(initial, min_atomic * replicas), max_total
    if not may_X[1]:
        if max_atomic > 0.0:
            largest = min(largest, max_atomic * replicas)
        if replicas == 1:
            largest = min(largest, initial)
    if smallest > largest:
        return 0.0
    best = 0.0
    step = (largest / smallest) ** (1.0 / (NUM_TRIED - 1))
    share = smallest / replicas
    for _ in range(NUM_TRIED):
        passes = 1.0
        if may_X[1]:
            if max_atomic > 0.0:
                passes = np.ceil(share / max_atomic - ROUNDING_SLACK)
            if replicas == 1 and share > initial + ROUNDING_SLACK:
                passes = max(passes, 2.0)
        atomic = np.ceil(share / passes - ROUNDING_SLACK)
        atomic = min(atomic, np.floor(max_total / (replicas * passes)))
        share *= step
        if atomic < min_atomic or (max_atomic > 0.0 and atomic > max_atomic):
            continue
        total = replicas * atomic * passes
        efficiency = 1.0 if noise == np.inf else (noise + initial) / (noise + total)
        best = max(best, total * efficiency / _per_step(params_X, sync_s, atomic, passes))
    return best


@compiled
def goodputs(trainings: Trainings, configs: Configs, wanted_JC: BoolArray) -> tuple[FloatArray, FloatArray]:
    """Return goodputs in progress per second: where `wanted_JC`, else 0; and on what each job holds.

    Jobs whose step time is not known have 0.
    """
    num_jobs, num_configs = wanted_JC.shape
    goodput_JC, here_J = np.zeros((num_jobs, num_configs)), np.zeros(num_jobs)
    for j in range(num_jobs):
        if not trainings.known_J[j]:
            continue
        may_X, held_X = trainings.may_JX[j], trainings.held_JX[j]
        batch_X = trainings.batch_JTX[j, held_X[0]]
        noise = trainings.noise_J[j]
        shape = (1, 1, 1) if held_X[3] == 0 else (held_X[1], held_X[2], held_X[3])
        params_X = trainings.params_JTX[j, held_X[0]]
        if may_X[0] and noise < np.inf:
            rate = _goodput(params_X, batch_X, may_X, noise, shape)
            ahead = min(trainings.left_J[j], AHEAD_S * rate)
            done = trainings.progress_J[j]
            growth = GROWTH_MAX
            if done > 0.0:
                growth = min(np.sqrt((done + 0.5 * ahead) / done), GROWTH_MAX)
            noise *= growth
        if held_X[3] > 0:
            here_J[j] = _goodput(params_X, batch_X, may_X, noise, shape)
        for c in range(num_configs):
            if wanted_JC[j, c]:
                shape = (configs.nodes_C[c], configs.racks_C[c], configs.gpus_C[c])
                of_type = configs.type_C[c]
                params_X, batch_X = trainings.params_JTX[j, of_type], trainings.batch_JTX[j, of_type]
                goodput_JC[j, c] = _goodput(params_X, batch_X, may_X, noise, shape)
    return goodput_JC, here_J
