"""The best goodput of each job on each configuration at a given noise scale: one
compiled pass.

Axes: J jobs, N asked rows (a job at a noise scale), C configurations, B candidate
batches.
"""

# A configuration is tried with the same batches as in goodput/batch.py. An upper bound
# of a batch's goodput needs no power (steps take at least as long as the longer of
# passes and synchronisation), so only batches with a bound above the best found are
# worked out.

from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np

from coadapt.goodput.batch import NUM_CANDIDATES, ROUNDING_SLACK
from coadapt.goodput.compiled import compiled_lean, lean_part
from coadapt.goodput.throughput import PARAM_NAMES
from coadapt.model import ThroughputParams
from coadapt.policies.predictors.goodputs_in_arrays import (
    Loops,
    Pairs,
    best_of_pairs,
)
from coadapt.policies.solvers.arrays import BoolArray, FloatArray, IntArray

STEP_TIME_MIN_S = 1e-9  # as in goodput/throughput.py
GAMMA = 8  # of ThroughputParams: how passes and synchronisation overlap
FAR = 7  # every so many batches are tried first: their bounds exclude many others

params_of = attrgetter(*PARAM_NAMES)


class Configs(NamedTuple):
    """Configurations: GPU type, nodes, racks and replicas of each, shape
    (num_configs,).
    """

    type_C: IntArray
    nodes_C: IntArray
    racks_C: IntArray
    gpus_C: IntArray


NO_CONFIGS = Configs(*np.empty((4, 0), dtype=np.int64))  # what each job holds alone


class Steps(NamedTuple):
    """What the goodput of each job follows from, beside its noise. Arrays (num_jobs,
    ...).

    params_JTX: step-time parameters per GPU type, in the order of ThroughputParams.
    known_J: whether there are any. batch_JTX: initial, requested, max_total,
    min_atomic, max_atomic (0: none), with the memory of each type; may_JX: adaptive,
    accumulation. held_JX: type, nodes, racks, replicas that it holds (replicas 0:
    none).
    """

    params_JTX: FloatArray
    known_J: BoolArray
    batch_JTX: FloatArray
    may_JX: BoolArray
    held_JX: IntArray


class Rows(NamedTuple):
    """Rows that are asked for: whose, at what noise scale, on which configurations.

    The last column of wanted_NC is what the job holds; one GPU where it holds nothing.
    """

    job_N: IntArray
    noise_N: FloatArray
    wanted_NC: BoolArray


class Best(NamedTuple):
    """Goodputs, in progress per second, (rows, configurations + 1), and samples of a
    pass at each.
    """

    goodput_NC: FloatArray
    atomic_NC: FloatArray


def goodputs(steps: Steps, configs: Configs, rows: Rows) -> Best:
    """Return the best goodputs where wanted, else 0, and at which batch that is.

    The last column is what the job of the row holds, or one GPU. Jobs whose step time
    is not known have 0.
    """
    shape = rows.wanted_NC.shape
    best = Best(np.zeros(shape), np.ones(shape))
    if not hasattr(_write_goodputs, "py_func"):  # there is no compiler
        _write_goodputs_in_arrays(steps, configs, rows, best)
        return best
    # Scratch: samples of a pass, passes, and the bound, of each candidate batch.
    _write_goodputs(steps, configs, rows, np.empty((3, NUM_CANDIDATES)), best)
    return best


def log_steps_s(params: ThroughputParams, settings_NX: FloatArray) -> FloatArray:
    """Return the logarithms of what steps take, s, to the same bits on all machines.

    settings_NX: nodes, racks, replicas, samples of a pass, passes accumulated.
    """
    found_N = np.empty(len(settings_NX))
    _log_steps_s(np.array(params_of(params)), settings_NX, found_N)
    return found_N


@lean_part
def _sync_s(params_X: FloatArray, nodes: int, racks: int, replicas: int) -> float:
    if replicas <= 1:
        return 0.0
    link = 2
    if nodes > 1:
        link = 4
    if racks > 1:
        link = 6
    seconds: float = params_X[link] + params_X[link + 1] * max(replicas - 2, 0)
    return seconds


