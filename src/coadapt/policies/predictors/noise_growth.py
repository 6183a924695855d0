"""Noise growth: the gradient noise scale that each job is predicted to have over a
horizon, and over later phases of its work.

Axes: J jobs, A applications, B bins of progress, L later phases.
"""

# A plan compares what GPUs will do over a horizon. A job's goodput follows from its
# gradient noise scale phi, which usually grows, so the plan needs phi over the horizon.
# For a job that has made progress p and makes `a` more within its horizon, it is
#
#     phi_now x min(mean, GROWTH_MAX),
#     mean = POINTS / sum of 1 / g(p + a (i + 0.5) / POINTS), i = 0 to POINTS - 1.
#
# g(p') = phi(p') / phi(p) is the predicted growth. The mean is harmonic because the
# time per unit of progress at a total batch M far above phi is proportional to M / phi.
#
# Growth. If the application of the job has a curve c, the logarithm of the noise scale
# over progress, then log g(p') = c(p') - c(p). Noise scales may jump by hundreds of
# times at the end of an epoch. A job that jumps sooner than the curve would be
# predicted to jump a second time, where the curve does. So the distance d = log phi_now
# - c(p) is taken to shrink: by |c(p') - c(p)|, but not below log(APART_MAX). A distance
# that is smaller from the start stays. Without a curve g(p') = sqrt(p' / p), at most
# GROWTH_MAX: noise scales grow about like a root of progress.
#
# Horizon. A size that is chosen now is kept for longer if a rescale is expensive. So
# the horizon is AHEAD_RESCALES rescale times, within AHEAD_S. (If rescales are in place
# a bound of 300 s gives 0.99 of the mean completion time of one of 3,000 s.) If no GPU
# had a price in the last round ("room"), every job has its best size. A size that is
# too large then costs other jobs nothing, but each step of growth costs a rescale. So
# the horizon is ROOM_RESCALES rescale times, and the largest of the POINTS values of g
# replaces their mean. (On a cluster with 9 % of its GPUs in use, AHEAD_RESCALES gave
# nearly three times as many rescales and a mean completion time that is 2 % longer. The
# harmonic mean also gave three times as many rescales.)
#
# Later phases. The work past the horizon is cut into phases of equal progress. Each has
# the noise scale that is predicted for it (GROWTH_MAX does not bound it if there is a
# curve) and goodputs of its own. The fluid relaxation schedules them one after another.
#
# Tried instead: the present phi for the whole horizon (mean completion time +0.5 %),
# and slopes fitted to the job's own noise scales (no gain).

import math
from typing import NamedTuple

import numpy as np

from coadapt.goodput.compiled import compiled_lean, lean_part
from coadapt.policies.solvers.arrays import BoolArray, FloatArray, IntArray

# Length of the horizon: rescale times, without and with room, and its bounds in
# seconds. The measurements are above.
AHEAD_RESCALES = 33.0
ROOM_RESCALES = 100.0
AHEAD_S = (300.0, 3_000.0)
# Largest factor by which the noise scale grows over a horizon, and anywhere if there is
# no curve. A larger growth is a jump, which is of no use before it happens.
GROWTH_MAX = 30.0
# Bound of the logarithm of growth by a curve: reported statistics may have any size,
# and growth must be finite.
LOG_GROWTH_MAX = math.log(1e12)
# Largest factor between the noise scale of a job and the curve of its application that
# is taken to last (tried: 2).
APART_MAX = 4.0
# Resolution of curves: bins per doubling of progress (with 2 a jump is predicted hours
# too soon).
BINS_PER_OCTAVE = 8
NUM_BINS = 384  # 48 doublings of progress
POINTS = 5  # values of g that represent a horizon or a phase
# A job has no later phases if the work past its horizon is less than this share of the
# work within it. No measurement is recorded.
REST_MIN = 0.25
# Nor if its noise scale at the end differs by less than this factor from that within
# the horizon. No measurement is recorded.
GROWTH_MIN = 1.2


class Trainings(NamedTuple):
    """What the noise scale of each job follows from. Arrays (num_jobs,).

    grows_J: whether it is predicted: the batch is free and the noise scale is finite.
    noise_J: present noise scale, samples. progress_J, left_J: progress made, and left
    (inf: unknown), samples. curve_AB: logarithm of the noise scale over bins of
    progress, per application; curve_J: the row of each job in it, -1: none.
    """

    grows_J: BoolArray
    noise_J: FloatArray
    progress_J: FloatArray
    left_J: FloatArray
    curve_AB: FloatArray
    curve_J: IntArray


@lean_part
def _log_noise_at(curve_B: FloatArray, progress: float) -> float:
    """Return the logarithm of the noise scale at `progress` (samples), interpolated."""
    place = min(
        max(BINS_PER_OCTAVE * np.log2(max(progress, 1.0)), 0.0), NUM_BINS - 1.001
    )
    low = int(place)
    part = place - low
    value: float = (1.0 - part) * curve_B[low] + part * curve_B[low + 1]
    return value


