"""Fluid relaxation of scheduling: GPUs are divided freely, and the value of progress is
a fixed point.

Axes: J jobs, P phases of jobs (a job's first phase has the job's number), T GPU types,
V corners of curves.
"""

# At given prices of a GPU, lambda(t), job j minimises
#
#     integral from 0 to C_j of ( w_j + lambda(t) k(t) ) dt
#
# such that the integral of its goodput over k(t) GPUs is the work it has left.
#
# Along an optimum its value v_j per unit of progress is constant, k(t) maximises
# v_j G_j(k) - lambda(t) k, and the free end C_j asks for
#
#     v_j = min_k ( w_j + lambda(C_j) k ) / G_j(k).
#
# Prices in turn follow from the values: at each instant GPUs go where value x slope is
# highest (fluid_pool.py, for GPUs of one type), or are shared out by a market
# (fluid_market.py). So: play time forward, take each job's value at the price of its
# own end, half of the way in logarithms (with all of it values swing), and again; keep
# what cost least.

from typing import NamedTuple, Protocol

import numpy as np

from coadapt.goodput.compiled import compiled_lean, lean_part
from coadapt.policies.solvers.arrays import FloatArray, IntArray
from coadapt.policies.solvers.concave_envelope import Curves

# The last end is a softmax over ends within this share of it (0.05 to 0.2 are alike).
LAST_SHARE = 0.1
# Expected jobs may not come. The last end is that of the last job with its chance, else
# that of the one before, down to a chance of SELDOM or LATEST_MAX jobs.
SELDOM = 1e-3
LATEST_MAX = 16
LATE_WEIGHT = 4.0  # seconds of waiting that a second past a deadline counts as
FAIR_WEIGHT = 10.0  # of a second past fair_limit_J (3 is worse)


class FluidJobs(NamedTuple):
    """Jobs to schedule, by phase: a job whose curve changes as it learns has several.

    curves: goodput over GPUs of each phase. left_P: work, in progress. arrives_P:
    seconds from now (infinity: when the phase before ends). next_P: the phase that
    follows (-1: none). First phases come first; the later ones of a job are
    consecutive. gpus_T: GPUs of each type.
    """

    curves: Curves
    left_P: FloatArray
    arrives_P: FloatArray
    next_P: IntArray
    gpus_T: FloatArray


class Timeline(NamedTuple):
    """When phases (or jobs) get their first GPU and end, seconds from now; infinity:
    never.

    Shape (num_phases,); price: of a GPU of each type just before the end, in value per
    GPU-second, shape (num_phases, num_types).
    """

    start_s: FloatArray
    end_s: FloatArray
    price: FloatArray


class Objective(NamedTuple):
    """What a timeline is to minimise, over jobs that are here or expected:

    sum_j weight_J (long_J + LATE_WEIGHT max(end_J - due_J, 0)) + makespan_jobs x the
    last end, in expectation over the jobs that come.

    long_J is the completion time c = age_J + end_J in which a second past usual_s
    weighs (c / usual_s) to the power of `tail`; past tolerance_J more again by c /
    tolerance_J - 1, and past fair_limit_J by FAIR_WEIGHT times c / fair_limit_J - 1.
    due_J: deadline, seconds from now (infinity: none). chance_J: that the job comes (1:
    it is here). usual_s 0: the mean completion time of the first timeline.
    """

    weight_J: FloatArray
    due_J: FloatArray
    age_J: FloatArray
    tolerance_J: FloatArray
    fair_limit_J: FloatArray
    chance_J: FloatArray
    makespan_jobs: float
    tail: float
    usual_s: float


class FixedPoint(NamedTuple):
    """The best values found, per phase; the timeline of whole jobs at them; its
    cost.
    """

    value_P: FloatArray
    timeline: Timeline
    cost: float


class Relaxation(Protocol):
    """Jobs on GPUs, played forward at given values."""

    jobs: FluidJobs

    def play(self, value_P: FloatArray) -> Timeline:
        """Return the timeline of phases at these values."""
        ...


