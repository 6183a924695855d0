"""What a job costs at given prices of a GPU, at least: a dynamic programme that errs on
one side only.

Axes: B phases of a job, V corners of concave goodput, M places in its progress, Q moves
of a step, C curves, I steps in time or intervals of one price.
"""

# From progress p at instant t on, a job costs
#
#     w(t, p) = min  integral from t to its end of (1 + price(s) k(s)) ds
#     where dp/ds = G(p, k(s)),
#
# G concave in k. Time goes in steps of h seconds, in each of which the price is one;
# progress goes over M places. phi_i, a straight line between each two places, lies
# below w(t_i, .) everywhere. It is made from the end backwards. In a step a job uses u
# GPUs in the mean and so, G being concave, moves on by y <= h G(u):
#
#     w(t_i, p) >= min over y of  phi_{i+1}(p + y) + h (1 + price u(y))
#
# where u(y) moves it by y.
#
# The sum is straight but where p + y is a place or u has a corner, so these y are all
# that need be tried.
# That gives phi_i at the places. Between two of them w may lie below the line that
# joins them: moved on by y, the line spans one place of phi_{i+1}, and over its kink
# there it is D a (1 - a) too high at most, D being the second difference and a = y mod
# 1. So min(a, 1 - a, 1/4) D is taken off, and y where that has corners are tried, too.
# Waiting (y = 0) is exact: else a long wait would cost nothing in the end. (To round
# progress up to a place proves as much, but gives a job a place per step for nothing.)
#
# Who ends within the step pays (M - p) min over u of (1 + price u) / G(u). Where phases
# differ, G is the least concave curve above all that a step may touch from the places
# on both sides.

from typing import NamedTuple

import numpy as np

from coadapt.goodput.compiled import compiled, compiled_part
from coadapt.policies.solvers.arrays import FloatArray, IntArray
from coadapt.policies.solvers.concave_envelope import envelopes

# A job that has all GPUs takes so many steps, each of so many seconds at least (tried:
# 24, 48).
STEPS_ALONE = 96.0
STEP_MIN_S = 5.0
PLACES_PER_STEP = 8.0
PLACES_MIN = 200
PLACES_MAX = 1000
KINK = 0.25  # of a second difference: how far a line over a kink is above it at most


class Phase(NamedTuple):
    """Part of a job: seconds of work, and corners of its concave goodput, both
    ascending.
    """

    work: float
    gpus_V: FloatArray
    goodput_V: FloatArray


class Moves(NamedTuple):
    """What a job may do in a step. curve_M: whose moves count at each place; first_C:
    where a curve's begin.

    A move goes whole_Q places on and part_Q of the way to the next, on gpus_Q; loses_Q:
    of a second difference. goodput_CV (places per second), gpus_CV: corners of curves;
    goodput 0 where a curve has fewer. reach: places that a step may touch.
    """

    curve_M: IntArray
    first_C: IntArray
    gpus_Q: FloatArray
    whole_Q: IntArray
    part_Q: FloatArray
    loses_Q: FloatArray
    goodput_CV: FloatArray
    gpus_CV: FloatArray
    reach: int


class Job(NamedTuple):
    """A kind of job. step_s: of a step, s; width_s: of one price; alone_M: what is left
    at least, s.
    """

    moves: Moves
    step_s: float
    width_s: float
    alone_M: FloatArray


class Room(NamedTuple):
    """What is worked out of a kind of job, by step and place. low_IM: what it costs
    from there on, s.

    by_IM: places that it goes on in the step (below 0: it ends, after so many seconds);
    gpus_IM: on what.
    """

    low_IM: FloatArray
    by_IM: FloatArray
    gpus_IM: FloatArray


def job_of(phases: list[Phase], width_s: float) -> Job:
    """Return a job as the programme takes it; steps divide intervals of `width_s`
    seconds.
    """
    alone_s = sum(phase.work / phase.goodput_V[-1] for phase in phases)
    step_s = float(width_s / np.ceil(width_s / max(alone_s / STEPS_ALONE, STEP_MIN_S)))
    num_places = int(
        np.clip(PLACES_PER_STEP * alone_s / step_s, PLACES_MIN, PLACES_MAX)
    )
    edge_B = np.cumsum([phase.work for phase in phases])
    edge_B *= num_places / edge_B[-1]
    place = sum(phase.work for phase in phases) / num_places
    fastest = max(phase.goodput_V[-1] for phase in phases) / place
    reach = int(np.ceil(step_s * fastest)) + 1
    before_M = (
        np.arange(num_places) - 1.0
    )  # the place before, from which lines lead here
    touched_M2 = _touched(edge_B, before_M, before_M + reach + 3.0)
    spans, curve_M = np.unique(touched_M2, axis=0, return_inverse=True)
    curves = [_above(phases[first : last + 1], place) for first, last in spans.tolist()]
    most_B = np.array([phase.goodput_V[-1] for phase in phases]) / place
    cells = _touched(edge_B, before_M + 1.0, before_M + 2.0).tolist()
    alone_s_M = [1.0 / most_B[first : last + 1].max() for first, last in cells]
    alone_M = np.append(np.cumsum(alone_s_M[::-1])[::-1], 0.0)
    return Job(_moves(curves, curve_M.ravel(), step_s, reach), step_s, width_s, alone_M)


