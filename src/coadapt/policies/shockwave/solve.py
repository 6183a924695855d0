"""Solving Shockwave's window without a MILP: counts by a scan of one number, rounds by
list scheduling.
"""

# Counts. Fix theta, the largest run time that any job may have left at the end of the
# window. Then
#
#   - each job needs at least lb_j(theta) rounds: the fewest m with R_j - run_j(m) <=
#     theta (and <= what fairness allows it);
#   - beyond these, rounds have gains g_jm = f_j(m) - f_j(m - 1) that do not grow with
#     m, and cost w_j GPU-rounds each.
#
# This is a knapsack of separable concave gains: take items in order of g / w until the
# M T GPU-rounds are used. Items of one job come in their own order by themselves, as
# gains fall. Taken fractionally, the last item makes it the optimum of the relaxation,
# U(theta) >= any plan with that theta. lb changes only at theta = R_j - run_j(m), so n
# (T + 1) values of theta are all there are, and in between the left end is best. Hence
#
#     max over these theta of  U(theta) - k theta      bounds every plan,
#
# and the best plan found on the way is usually equal to it: one fractional item of
# several hundred is all that can be lost. What cannot pay any more ends the scan: U
# without any lb, less k theta, below the best plan.
#
# Rounds. Any order of the same counts has the same value; the released code then
# minimises sum_j weight_j * mean round index of j in a second MILP. Smith's rule does
# that for a list: jobs in order of weight / (count * width). A list alone would run
# narrow jobs early and leave wide ones more rounds than the window has; so before
# giving a GPU away, look ahead (Gale and Ryser's condition for a 0-1 matrix with these
# sums): with H rounds left, a job with n left must run at least n - (H - h) times
# within the next h, for every h. If their sum exceeds the capacity of the h - 1 rounds
# after this one, these jobs must get the excess now. The sets of jobs are nested in h,
# so the largest excess binds. For mixed widths the condition is necessary, not
# sufficient: what does not fit is first repaired by moving one job between rounds, else
# the counts are solved again with the lost GPU-rounds set aside.

from typing import NamedTuple

import numpy as np

from coadapt.goodput.compiled import compiled, compiled_part
from coadapt.policies.shockwave.objective import (
    FloatArray,
    IntArray,
    Window,
    window_value,
)

MAX_SOLVES = (
    8  # of one window, each with more GPU-rounds set aside for what did not pack
)


class WindowPlan(NamedTuple):
    """runs_JT: whether a job runs in a round of the window. bound: no plan has a larger
    value.
    """

    runs_JT: IntArray
    value: float
    bound: float


def solve_window(window: Window) -> WindowPlan | None:
    """Return a plan near the optimum, and the bound that proves how near. None if
    nothing fits the fairness.

    The weighted programme, which has no fairness constraint, always has a plan.
    """
    budget = window.num_gpus * window.num_rounds
    item_job_I, item_gain_I = _items(window)
    theta_C = _candidates(window)
    best: WindowPlan | None = None
    bound = -np.inf
    for _ in range(MAX_SOLVES):
        count_J, most = _best_counts(window, item_job_I, item_gain_I, theta_C, budget)
        if most == -np.inf:
            break
        bound = max(bound, most)
        runs_JT, lost = _pack(window, count_J)
        packed_J = runs_JT.sum(axis=1)
        value = window_value(window, packed_J)
        if (best is None or value > best.value) and _is_fair(window, packed_J):
            best = WindowPlan(runs_JT, value, bound)
        if lost == 0:
            break
        budget -= lost
    return best


def _is_fair(window: Window, count_J: IntArray) -> bool:
    left_s_J = window.left_s_J - window.run_s_JM[np.arange(len(count_J)), count_J]
    return bool((np.maximum(left_s_J, 0.0) <= window.late_s_J + 1e-9).all())


def _items(window: Window) -> tuple[IntArray, FloatArray]:
    """Return the jobs and gains of all rounds that jobs may get, the dearest per GPU
    first.
    """
    gain_JM = np.diff(window.utility_JM, axis=1)
    # Concave up to rounding; made so, that a job's rounds stay in order.
    gain_JM = np.minimum.accumulate(gain_JM, axis=1)
    density_I = (gain_JM / window.width_J[:, None]).ravel()
    order_I = np.argsort(-density_I, kind="stable")
    order_I = order_I[density_I[order_I] > 0.0]
    return order_I // gain_JM.shape[1], gain_JM.ravel()[order_I]


def _candidates(window: Window) -> FloatArray:
    """Return the values of theta at which the fewest rounds of some job change,
    ascending.
    """
    late_s_JM = np.maximum(window.left_s_J[:, None] - window.run_s_JM, 0.0)
    least = late_s_JM[:, -1].max(initial=0.0)
    theta_C: FloatArray = np.unique(late_s_JM[late_s_JM >= least])
    return theta_C


@compiled
def _best_counts(
    window: Window,
    item_job_I: IntArray,
    item_gain_I: FloatArray,
    theta_C: FloatArray,
    budget: int,
) -> tuple[IntArray, float]:
    """Return the best counts found, and the bound; minus infinity where no theta is
    feasible.
    """
    num_jobs = window.width_J.size
    best_J = np.zeros(num_jobs, dtype=np.int64)
    count_J = np.zeros(num_jobs, dtype=np.int64)
    at_most = _fill(window, item_job_I, item_gain_I, budget, count_J)[
        1
    ]  # without any lower bound
    best = -np.inf
    bound = -np.inf
    for candidate in range(theta_C.size):
        theta = theta_C[candidate]
        if at_most - window.makespan_weight * theta <= best:
            break
        if not _fewest(window, theta, budget, count_J):
            continue
        value, most = _fill(window, item_job_I, item_gain_I, budget, count_J)
        bound = max(bound, most - window.makespan_weight * theta)
        if value - window.makespan_weight * theta > best:
            best = value - window.makespan_weight * theta
            best_J[:] = count_J
    return best_J, bound


