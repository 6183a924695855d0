"""Fluid relaxation of a schedule: GPUs can be divided as one likes, and the values of
jobs' progress are a fixed point.

Axes: J jobs; P phases of jobs (the first phase of a job has its number, later ones
follow after all jobs); T GPU types; V corners of curves.
"""

# Job j has weight w_j (cost of a second until its end), goodput G_j(k) on k GPUs and
# remaining work W_j. If a GPU costs lambda(t) per second, the job chooses k(t) and its
# end C_j to minimise
#
#     integral from 0 to C_j of ( w_j + lambda(t) k(t) ) dt
#
# such that the integral of G_j(k(t)) is W_j. By the maximum principle the costate v_j,
# the value of a unit of progress, is constant, k(t) maximises v_j G_j(k) - lambda(t) k,
# and the condition of the free end is
#
#     v_j = min_k ( w_j + lambda(C_j) k ) / G_j(k).
#
# Prices follow from values in turn. At each instant GPUs go where value x slope of the
# curve is highest (fluid_pool.py, one GPU type), or are shared by a market
# (fluid_market.py, several types). One iteration of the fixed point:
#
#   1. Simulate the schedule forward at the values v: ends C_j and prices lambda.
#   2. Take for w_j the derivative of the objective with respect to C_j.
#   3. Compute each job's own value by the condition above, and replace v by the
#      geometric mean of v and the own value (with the own value alone, v oscillates).
#
# The schedule with the least objective of all iterations is the result.

from typing import NamedTuple, Protocol

import numpy as np

from coadapt.goodput.compiled import compiled_lean, lean_part
from coadapt.policies.solvers.arrays import FloatArray, IntArray
from coadapt.policies.solvers.concave_envelope import Curves

# Temperature of the softmax that divides the weight of the makespan over jobs, as a
# share of the makespan (0.05 to 0.2 give about the same).
LAST_SHARE = 0.1
# Expected jobs may not come, so the makespan is an expectation. The sum over the job
# that ends last stops at this chance that none of the later ones comes, or after this
# number of jobs. No measurement is recorded.
SELDOM = 1e-3
LATEST_MAX = 16
# A second past the deadline counts this number of seconds more. No measurement is
# recorded.
LATE_WEIGHT = 4.0
FAIR_WEIGHT = 10.0  # weight of seconds past fair_limit_J (3 is worse)


class FluidJobs(NamedTuple):
    """Jobs to schedule, by phase. A job whose goodput curve changes has several.

    curves: goodput over GPUs of each phase. left_P: work of the phase, in progress.
    arrives_P: seconds until it can begin (infinity: when the phase before it ends).
    next_P: the next phase of the job (-1: none). First phases come first; the later
    ones of a job are consecutive. gpus_T: GPUs of each type.
    """

    curves: Curves
    left_P: FloatArray
    arrives_P: FloatArray
    next_P: IntArray
    gpus_T: FloatArray


class Timeline(NamedTuple):
    """When phases (or jobs) get their first GPU and when they end.

    start_s, end_s: seconds from now, infinity: never; shape (num_phases,). price: of a
    GPU of each type just before the end of the phase, in value per GPU-second, shape
    (num_phases, num_types).
    """

    start_s: FloatArray
    end_s: FloatArray
    price: FloatArray