def room_of(job: Job, num_intervals: int) -> Room:
    """Return room for a job at prices of so many intervals."""
    steps = num_intervals * round(job.width_s / job.step_s)
    places = len(job.alone_M)
    return Room(np.empty((steps + 1, places)), *np.empty((2, steps, places)))


def _touched(edge_B: FloatArray, low_M: FloatArray, high_M: FloatArray) -> IntArray:
    """Return the first and the last phase between places, (places, 2)."""
    last = len(edge_B) - 1
    first_M = np.searchsorted(
        edge_B, np.maximum(low_M, 0.0) * (1.0 - 1e-12), side="right"
    )
    last_M = np.searchsorted(edge_B, high_M * (1.0 + 1e-12), side="left")
    return np.minimum(np.stack([first_M, last_M], axis=1), last)


def _above(phases: list[Phase], place: float) -> tuple[FloatArray, FloatArray]:
    """Return the corners of the least concave curve above those of phases: GPUs, and
    places per second.
    """
    gpus_K = np.unique(np.concatenate([phase.gpus_V for phase in phases]))
    above_K = np.zeros(len(gpus_K))
    for phase in phases:
        corners = np.append(0.0, phase.gpus_V), np.append(0.0, phase.goodput_V)
        above_K = np.maximum(above_K, np.interp(gpus_K, *corners))
    curve = envelopes(above_K[None, :] / place, gpus_K)
    return curve.gpus_V, curve.goodput_V


def _moves(
    curves: list[tuple[FloatArray, FloatArray]],
    curve_M: IntArray,
    step_s: float,
    reach: int,
) -> Moves:
    first = [0]
    by = []
    gpus = []
    corners = np.zeros((2, len(curves), max(len(each) for each, _ in curves)))
    for number, (gpus_V, goodput_V) in enumerate(curves):
        corners[:, number, : len(gpus_V)] = goodput_V, gpus_V
        by_V = step_s * goodput_V
        places = np.arange(np.ceil(by_V[-1]))
        by_Q = np.unique(
            np.concatenate([by_V, places, places + KINK, places + 1.0 - KINK])
        )
        by_Q = by_Q[(by_Q > 0.0) & (by_Q <= by_V[-1])]
        by.append(by_Q)
        gpus.append(np.interp(by_Q, np.append(0.0, by_V), np.append(0.0, gpus_V)))
        first.append(first[-1] + len(by_Q))
    by_Q = np.concatenate(by)
    whole_Q = np.floor(by_Q).astype(np.int64)
    part_Q = by_Q - whole_Q
    return Moves(
        curve_M=curve_M,
        first_C=np.array(first),
        gpus_Q=np.concatenate(gpus),
        whole_Q=whole_Q,
        part_Q=part_Q,
        loses_Q=np.minimum(np.minimum(part_Q, 1.0 - part_Q), KINK),
        goodput_CV=corners[0],
        gpus_CV=corners[1],
        reach=reach,
    )


@compiled_part
def _ends(moves: Moves, c: int, price: float) -> tuple[float, int]:
    """Return min_k (1 + price k) / G(k) of a curve, for a place, and at which
    corner.
    """
    least = np.inf
    at = 0
    for v in range(moves.goodput_CV.shape[1]):
        if moves.goodput_CV[c, v] > 0.0:
            each = (1.0 + price * moves.gpus_CV[c, v]) / moves.goodput_CV[c, v]
            if each < least:
                least = each
                at = v
    return least, at


@compiled_part
def _at(low_M: FloatArray, whole: int, part: float) -> float:
    """Return the value between two places; 0 beyond the last."""
    if whole >= len(low_M) - 1:
        return 0.0
    value: float = (1.0 - part) * low_M[whole] + part * low_M[whole + 1]
    return value


