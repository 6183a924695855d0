"""Noise ahead: what a job's gradient noise scale will be while it does the work that a
plan looks at.

Axes: J jobs, A applications, B bins of progress, L stretches.
"""

# A plan looks ahead, so it must price a GPU by what it will do, not by what it does
# now. Over the next `a` of progress the noise scale φ is taken for the harmonic mean of
# some points, as the time that a batch of M costs is M / φ. By what it grows until p'
# is told by its application, whose noise scales over progress are a curve.
# Where these are not there it is sqrt(p' / p), as the noise scale grows while a job
# learns, about like a root of its progress. A job whose noise scale is not that of its
# application here is not taken to differ for good: its noise comes nearer to that of
# the application by as much as the latter grows, until it is within
# APART_MAX. (At the end of an epoch noise scales may jump by hundreds of times. A job
# that jumps a little sooner than the curve would be taken to jump twice.)
#
# That is what sizes are chosen by now; so far they look at GROWTH_MAX times the noise
# of now at most, as what comes of a jump is of no use before it. Tried instead: φ of
# now (JCT +0.5 %), fitted slopes (no gain). A, how far they look, is 33 rescales of
# work, within 300 and 3,000 s, or what is left: where a change is cheap, sizes can
# follow the noise (in place, 300 s have a mean of 0.99 of that with 3,000 s); where it
# is dear, a size is kept for long. Where there is room, nobody waits for GPUs that a
# job has too early, but each step of its growth costs a rescale: there they look along
# 100, and at the most that the noise comes to (with 33, jobs on a cluster of which 9 %
# are in use change nearly three times as often, for a mean 2 % longer; by the mean
# noise three times as often as by the most, likewise).
#
# A job that has more than that left will be another one later: faster, and worth more
# GPUs. So the rest is cut into stretches, each with the noise over it, however much it
# has grown by then, and goodputs of its own, and the play goes through them one after
# the other.

import math
from typing import NamedTuple

import numpy as np

from coadapt.goodput.compiled import compiled_lean, lean_part
from coadapt.policies.solvers.arrays import BoolArray, FloatArray, IntArray

# A: of the job's, within these
AHEAD_RESCALES = 33.0
ROOM_RESCALES = 100.0
AHEAD_S = (300.0, 3_000.0)
GROWTH_MAX = 30.0  # of the noise scale, where its application tells nothing
LOG_GROWTH_MAX = math.log(
    1e12
)  # as its application showed it: statistics may be of any size, and growth is finite
APART_MAX = (
    4.0  # times: so far a job's noise scale may be from its application's (tried: 2)
)
BINS_PER_OCTAVE = (
    8  # of progress, in curves of noise over it (2: jumps are seen hours too soon)
)
NUM_BINS = 384
POINTS = 5  # at which what lies ahead is looked at
REST_MIN = 0.25  # of the next stretch: less of a rest is played like it
GROWTH_MIN = 1.2  # of the noise scale until the end: less makes no stretches