def fixed_point(
    relaxation: Relaxation, start_P: FloatArray, objective: Objective, plays: int
) -> FixedPoint:
    """Return the best of `plays` schedules, the first of which has the values
    start_P.
    """
    jobs = relaxation.jobs
    num_jobs = len(objective.weight_J)
    value_P = start_P.copy()
    own_P = np.empty(len(start_P))
    weight_J = np.empty(num_jobs)
    best: FixedPoint | None = None
    for turn in range(plays):
        phases = relaxation.play(value_P)
        whole = whole_jobs(phases, jobs.next_P, num_jobs)
        if turn == 0 and objective.usual_s <= 0.0:
            objective = objective._replace(usual_s=mean_completion_s(whole, objective))
        cost = cost_of(whole, objective)
        if best is None or cost < best.cost:
            best = FixedPoint(value_P.copy(), whole, cost)
        if not phases.price.any() and np.isfinite(whole.end_s).all():
            break  # GPUs are never short: no values lead to another timeline
        if turn == plays - 1:
            break
        weigh(whole, objective, weight_J, np.empty(num_jobs))
        own_values(jobs, phases, weight_J, own_P)
        both_P = (own_P > 0.0) & (value_P > 0.0)
        value_P[both_P] = np.sqrt(value_P[both_P] * own_P[both_P])
    assert best is not None, "plays must be >= 1"
    return best


def whole_jobs(phases: Timeline, next_P: IntArray, num_jobs: int) -> Timeline:
    """Return the timeline of whole jobs: each ends with its last phase."""
    end_J = np.empty(num_jobs)
    _last_ends(phases.end_s, next_P, end_J)
    return Timeline(
        phases.start_s[:num_jobs].copy(), end_J, phases.price[:num_jobs].copy()
    )


@compiled_lean
def _last_ends(end_P: FloatArray, next_P: IntArray, end_J: FloatArray) -> None:
    for j in range(len(end_J)):
        last = j
        while next_P[last] >= 0:
            last = next_P[last]
        end_J[j] = end_P[last]


@lean_part
def _value_at(curves: Curves, phase: int, weight: float, price_T: FloatArray) -> float:
    """Return min_k (weight + price k) / goodput(k) over all types; infinity: no
    progress.
    """
    least = np.inf
    for v in range(curves.first_J[phase], curves.first_J[phase + 1]):
        if curves.goodput_V[v] > 0.0:
            cost = weight + price_T[curves.type_V[v]] * curves.gpus_V[v]
            least = min(least, cost / curves.goodput_V[v])
    return least


@compiled_lean
def own_values(
    jobs: FluidJobs, phases: Timeline, weight_J: FloatArray, own_P: FloatArray
) -> None:
    """Write each phase's value at the price of its own end, 0 where there is none.

    A second costs a phase that is followed what it keeps the next one from:
    max_k (v G(k) - price k).
    """
    curves = jobs.curves
    for phase in range(len(own_P)):
        own_P[phase] = 0.0
    for j in range(len(weight_J)):
        phase = j
        while jobs.next_P[phase] >= 0:
            phase = jobs.next_P[phase]
        weight = weight_J[j]
        while True:
            value = _value_at(curves, phase, weight, phases.price[phase])
            if value < np.inf:
                own_P[phase] = value
            if phase == j:
                break
            before = j if phase == jobs.next_P[j] else phase - 1
            weight = 0.0
            for v in range(curves.first_J[phase], curves.first_J[phase + 1]):
                price = phases.price[before, curves.type_V[v]]
                rent = price * curves.gpus_V[v]
                weight = max(weight, own_P[phase] * curves.goodput_V[v] - rent)
            phase = before


def values_at(curves: Curves, weight_P: FloatArray, price_T: FloatArray) -> FloatArray:
    """Return min_k (weight + price k) / goodput(k) of each curve, 0 where there is
    none.
    """
    value_P = np.empty(len(weight_P))
    _write_values(curves, weight_P, price_T, value_P)
    return value_P


@compiled_lean
def _write_values(
    curves: Curves, weight_P: FloatArray, price_T: FloatArray, value_P: FloatArray
) -> None:
    for phase in range(len(weight_P)):
        value = _value_at(curves, phase, weight_P[phase], price_T)
        value_P[phase] = value if value < np.inf else 0.0


@lean_part
def _latest_before(end_J: FloatArray, after: int) -> int:
    """Return the job that ends last of those before job `after` (-1: of all); -1: none.

    Of jobs that end at once, those with higher numbers count as later.
    """
    found = -1
    for j in range(len(end_J)):
        end = end_J[j]
        if end == np.inf:
            continue
        if after >= 0 and (end > end_J[after] or (end == end_J[after] and j >= after)):
            continue
        if found < 0 or end >= end_J[found]:
            found = j
    return found