@lean_part
def _step_s(params_X: FloatArray, sync_s: float, atomic: float, passes: float) -> float:
    compute_s = params_X[0] + params_X[1] * atomic
    longest_s = max(compute_s, sync_s, STEP_TIME_MIN_S)
    ratio = min(compute_s, sync_s) / longest_s
    gamma = params_X[GAMMA]
    overlapped_s = longest_s
    if ratio > 0.0:
        overlapped_s *= (1.0 + ratio**gamma) ** (1.0 / gamma)
    seconds: float = overlapped_s + (passes - 1.0) * compute_s
    return seconds


@compiled_lean
def _log_steps_s(
    params_X: FloatArray, settings_NX: FloatArray, found_N: FloatArray
) -> None:
    for n in range(len(found_N)):
        nodes = int(settings_NX[n, 0])
        racks = int(settings_NX[n, 1])
        sync_s = _sync_s(params_X, nodes, racks, int(settings_NX[n, 2]))
        found_N[n] = np.log(
            _step_s(params_X, sync_s, settings_NX[n, 3], settings_NX[n, 4] + 1.0)
        )


@lean_part
def _candidates(
    batch_X: FloatArray, accumulates: bool, replicas: int, batch_XB: FloatArray
) -> int:
    """Write the samples of a pass and the passes of each candidate batch; return how
    many.
    """
    initial = batch_X[0]
    max_total = batch_X[2]
    min_atomic = batch_X[3]
    max_atomic = batch_X[4]
    smallest = max(initial, min_atomic * replicas)
    largest = max_total
    if not accumulates:
        if max_atomic > 0.0:
            largest = min(largest, max_atomic * replicas)
        if replicas == 1:
            largest = min(largest, initial)
    if smallest > largest:
        return 0
    step = (largest / smallest) ** (1.0 / (NUM_CANDIDATES - 1))
    far_step = step**FAR
    count = 0
    # Each FAR-th share first, then those between them: products are rounded, so shares
    # of a batch are reached in few steps.
    for first in range(2):
        share = smallest / replicas * step**first
        stride = 1 if first else FAR
        for number in range(first, NUM_CANDIDATES, stride):
            tried = share
            share *= step if first else far_step
            if first and number % FAR == 0:
                continue
            passes = 1.0
            if accumulates:
                if max_atomic > 0.0:
                    passes = np.ceil(tried / max_atomic - ROUNDING_SLACK)
                if replicas == 1 and tried > initial + ROUNDING_SLACK:
                    passes = max(passes, 2.0)
            atomic = np.ceil(tried / passes - ROUNDING_SLACK)
            atomic = min(atomic, np.floor(max_total / (replicas * passes)))
            if atomic < min_atomic or (max_atomic > 0.0 and atomic > max_atomic):
                continue
            batch_XB[0, count] = atomic
            batch_XB[1, count] = passes
            count += 1
    return count


@lean_part
def _best_of(
    params_X: FloatArray,
    initial: float,
    replicas: int,
    noise: float,
    sync_s: float,
    batch_XB: FloatArray,
    count: int,
) -> tuple[float, float]:
    """Return the best goodput of the candidates, and its samples of a pass."""
    first = -1
    for b in range(count):
        atomic = batch_XB[0, b]
        passes = batch_XB[1, b]
        total = replicas * atomic * passes
        efficiency = 1.0 if noise == np.inf else (noise + initial) / (noise + total)
        compute_s = params_X[0] + params_X[1] * atomic
        least_s = max(compute_s, sync_s, STEP_TIME_MIN_S) + (passes - 1.0) * compute_s
        batch_XB[2, b] = total * efficiency / least_s
        if first < 0 or batch_XB[2, b] > batch_XB[2, first]:
            first = b
    best = 0.0
    best_atomic = 1.0
    for turn in range(-1, count):
        b = first if turn < 0 else turn
        if count == 0 or batch_XB[2, b] * (1.0 + 1e-9) <= best:
            continue
        atomic = batch_XB[0, b]
        total = replicas * atomic * batch_XB[1, b]
        efficiency = 1.0 if noise == np.inf else (noise + initial) / (noise + total)
        goodput = total * efficiency / _step_s(params_X, sync_s, atomic, batch_XB[1, b])
        if goodput > best:
            best = goodput
            best_atomic = atomic
    return best, best_atomic


