"""Noise ahead, and the best goodput of each job on each configuration with it: one compiled pass.

Axes: J jobs, C configurations, 9 step-time parameters.
"""

# A plan looks ahead, so it must price a GPU by what it will do, not by what it does now. The gradient noise
# scale φ grows while a job learns, about like a root of its progress p. Over the next `a` of progress its
# mean is near that in the middle: φ' = φ · min(sqrt((p + a/2) / p), 30), a being what is left, or 3,000 s of
# work at the present goodput if that is less. Tried instead: φ of now (JCT +0.5 %), fitted slopes (no gain).
#
# That is what sizes are chosen by now. A job that has more than that left will be another one later: faster,
# and worth more GPUs. So the rest is cut into stretches, each with the noise in its middle and goodputs of
# its own, and the play goes through them one after the other.

from typing import NamedTuple

import numpy as np

from coadapt.goodput.compiled import compiled, compiled_part
from coadapt.policies.castor.arrays import BoolArray, FloatArray, IntArray

AHEAD_S = 3_000.0  # how far a plan looks along the noise (tried: 1,000-10,000 alike)
GROWTH_MAX = 30.0  # of the noise scale: a job that has just begun has no p to speak of
NUM_TRIED = 50  # geometric batches, as in goodput/batch.py
STRIDE = 7  # of those that are tried first (1)
ROUNDING_SLACK = 1e-8  # samples, as in goodput/batch.py
BINS_PER_OCTAVE = 2  # of progress, in curves of noise over it
NUM_BINS = 96
REST_MIN = 0.25  # of the next stretch: less of a rest is played like it
GROWTH_MIN = 1.2  # of the noise scale until the end: less makes no stretches
STEP_TIME_MIN_S = 1e-9  # as in goodput/throughput.py


class Trainings(NamedTuple):
    """What the goodput of each job follows from. Arrays (num_jobs, ...).

    params_JTX: step-time parameters per GPU type, in the order of ThroughputParams. known_J: whether there
    are any. batch_JTX: initial, requested, max_total, min_atomic, max_atomic (0: none), with the memory of
    each type; may_JX: adaptive, accumulation. noise_J: noise scale, samples (inf: no loss). progress_J,
    left_J: done and to do (inf: unknown), samples.
    held_JX: type, nodes, racks, replicas that it holds (replicas 0: none). curve_AB: logarithms of noise
    scales over bins of progress, as kin showed them; curve_J: each job's row of it, -1: none.
    """

    params_JTX: FloatArray
    known_J: BoolArray
    batch_JTX: FloatArray
    may_JX: BoolArray
    noise_J: FloatArray
    progress_J: FloatArray
    left_J: FloatArray
    held_JX: IntArray
    curve_AB: FloatArray
    curve_J: IntArray


class Configs(NamedTuple):
    """Configurations: GPU type, nodes, racks and replicas of each, arrays (num_configs,)."""

    type_C: IntArray
    nodes_C: IntArray
    racks_C: IntArray
    gpus_C: IntArray


@compiled_part
def _sync_s(params_X: FloatArray, nodes: int, racks: int, replicas: int) -> float:
    if replicas <= 1:
        return 0.0
    link = 6 if racks > 1 else (4 if nodes > 1 else 2)
    seconds: float = params_X[link] + params_X[link + 1] * max(replicas - 2, 0)
    return seconds


@compiled_part
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


@compiled_part
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
    # A few far apart first: by what they find, most of the others are seen to be less without a power.
    for first, stride in ((0, STRIDE), (1, 1)):
        share, leap = smallest / replicas * step**first, step**stride
        for number in range(first, NUM_TRIED, stride):
            tried = share
            share *= leap
            if stride == 1 and number % STRIDE == 0:
                continue
            atomic, passes = _cut(batch_X, may_X, replicas, tried)
            if atomic < min_atomic or (max_atomic > 0.0 and atomic > max_atomic):
                continue
            total = replicas * atomic * passes
            efficiency = 1.0 if noise == np.inf else (noise + initial) / (noise + total)
            compute_s = params_X[0] + params_X[1] * atomic
            least_s = max(compute_s, sync_s, STEP_TIME_MIN_S) + (passes - 1.0) * compute_s
            if total * efficiency > best * least_s:
                best = max(best, total * efficiency / _per_step(params_X, sync_s, atomic, passes))
    return best