@lean_part
def _growth(trainings: Trainings, j: int, later: float) -> float:
    """Return g: the noise scale of job j at progress `later` over the present one."""
    done = trainings.progress_J[j]
    row = trainings.curve_J[j]
    if row >= 0:
        curve_B = trainings.curve_AB[row]
        here = _log_noise_at(curve_B, done)
        log_growth = _log_noise_at(curve_B, later) - here
        if trainings.noise_J[j] > 0.0:
            distance = np.log(trainings.noise_J[j]) - here
            lasting = max(abs(distance) - abs(log_growth), np.log(APART_MAX))
            log_growth -= distance - min(max(distance, -lasting), lasting)
        by_curve: float = np.exp(min(max(log_growth, -LOG_GROWTH_MAX), LOG_GROWTH_MAX))
        return by_curve
    if done <= 0.0:
        return GROWTH_MAX
    by_root: float = min(np.sqrt(later / done), GROWTH_MAX)
    return by_root


@lean_part
def _growth_over(
    trainings: Trainings, j: int, begin: float, work: float, largest: bool
) -> float:
    """Return the harmonic mean of g over `work` of progress that starts at `begin`.

    largest: return the largest value of g instead.
    """
    total = 0.0
    highest = 0.0
    for point in range(POINTS):
        growth = _growth(trainings, j, begin + work * (point + 0.5) / POINTS)
        total += 1.0 / growth
        highest = max(highest, growth)
    return highest if largest else POINTS / total


@compiled_lean
def _write_noise(
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


def noise_horizon_s(rescale_s_J: FloatArray, *, room: bool) -> FloatArray:
    """Return the horizon over which each job's noise scale is predicted, s.

    room: whether no GPU had a price in the last round, as in Sizes.
    """
    least_s, most_s = AHEAD_S
    return np.minimum(
        np.maximum((ROOM_RESCALES if room else AHEAD_RESCALES) * rescale_s_J, least_s),
        most_s,
    )


def noise_over_horizon(
    trainings: Trainings, ahead_J: FloatArray, *, room: bool
) -> FloatArray:
    """Return the noise scale of each job over its horizon, samples.

    ahead_J: the progress that it makes within the horizon, samples. room: as in
    noise_horizon_s.
    """
    noise_J = np.empty(len(ahead_J))
    _write_noise(trainings, ahead_J, room, noise_J)
    return noise_J


class LaterPhases(NamedTuple):
    """Phases of work past the horizon, job by job and in order.

    job_L: the job. left_L: progress in the phase, samples. noise_L: noise scale over
    it, samples. begin_J: the number of each job's first phase; its last entry is the
    number of phases. Shape (num_jobs + 1,).
    """

    job_L: IntArray
    left_L: FloatArray
    noise_L: FloatArray
    begin_J: IntArray


@compiled_lean
def _write_phases(
    trainings: Trainings, left_J: FloatArray, first_J: FloatArray, found: LaterPhases
) -> int:
    """Write the phases of all jobs into `found`, and return how many there are."""
    phases_max = len(found.job_L) // max(len(left_J), 1)
    end = 0
    for j in range(len(left_J)):
        found.begin_J[j] = end
        rest = left_J[j] - first_J[j]
        if not trainings.grows_J[j] or rest < REST_MIN * first_J[j]:
            continue
        begin = trainings.progress_J[j] + first_J[j]
        grows = _growth(trainings, j, begin + rest) / _growth(
            trainings, j, begin - 0.5 * first_J[j]
        )
        if abs(np.log(grows)) < np.log(GROWTH_MIN):
            continue
        phases = min(int(np.ceil(abs(np.log2(grows)))), phases_max)
        for number in range(phases):
            found.job_L[end] = j
            found.left_L[end] = rest / phases
            growth = _growth_over(
                trainings, j, begin + rest * number / phases, rest / phases, False
            )
            found.noise_L[end] = trainings.noise_J[j] * growth
            end += 1
    found.begin_J[len(left_J)] = end
    return end


def later_phases(
    trainings: Trainings, left_J: FloatArray, first_J: FloatArray, phases_max: int
) -> LaterPhases:
    """Return the later phases of all jobs.

    A job gets one phase for each time that its noise scale doubles or halves from the
    middle of its horizon to its end, rounded up, and at most `phases_max`. left_J:
    progress left; first_J: progress within the horizon; samples.
    """
    most = len(left_J) * phases_max
    begin_J = np.empty(len(left_J) + 1, dtype=np.int64)
    found = LaterPhases(
        np.empty(most, dtype=np.int64), np.empty(most), np.empty(most), begin_J
    )
    end = _write_phases(trainings, left_J, first_J, found)
    return LaterPhases(
        found.job_L[:end], found.left_L[:end], found.noise_L[:end], begin_J
    )