@lean_part
def _as_requested(
    params_X: FloatArray, batch_X: FloatArray, replicas: int, sync_s: float
) -> tuple[float, float]:
    """Return goodput and samples of a pass of a job that keeps its total batch; 0: too
    small.
    """
    requested = batch_X[1]
    max_atomic = batch_X[4]
    if replicas * batch_X[3] > requested:
        return 0.0, 1.0
    share = np.ceil(requested / replicas)
    passes = np.ceil(share / max_atomic) if max_atomic > 0.0 else 1.0
    atomic = np.ceil(share / passes)
    return requested / _step_s(params_X, sync_s, atomic, passes), atomic


@compiled_lean
def _write_goodputs(
    steps: Steps, configs: Configs, rows: Rows, batch_XB: FloatArray, best: Best
) -> None:
    num_configs = len(configs.gpus_C)
    for n in range(len(rows.job_N)):
        j = rows.job_N[n]
        for c in range(num_configs + 1):
            if not steps.known_J[j] or not rows.wanted_NC[n, c]:
                continue
            if c < num_configs:
                of_type = configs.type_C[c]
                nodes = configs.nodes_C[c]
                racks = configs.racks_C[c]
                replicas = configs.gpus_C[c]
            else:
                of_type = steps.held_JX[j, 0]
                nodes = steps.held_JX[j, 1]
                racks = steps.held_JX[j, 2]
                replicas = max(steps.held_JX[j, 3], 1)
            params_X = steps.params_JTX[j, of_type]
            batch_X = steps.batch_JTX[j, of_type]
            sync_s = _sync_s(params_X, nodes, racks, replicas)
            if not steps.may_JX[j, 0]:
                goodput, atomic = _as_requested(params_X, batch_X, replicas, sync_s)
            else:
                count = _candidates(batch_X, steps.may_JX[j, 1], replicas, batch_XB)
                goodput, atomic = _best_of(
                    params_X,
                    batch_X[0],
                    replicas,
                    rows.noise_N[n],
                    sync_s,
                    batch_XB,
                    count,
                )
            best.goodput_NC[n, c] = goodput
            best.atomic_NC[n, c] = atomic


def _in_python(function: object) -> Any:
    return getattr(function, "py_func", function)


# Scalar functions that call each other are plain where no compiler is.
LOOPS = Loops(
    candidates=_in_python(_candidates),
    step_s=_in_python(_step_s),
    most=NUM_CANDIDATES,
)


def _write_goodputs_in_arrays(
    steps: Steps, configs: Configs, rows: Rows, best: Best
) -> None:
    """Write what `_write_goodputs` writes, to the same bits."""
    wanted_NC = rows.wanted_NC & steps.known_J[rows.job_N][:, None]
    n_P, c_P = np.nonzero(wanted_NC)
    j_P = rows.job_N[n_P]
    held_P = c_P == len(configs.gpus_C)
    settings_XP = steps.held_JX[j_P].T.copy()
    settings_XP[3] = np.maximum(settings_XP[3], 1)
    for row, column_C in zip(settings_XP, configs, strict=True):
        row[~held_P] = column_C[c_P[~held_P]]
    of_type_P, nodes_P, racks_P, replicas_P = settings_XP
    params_PX = steps.params_JTX[j_P, of_type_P]
    link_P = np.where(racks_P > 1, 6, np.where(nodes_P > 1, 4, 2))
    pairs = np.arange(len(j_P))
    growth_P = params_PX[pairs, link_P + 1] * np.maximum(replicas_P - 2, 0)
    sync_P = np.where(replicas_P > 1, params_PX[pairs, link_P] + growth_P, 0.0)
    best.goodput_NC[n_P, c_P], best.atomic_NC[n_P, c_P] = best_of_pairs(
        Pairs(
            params_PX=params_PX,
            batch_PX=steps.batch_JTX[j_P, of_type_P],
            replicas_P=replicas_P,
            noise_P=rows.noise_N[n_P],
            sync_P=sync_P,
            adaptive_P=steps.may_JX[j_P, 0].astype(np.int64),
            may_P=steps.may_JX[j_P, 1].astype(np.int64),
        ),
        LOOPS,
    )