@compiled_part
def _cut(batch_X: FloatArray, may_X: BoolArray, replicas: int, share: float) -> tuple[float, float]:
    """Return the samples of a pass, and how many passes, for `share` samples per replica and step."""
    initial, max_total, max_atomic = batch_X[0], batch_X[2], batch_X[4]
    passes = 1.0
    if may_X[1]:
        if max_atomic > 0.0:
            passes = np.ceil(share / max_atomic - ROUNDING_SLACK)
        if replicas == 1 and share > initial + ROUNDING_SLACK:
            passes = max(passes, 2.0)
    atomic = np.ceil(share / passes - ROUNDING_SLACK)
    return min(atomic, np.floor(max_total / (replicas * passes))), passes


@compiled_part
def _at(curve_B: FloatArray, progress: float) -> float:
    """Return the logarithm of the noise scale at `progress` (samples)."""
    place = min(max(BINS_PER_OCTAVE * np.log2(max(progress, 1.0)), 0.0), NUM_BINS - 1.001)
    low = int(place)
    part = place - low
    value: float = (1.0 - part) * curve_B[low] + part * curve_B[low + 1]
    return value


@compiled_part
def _growth(trainings: Trainings, j: int, later: float) -> float:
    """Return what the noise scale of job j will be at progress `later`, against now."""
    done = trainings.progress_J[j]
    row = trainings.curve_J[j]
    if row >= 0:
        curve_B = trainings.curve_AB[row]
        log_growth = _at(curve_B, later) - _at(curve_B, done)
        seen: float = np.exp(min(max(log_growth, -np.log(GROWTH_MAX)), np.log(GROWTH_MAX)))
        return seen
    if done <= 0.0:
        return GROWTH_MAX
    guessed: float = min(np.sqrt(later / done), GROWTH_MAX)
    return guessed


@compiled_part
def _goodput_on(trainings: Trainings, configs: Configs, j: int, c: int, noise: float) -> float:
    """Return the goodput of job j in configuration c where its noise scale is `noise`."""
    shape = (configs.nodes_C[c], configs.racks_C[c], configs.gpus_C[c])
    of_type = configs.type_C[c]
    params_X, batch_X = trainings.params_JTX[j, of_type], trainings.batch_JTX[j, of_type]
    goodput: float = _goodput(params_X, batch_X, trainings.may_JX[j], noise, shape)
    return goodput


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
            noise *= _growth(trainings, j, trainings.progress_J[j] + 0.5 * ahead)
        if held_X[3] > 0:
            here_J[j] = _goodput(params_X, batch_X, may_X, noise, shape)
        for c in range(num_configs):
            if wanted_JC[j, c]:
                goodput_JC[j, c] = _goodput_on(trainings, configs, j, c, noise)
    return goodput_JC, here_J


class Stretches(NamedTuple):
    """Stretches of training to come, each job's in order: whose, of what progress, where its middle is."""

    job_L: IntArray
    left_L: FloatArray
    middle_L: FloatArray


@compiled
def stretches(trainings: Trainings, left_J: FloatArray, first_J: FloatArray, many: int) -> Stretches:
    """Cut what each job has left past the next `first_J` into `many`, where its noise grows until then."""
    num_jobs = len(left_J)
    job_L, left_L = np.empty(num_jobs * many, np.int64), np.empty(num_jobs * many)
    middle_L = np.empty(num_jobs * many)
    end = 0
    for j in range(num_jobs):
        rest = left_J[j] - first_J[j]
        if not trainings.may_JX[j, 0] or trainings.noise_J[j] == np.inf or rest < REST_MIN * first_J[j]:
            continue
        begin = trainings.progress_J[j] + first_J[j]
        grows = _growth(trainings, j, begin + rest) / _growth(trainings, j, begin - 0.5 * first_J[j])
        if abs(np.log(grows)) < np.log(GROWTH_MIN):
            continue
        for number in range(many):
            job_L[end], left_L[end] = j, rest / many
            middle_L[end] = begin + rest * (number + 0.5) / many
            end += 1
    return Stretches(job_L[:end].copy(), left_L[:end].copy(), middle_L[:end].copy())


@compiled
def goodputs_later(
    trainings: Trainings, configs: Configs, wanted_JC: BoolArray, stretches: Stretches
) -> FloatArray:
    """Return goodputs in progress per second on each stretch, (stretches, configs), where wanted, else 0."""
    num_configs = wanted_JC.shape[1]
    goodput_LC = np.zeros((len(stretches.job_L), num_configs))
    for place in range(len(stretches.job_L)):
        j = stretches.job_L[place]
        noise = trainings.noise_J[j] * _growth(trainings, j, stretches.middle_L[place])
        for c in range(num_configs):
            if wanted_JC[j, c]:
                goodput_LC[place, c] = _goodput_on(trainings, configs, j, c, noise)
    return goodput_LC