@compiled_part
def _kinks(low_M: FloatArray, kink_M: FloatArray) -> None:
    """Write the larger second difference of each place and the next; beyond the end all
    is 0.
    """
    last = len(low_M) - 1
    kink_M[0] = kink_M[last] = before = 0.0
    for n in range(1, last + 1):
        after = low_M[n + 1] if n < last else 0.0
        here = max(low_M[n - 1] - 2.0 * low_M[n] + after, 0.0)
        kink_M[n - 1] = max(before, here)
        kink_M[n] = before = here


@compiled
def price_out(job: Job, price_I: FloatArray, room: Room) -> None:
    """Write what a job costs from each step and place on. Beyond the last interval GPUs
    are free.
    """
    moves, step_s, width_s, alone_M = job
    low_IM, by_IM, gpus_IM = room
    last = len(alone_M) - 1
    per = round(width_s / step_s)
    kink_M = np.zeros(last + moves.reach + 1)
    low_IM[-1] = alone_M
    for i in range(len(by_IM) - 1, -1, -1):
        price = price_I[i // per]
        next_M = low_IM[i + 1]
        low_IM[i, last] = by_IM[i, last] = gpus_IM[i, last] = 0.0
        _kinks(next_M, kink_M)
        for m in range(last):
            c = moves.curve_M[m]
            least = step_s + next_M[m]
            by = 0.0
            gpus = 0.0
            if m + moves.reach + 1 >= last:
                each, v = _ends(moves, c, price)
                if (last - m) * each < least:
                    least = (last - m) * each
                    gpus = moves.gpus_CV[c, v]
                    by = (m - last) / moves.goodput_CV[c, v]
            for q in range(moves.first_C[c], moves.first_C[c + 1]):
                n = m + moves.whole_Q[q]
                part = moves.part_Q[q]
                cost = (
                    step_s * (1.0 + price * moves.gpus_Q[q])
                    - moves.loses_Q[q] * kink_M[n]
                )
                cost += _at(next_M, n, part)
                if cost < least:
                    least = cost
                    by = moves.whole_Q[q] + part
                    gpus = moves.gpus_Q[q]
            low_IM[i, m] = least
            by_IM[i, m] = by
            gpus_IM[i, m] = gpus


@compiled
def from_starts(
    job: Job, start_J: FloatArray, price_I: FloatArray, room: Room
) -> FloatArray:
    """Return what jobs that may train from these instants on cost from there, at least,
    s.
    """
    moves = job.moves
    step_s = job.step_s
    low_IM = room.low_IM
    per = round(job.width_s / step_s)
    low_J = np.empty(len(start_J))
    last = len(job.alone_M) - 1
    c = moves.curve_M[0]
    for j in range(len(start_J)):
        i = int(start_J[j] / step_s)
        if i >= len(low_IM) - 1:
            low_J[j] = low_IM[-1, 0]
            continue
        # What is left of the step under way. It begins at a place: there is no line
        # that could be above.
        seconds = (i + 1) * step_s - start_J[j]
        price = price_I[i // per]
        next_M = low_IM[i + 1]
        low = seconds + next_M[0]
        if moves.reach + 1 >= last:
            low = min(low, last * _ends(moves, c, price)[0])
        by = 0.0
        gpus = 0.0
        for q in range(moves.first_C[c], moves.first_C[c + 1]):
            next_by = (moves.whole_Q[q] + moves.part_Q[q]) * seconds / step_s
            slope = (moves.gpus_Q[q] - gpus) / (next_by - by)
            for n in range(
                int(by) + 1, int(next_by) + 1
            ):  # places on the way from one move to the next
                used = gpus + slope * (n - by)
                low = min(low, seconds * (1.0 + price * used) + _at(next_M, n, 0.0))
            by = next_by
            gpus = moves.gpus_Q[q]
            low = min(
                low, seconds * (1.0 + price * gpus) + _at(next_M, int(by), by - int(by))
            )
        low_J[j] = low
    return low_J


@compiled
def add_used(job: Job, start_J: FloatArray, room: Room, used_I: FloatArray) -> None:
    """Add about how many GPUs these jobs use in each interval, each going the way that
    costs it least.
    """
    last = len(job.alone_M) - 1
    per = round(job.width_s / job.step_s)
    for j in range(len(start_J)):
        i = int(np.ceil(start_J[j] / job.step_s))
        at = 0.0
        while i < len(room.by_IM) and at < last:
            by = room.by_IM[i, int(at)]
            gpus = room.gpus_IM[i, int(at)]
            seconds = job.step_s
            if by < 0.0:
                by, seconds = float(last), min(-by, seconds)
            at += by
            used_I[i // per] += gpus * seconds / job.width_s
            i += 1