class Trainings(NamedTuple):
    """What the noise of each job follows from. Arrays (num_jobs,).

    grows_J: whether it matters: the batch is free, and noise costs it something.
    noise_J: noise scale, samples. progress_J, left_J: done and to do (inf: unknown),
    samples. curve_AB: logarithms of noise scales over bins of progress,
    per application; curve_J: each job's row of it, -1: none.
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
    place = min(
        max(BINS_PER_OCTAVE * np.log2(max(progress, 1.0)), 0.0), NUM_BINS - 1.001
    )
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
        here = _at(curve_B, done)
        log_growth = _at(curve_B, later) - here
        if trainings.noise_J[j] > 0.0:
            apart = np.log(trainings.noise_J[j]) - here
            most = max(abs(apart) - abs(log_growth), np.log(APART_MAX))
            log_growth -= apart - min(max(apart, -most), most)
        seen: float = np.exp(min(max(log_growth, -LOG_GROWTH_MAX), LOG_GROWTH_MAX))
        return seen
    if done <= 0.0:
        return GROWTH_MAX
    guessed: float = min(np.sqrt(later / done), GROWTH_MAX)
    return guessed


@lean_part
def _growth_over(
    trainings: Trainings, j: int, begin: float, work: float, most: bool
) -> float:
    """Return what the noise scale of job j will be over `work` of progress from `begin`
    on, against now.

    most: at most, not in the mean.
    """
    total = 0.0
    highest = 0.0
    for point in range(POINTS):
        growth = _growth(trainings, j, begin + work * (point + 0.5) / POINTS)
        total += 1.0 / growth
        highest = max(highest, growth)
    return highest if most else POINTS / total


@compiled_lean
def _grow(
    trainings: Trainings, ahead_J: FloatArray, room: bool, noise_J: FloatArray
) -> None:
    for j in range(len(ahead_J)):
        noise_J[j] = trainings.noise_J[j]
        if trainings.grows_J[j]:
            work = min(trainings.left_J[j], ahead_J[j])
            noise_J[j] *= min(
                _growth_over(trainings, j, trainings.progress_J[j], work, room),
                GROWTH_MAX,
            )


def ahead_s(rescale_s_J: FloatArray, *, room: bool) -> FloatArray:
    """Return for how many seconds of work a size that is chosen now looks along the
    noise.

    room: whether each job had its best size in the last round, as of Sizes.
    """
    least_s, most_s = AHEAD_S
    return np.minimum(
        np.maximum((ROOM_RESCALES if room else AHEAD_RESCALES) * rescale_s_J, least_s),
        most_s,
    )


def ahead(trainings: Trainings, ahead_J: FloatArray, *, room: bool) -> FloatArray:
    """Return the noise scale of each job over the next `ahead_J` of progress. room: as
    of ahead_s.
    """
    noise_J = np.empty(len(ahead_J))
    _grow(trainings, ahead_J, room, noise_J)
    return noise_J


class Stretches(NamedTuple):
    """Stretches of training to come, each job's in order: whose, of what progress,
    their noise scales.

    begin_J: where those of each job begin (last: how many there are).
    """

    job_L: IntArray
    left_L: FloatArray
    noise_L: FloatArray
    begin_J: IntArray


@compiled_lean
def _stretch(
    trainings: Trainings, left_J: FloatArray, first_J: FloatArray, room: Stretches
) -> int:
    many = len(room.job_L) // max(len(left_J), 1)
    end = 0
    for j in range(len(left_J)):
        room.begin_J[j] = end
        rest = left_J[j] - first_J[j]
        if not trainings.grows_J[j] or rest < REST_MIN * first_J[j]:
            continue
        begin = trainings.progress_J[j] + first_J[j]
        grows = _growth(trainings, j, begin + rest) / _growth(
            trainings, j, begin - 0.5 * first_J[j]
        )
        if abs(np.log(grows)) < np.log(GROWTH_MIN):
            continue
        parts = min(int(np.ceil(abs(np.log2(grows)))), many)
        for number in range(parts):
            room.job_L[end] = j
            room.left_L[end] = rest / parts
            growth = _growth_over(
                trainings, j, begin + rest * number / parts, rest / parts, False
            )
            room.noise_L[end] = trainings.noise_J[j] * growth
            end += 1
    room.begin_J[len(left_J)] = end
    return end


def stretches(
    trainings: Trainings, left_J: FloatArray, first_J: FloatArray, many: int
) -> Stretches:
    """Cut what each job has left past the next `first_J` into one part for each time
    that its noise doubles (or halves) until then, `many` at most.
    """
    most = len(left_J) * many
    begin_J = np.empty(len(left_J) + 1, dtype=np.int64)
    room = Stretches(
        np.empty(most, dtype=np.int64), np.empty(most), np.empty(most), begin_J
    )
    end = _stretch(trainings, left_J, first_J, room)
    return Stretches(room.job_L[:end], room.left_L[:end], room.noise_L[:end], begin_J)