class Objective(NamedTuple):
    """The objective of a timeline, over present and expected jobs:

    sum_j weight_j L_j(age_j + end_j) + LATE_WEIGHT weight_j max(end_j - due_j, 0)
    + makespan_jobs E[makespan].

    L_j(c) of a completion time c is the integral from 0 to c of

    max(x / usual_s, 1)^tail + max(x / tolerance_j - 1, 0)
    + FAIR_WEIGHT max(x / fair_limit_j - 1, 0)   over x.

    age_J: seconds since the job came (below 0: until it comes). due_J: deadline,
    seconds from now (infinity: none). tolerance_J, fair_limit_J: s. chance_J: the
    chance that the job comes (1: it is here); the expectation is over it. usual_s: s;
    if 0, the mean completion time of the first timeline.
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
    """The best values found, the timeline of whole jobs at them, and its objective.

    value_P: weighted seconds saved per unit of progress.
    """

    value_P: FloatArray
    timeline: Timeline
    cost: float


class Relaxation(Protocol):
    """A simulation of jobs on GPUs that can be divided, at given values."""

    jobs: FluidJobs

    def play(self, value_P: FloatArray) -> Timeline:
        """Simulate until all phases end, and return their timeline."""
        ...


def fixed_point(
    relaxation: Relaxation, start_P: FloatArray, objective: Objective, iterations: int
) -> FixedPoint:
    """Return the best of `iterations` schedules, the first at the values start_P.

    iterations >= 1; fewer are made if no GPU ever has a price.
    """
    jobs = relaxation.jobs
    num_jobs = len(objective.weight_J)
    value_P = start_P.copy()
    own_P = np.empty(len(start_P))
    weight_J = np.empty(num_jobs)
    best: FixedPoint | None = None
    for number in range(iterations):
        phases = relaxation.play(value_P)
        whole = whole_jobs(phases, jobs.next_P, num_jobs)
        if number == 0 and objective.usual_s <= 0.0:
            objective = objective._replace(usual_s=mean_completion_s(whole, objective))
        cost = cost_of(whole, objective)
        if best is None or cost < best.cost:
            best = FixedPoint(value_P.copy(), whole, cost)
        if not phases.price.any() and np.isfinite(whole.end_s).all():
            break  # GPUs are never scarce: other values give the same timeline
        if number == iterations - 1:
            break
        weigh(whole, objective, weight_J, np.empty(num_jobs))
        own_values(jobs, phases, weight_J, own_P)
        both_P = (own_P > 0.0) & (value_P > 0.0)
        value_P[both_P] = np.sqrt(value_P[both_P] * own_P[both_P])
    assert best is not None, "iterations must be >= 1"
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
    """Return min_k (weight + price k) / G(k) over all types, infinity if G is 0."""
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
    """Write each phase's value at the price of its own end, 0 if it has no goodput.

    weight_J is the weight of a job's last phase. The weight of an earlier phase is what
    a second of delay costs the next one, at the price at which that begins:
    max_k (v G(k) - price k), with v and G of the next phase.
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
    """Return min_k (weight + price k) / G(k) of each curve, 0 if G is 0."""
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
    """Return the job with the latest end before that of job `after`, -1: none.

    With `after` = -1 it is the latest of all. Among equal ends the higher number is
    later.
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
    """Return the expected makespan: each end times the chance that it is the last."""
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
    """Write how the weight of the makespan is divided over jobs.

    For each job that may end last, with end C, a softmax of (end_J - C) / (LAST_SHARE
    C) over the jobs that end no later; then the mean by the chance that it is the last.
    near_J: scratch.
    """
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
    """Return the mean completion time of the jobs with a finite end, s, at least 1."""
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
    """Return the objective of a timeline.

    Jobs without a finite end are left out: they can train nowhere, at any values.
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
    """Write the derivative of the objective with respect to each job's end.

    The makespan's part is that of _share_last_end. share_J: scratch.
    """
    end_J = timeline.end_s
    _share_last_end(end_J, objective.chance_J, share_J, weight_J)
    for j in range(len(weight_J)):
        weight_J[j] = objective.weight_J[j]
        if end_J[j] == np.inf:
            continue
        long = objective.age_J[j] + end_J[j]
        past = long / objective.usual_s
        slope = past**objective.tail if past > 1.0 else 1.0
        slope += max(long / objective.tolerance_J[j] - 1.0, 0.0)
        slope += FAIR_WEIGHT * max(long / objective.fair_limit_J[j] - 1.0, 0.0)
        if end_J[j] > objective.due_J[j]:
            slope += LATE_WEIGHT
        weight_J[j] = weight_J[j] * slope + objective.makespan_jobs * share_J[j]