@lean_part
def _expected_last_end(end_J: FloatArray, chance_J: FloatArray) -> float:
    j = _latest_before(end_J, -1)
    last = 0.0
    left = 1.0
    for _ in range(LATEST_MAX):
        if j < 0 or left < SELDOM:
            break
        last += left * chance_J[j] * end_J[j]
        left *= 1.0 - chance_J[j]
        j = _latest_before(end_J, j)
    return last


@lean_part
def _share_last_end(
    end_J: FloatArray, chance_J: FloatArray, share_J: FloatArray, near_J: FloatArray
) -> None:
    """Write the share of each job in the last end: a softmax. near_J: scratch."""
    share_J[:] = 0.0
    j = _latest_before(end_J, -1)
    left = 1.0
    for _ in range(LATEST_MAX):
        if j < 0 or left < SELDOM or end_J[j] <= 0.0:
            break
        last = end_J[j]
        total = 0.0
        for i in range(len(share_J)):
            near_J[i] = 0.0
            if end_J[i] <= last:
                near_J[i] = chance_J[i] * np.exp(
                    (end_J[i] - last) / (LAST_SHARE * last)
                )
            total += near_J[i]
        for i in range(len(share_J)):
            share_J[i] += left * chance_J[j] * near_J[i] / total
        left *= 1.0 - chance_J[j]
        j = _latest_before(end_J, j)


@compiled_lean
def mean_completion_s(timeline: Timeline, objective: Objective) -> float:
    """Return the mean completion time of the jobs that end, s, at least 1."""
    total = 0.0
    count = 0
    for j in range(len(objective.weight_J)):
        if timeline.end_s[j] < np.inf:
            total += objective.age_J[j] + timeline.end_s[j]
            count += 1
    mean: float = max(total / max(count, 1), 1.0)
    return mean


@lean_part
def _excess(long: float, bound: float) -> float:
    """Return the integral of max(c / bound - 1, 0) over completion times c up to
    `long`.
    """
    excess: float = max(long - bound, 0.0) ** 2 / (2.0 * bound)
    return excess


@compiled_lean
def cost_of(timeline: Timeline, objective: Objective) -> float:
    """Return the objective of a schedule; jobs that never end cost nothing at any
    values.
    """
    end_J = timeline.end_s
    last = _expected_last_end(end_J, objective.chance_J)
    cost: float = objective.makespan_jobs * last
    tail = objective.tail
    usual_s = objective.usual_s
    for j in range(len(objective.weight_J)):
        if end_J[j] == np.inf:
            continue
        late = max(end_J[j] - objective.due_J[j], 0.0)
        long = objective.age_J[j] + end_J[j]
        past = max(long / usual_s, 1.0)
        starved = _excess(long, objective.tolerance_J[j])
        starved += FAIR_WEIGHT * _excess(long, objective.fair_limit_J[j])
        if past > 1.0:
            long = usual_s * (tail + past ** (1.0 + tail)) / (1.0 + tail)
        cost += objective.weight_J[j] * (long + starved + LATE_WEIGHT * late)
    return cost


@compiled_lean
def weigh(
    timeline: Timeline,
    objective: Objective,
    weight_J: FloatArray,
    share_J: FloatArray,
) -> None:
    """Write what a second by which each job ends sooner takes off the objective.

    share_J: scratch.
    """
    end_J = timeline.end_s
    _share_last_end(end_J, objective.chance_J, share_J, weight_J)
    for j in range(len(weight_J)):
        weight_J[j] = objective.weight_J[j]
        if end_J[j] == np.inf:
            continue
        long = objective.age_J[j] + end_J[j]
        past = long / objective.usual_s
        second = past**objective.tail if past > 1.0 else 1.0
        second += max(long / objective.tolerance_J[j] - 1.0, 0.0)
        second += FAIR_WEIGHT * max(long / objective.fair_limit_J[j] - 1.0, 0.0)
        if end_J[j] > objective.due_J[j]:
            second += LATE_WEIGHT
        weight_J[j] = weight_J[j] * second + objective.makespan_jobs * share_J[j]