@compiled_part
def _fewest(window: Window, theta: float, budget: int, count_J: IntArray) -> bool:
    """Write the fewest rounds of each job that leave it at most `theta`; return whether
    they fit.
    """
    used = 0
    for job in range(count_J.size):
        left = window.left_s_J[job] - min(theta, window.late_s_J[job])
        m = 0
        while m <= window.num_rounds and window.run_s_JM[job, m] < left - 1e-9:
            m += 1
        if m > window.num_rounds or (window.late_s_J[job] < 0.0):
            return False
        count_J[job] = m
        used += m * window.width_J[job]
    return used <= budget


@compiled_part
def _fill(
    window: Window,
    item_job_I: IntArray,
    item_gain_I: FloatArray,
    budget: int,
    count_J: IntArray,
) -> tuple[float, float]:
    """Add rounds to `count_J` while the budget lasts; return the utility, and a bound
    on it.
    """
    left = budget
    skip_J = count_J.copy()  # items that the fewest rounds have taken already
    for job in range(count_J.size):
        left -= count_J[job] * window.width_J[job]
    bound = np.inf
    for item in range(item_job_I.size):
        job = item_job_I[item]
        if skip_J[job] > 0:
            skip_J[job] -= 1
            continue
        width = window.width_J[job]
        if width <= left:
            count_J[job] += 1
            left -= width
        elif bound == np.inf:
            bound = _utility(window, count_J) + item_gain_I[item] * left / width
        if left == 0:
            break
    value = _utility(window, count_J)
    return value, max(value, bound) if bound < np.inf else value


@compiled_part
def _utility(window: Window, count_J: IntArray) -> float:
    """Return the utility of these counts.

    It is no sum of gains: where a weight is 1e9, a job's first gain is as large as what
    it lacked, and the utilities of all others are rounded away.
    """
    value = 0.0
    for job in range(count_J.size):
        value += window.utility_JM[job, count_J[job]]
    return value


@compiled
def _pack(window: Window, count_J: IntArray) -> tuple[IntArray, int]:
    """Return which job runs in which round, and the GPU-rounds of `count_J` that found
    no place.
    """
    num_jobs = count_J.size
    num_rounds = window.num_rounds
    runs_JT = np.zeros((num_jobs, num_rounds), dtype=np.int64)
    left_J = count_J.copy()
    free_T = np.full(num_rounds, window.num_gpus)
    owed_H = np.zeros(num_rounds + 1, dtype=np.int64)
    order_J = np.argsort(
        -window.weight_J / (np.maximum(count_J, 1) * window.width_J), kind="mergesort"
    )
    for now in range(num_rounds):
        horizon = num_rounds - now
        _look_ahead(window, left_J, horizon, owed_H)
        for careful in (True, False):
            for place in range(num_jobs):
                job = order_J[place]
                width = window.width_J[job]
                if left_J[job] == 0 or runs_JT[job, now] or width > free_T[now]:
                    continue
                if careful and not _leaves_enough(
                    owed_H, horizon, left_J[job], width, free_T[now]
                ):
                    continue
                for h in range(horizon - left_J[job] + 1, horizon + 1):
                    owed_H[h] -= width
                runs_JT[job, now] = 1
                left_J[job] -= 1
                free_T[now] -= width
    _repair(window, runs_JT, left_J, free_T)
    return runs_JT, int((left_J * window.width_J).sum())


@compiled_part
def _look_ahead(
    window: Window, left_J: IntArray, horizon: int, owed_H: IntArray
) -> None:
    """Write, for every h, the GPUs that this round owes to jobs that must run within
    the next h rounds.
    """
    for h in range(1, horizon + 1):
        owed_H[h] = -window.num_gpus * (h - 1)
        for job in range(left_J.size):
            owed_H[h] += max(left_J[job] - (horizon - h), 0) * window.width_J[job]


@compiled_part
def _leaves_enough(
    owed_H: IntArray, horizon: int, left: int, width: int, free: int
) -> bool:
    """Return whether the debts of this round can still be paid when a job with `left`
    rounds runs in it.
    """
    for h in range(1, horizon + 1):
        paid = width if h > horizon - left else 0
        if owed_H[h] - paid > free - width:
            return False
    return True


@compiled_part
def _repair(
    window: Window, runs_JT: IntArray, left_J: IntArray, free_T: IntArray
) -> None:
    """Give jobs their missing rounds by moving one other job from a round to another
    one.
    """
    for job in range(left_J.size):
        for now in range(window.num_rounds):
            if left_J[job] == 0:
                break
            if runs_JT[job, now]:
                continue
            if free_T[now] < window.width_J[job] and not _make_way(
                window, runs_JT, free_T, job, now
            ):
                continue
            runs_JT[job, now] = 1
            left_J[job] -= 1
            free_T[now] -= window.width_J[job]


@compiled_part
def _make_way(
    window: Window, runs_JT: IntArray, free_T: IntArray, job: int, now: int
) -> bool:
    """Move one job out of round `now` so that `job` fits there; return whether that
    worked.
    """
    missing = window.width_J[job] - free_T[now]
    for other in range(window.width_J.size):
        width = window.width_J[other]
        if not runs_JT[other, now] or width < missing:
            continue
        for then in range(window.num_rounds):
            if not runs_JT[other, then] and free_T[then] >= width:
                runs_JT[other, now] = 0
                runs_JT[other, then] = 1
                free_T[now] += width
                free_T[then] -= width
                return True
    return False
