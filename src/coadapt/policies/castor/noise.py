"""Noise ahead: what a job's gradient noise scale will be while it does the work that a plan looks at.

Axes: J jobs, A applications, B bins of progress, L stretches.
"""

# A plan looks ahead, so it must price a GPU by what it will do, not by what it does now. The gradient noise
# scale φ grows while a job learns, about like a root of its progress p. Over the next `a` of progress its
# mean is near that in the middle: φ' = φ · min(sqrt((p + a/2) / p), 30), a being what is left, or A seconds
# of work at the present goodput if that is less. Tried instead: φ of now (JCT +0.5 %), fitted slopes (no
# gain). A is a hundred rescales, within 300 and 3,000 s: where a change is cheap, sizes can follow the noise
# (in place, 300 s have a mean of 0.99 of that with 3,000 s); where it is dear, a size is kept for long (at
# 30 s, 600 s have 1.02 of it where few jobs are there).
#
# That is what sizes are chosen by now. A job that has more than that left will be another one later: faster,
# and worth more GPUs. So the rest is cut into stretches, each with the noise in its middle and goodputs of
# its own, and the play goes through them one after the other.

from typing import NamedTuple

import numpy as np

from coadapt.goodput.compiled import compiled_lean, lean_part
from coadapt.policies.castor.arrays import BoolArray, FloatArray, IntArray

AHEAD_RESCALES, AHEAD_S = 100.0, (300.0, 3_000.0)  # A: so many of the job's rescales, within these
GROWTH_MAX = 30.0  # of the noise scale: a job that has just begun has no p to speak of
BINS_PER_OCTAVE = 2  # of progress, in curves of noise over it
NUM_BINS = 96
REST_MIN = 0.25  # of the next stretch: less of a rest is played like it
GROWTH_MIN = 1.2  # of the noise scale until the end: less makes no stretches


class Trainings(NamedTuple):
    """What the noise of each job follows from. Arrays (num_jobs,).

    grows_J: whether it matters: the batch is free, and noise costs it something. noise_J: noise scale,
    samples. progress_J, left_J: done and to do (inf: unknown), samples. curve_AB: logarithms of noise scales
    over bins of progress, as kin showed them; curve_J: each job's row of it, -1: none.
    """

    grows_J: BoolArray
    noise_J: FloatArray
    progress_J: FloatArray
    left_J: FloatArray
    curve_AB: FloatArray
    curve_J: IntArray


@lean_part
def _at(curve_B: FloatArray, progress: float) -> float:
    """Return the logarithm of the noise scale at `progress` (samples)."""
    place = min(max(BINS_PER_OCTAVE * np.log2(max(progress, 1.0)), 0.0), NUM_BINS - 1.001)
    low = int(place)
    part = place - low
    value: float = (1.0 - part) * curve_B[low] + part * curve_B[low + 1]
    return value


@lean_part
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


@compiled_lean
def _grow(trainings: Trainings, ahead_J: FloatArray, noise_J: FloatArray) -> None:
    for j in range(len(ahead_J)):
        noise_J[j] = trainings.noise_J[j]
        if trainings.grows_J[j]:
            middle = trainings.progress_J[j] + 0.5 * min(trainings.left_J[j], ahead_J[j])
            noise_J[j] *= _growth(trainings, j, middle)


def ahead_s(rescale_s_J: FloatArray) -> FloatArray:
    """Return for how many seconds of work a size that is chosen now looks along the noise."""
    return np.clip(AHEAD_RESCALES * rescale_s_J, *AHEAD_S)


def ahead(trainings: Trainings, ahead_J: FloatArray) -> FloatArray:
    """Return the noise scale of each job in the middle of the next `ahead_J` of progress."""
    noise_J = np.empty(len(ahead_J))
    _grow(trainings, ahead_J, noise_J)
    return noise_J


class Stretches(NamedTuple):
    """Stretches of training to come, each job's in order: whose, of what progress, their noise scales."""

    job_L: IntArray
    left_L: FloatArray
    noise_L: FloatArray


@compiled_lean
def _stretch(trainings: Trainings, left_J: FloatArray, first_J: FloatArray, room: Stretches) -> int:
    many, end = len(room.job_L) // max(len(left_J), 1), 0
    for j in range(len(left_J)):
        rest = left_J[j] - first_J[j]
        if not trainings.grows_J[j] or rest < REST_MIN * first_J[j]:
            continue
        begin = trainings.progress_J[j] + first_J[j]
        grows = _growth(trainings, j, begin + rest) / _growth(trainings, j, begin - 0.5 * first_J[j])
        if abs(np.log(grows)) < np.log(GROWTH_MIN):
            continue
        for number in range(many):
            middle = begin + rest * (number + 0.5) / many
            room.job_L[end], room.left_L[end] = j, rest / many
            room.noise_L[end] = trainings.noise_J[j] * _growth(trainings, j, middle)
            end += 1
    return end


def stretches(trainings: Trainings, left_J: FloatArray, first_J: FloatArray, many: int) -> Stretches:
    """Cut what each job has left past the next `first_J` into `many`, where its noise grows until then."""
    most = len(left_J) * many
    room = Stretches(np.empty(most, dtype=np.int64), np.empty(most), np.empty(most))
    end = _stretch(trainings, left_J, first_J, room)
    return Stretches(room.job_L[:end], room.left_L[:end], room.noise_L[:end])
