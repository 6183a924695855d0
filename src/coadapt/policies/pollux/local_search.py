"""Compiled loops of the exact Pollux solver: choosing one job's row of GPUs, and
improving a whole plan.

Axes as in pollux/objective.py. Costs are those of job_cost: the plan with the least sum
is the best one.
"""

# How a lawful plan is brought near the bound.
#
# Given all others' rows, one job's best row is easy: its cost depends on its number of
# replicas and on whether they stand in one node, so it is enough to find the best count
# for each of the two shapes and a place for it (the tightest node that fits; else the
# emptiest nodes first and the tightest last one). `best_row` does that in one pass. A
# plan in which no job can do better alone is a local optimum; three moves lead out of
# it, from cheap to dear:
#
#   move        one job: withdraw it, give it its best row
#   move pair   two jobs: each count of the first, and the best row of the second in
#               what is left
#   make way    one job gives all back, jobs that want more help themselves, it takes
#               the rest
#
# Most pairs cannot gain, and the dual bound tells which. Write for each job
#
#     slack_j = c_j + (price of what it uses) - reduced_cost_j
#
# which is >= 0, as the reduced cost is a minimum,
#
# and idle = price of all unused GPUs. Summed over jobs, (cost of the plan) -
# (bound) = sum_j slack_j + idle, with the bound of these prices: the plan's whole
# distance from it lies in these numbers (but for a pinned job on several nodes, which
# is not charged them). A change that touches two jobs can gain at most slack_1 +
# slack_2 + idle, so pairs below that are not tried, and within a pair a count is not
# tried if its cost with the least that the other could then have does not beat the
# present one.
#
# Nothing is drawn: two starts (the relaxation's counts, placed; the present plan)
# replace random restarts.
# A move counts only if it gains LEAST_GAIN of what it touches: sums round, and a loop
# must not live on that.

import numpy as np

from coadapt.goodput.compiled import compiled_lean, lean_part, variable
from coadapt.policies.pollux.objective import FloatArray, IntArray
from coadapt.policies.pollux.round_costs import (
    CHEAPEST,
    GPUS,
    KEEPING,
    LEAST,
    MOST,
    NODES,
    ORDER,
    PINNED,
    SAVED,
    TENANT,
    WAITING,
    WIDE,
    DualBound,
    PackedCosts,
    PartialPlan,
)

LEAST_GAIN = 1e-10  # a move must save more than this share of the cost that it changes
NOTHING = variable(0)
TAKES = variable(1)
GIVES = variable(-1)


@lean_part
def _copy(source_N: IntArray, target_N: IntArray) -> None:
    for node in range(source_N.size):
        target_N[node] = source_N[node]


@lean_part
def _clear(row_N: IntArray) -> None:
    for node in range(row_N.size):
        row_N[node] = 0


@lean_part
def enter(
    costs: PackedCosts, plan: PartialPlan, job: int, row_N: IntArray, cost: float
) -> None:
    """Give `row_N` to `job`, which must hold nothing."""
    _account(costs, plan, job, row_N, TAKES)
    _copy(row_N, plan.row_JN[job])
    plan.cost_J[job] = cost


@lean_part
def withdraw(costs: PackedCosts, plan: PartialPlan, job: int) -> None:
    """Take everything from `job`."""
    _account(costs, plan, job, plan.row_JN[job], GIVES)
    _clear(plan.row_JN[job])
    plan.cost_J[job] = costs.cost_JC[job, WAITING]


@lean_part
def _account(
    costs: PackedCosts, plan: PartialPlan, job: int, row_N: IntArray, sign: int
) -> None:
    total = 0
    num_nodes = 0
    for node in range(row_N.size):
        if row_N[node] > 0:
            total += row_N[node]
            num_nodes += 1
            plan.free_N[node] -= sign * row_N[node]
            plan.wide_N[node] -= sign * costs.wide_K[row_N[node]]
    plan.left_T[costs.limit_JL[job, TENANT]] -= sign * total
    if num_nodes > 1:
        for node in range(row_N.size):
            if row_N[node] > 0:
                plan.spanning_N[node] += sign


@lean_part
def can_keep(costs: PackedCosts, plan: PartialPlan, job: int) -> bool:
    """Return whether `job`, which holds nothing, can have its current row."""
    current_N = costs.current_JN[job]
    total = 0
    num_nodes = 0
    crossed = False
    for node in range(current_N.size):
        if current_N[node] > 0:
            total += current_N[node]
            num_nodes += 1
            if current_N[node] > plan.free_N[node]:
                return False
            crossed = crossed or plan.spanning_N[node] > 0
    if total == 0 or total > plan.left_T[costs.limit_JL[job, TENANT]]:
        return False
    if costs.limit_JL[job, PINNED]:
        return True
    if num_nodes > costs.max_nodes:
        return False
    return not (costs.exclusive and num_nodes > 1 and crossed)


@lean_part
def _order_spanning(costs: PackedCosts, plan: PartialPlan) -> int:
    """Fill the row ORDER with the nodes that a job over several may use, most free
    first; return how many.
    """
    most = 0
    for node in range(plan.free_N.size):
        most = max(most, plan.free_N[node])
    found = 0
    for free in range(most, 0, -1):
        for node in range(plan.free_N.size):
            if plan.free_N[node] == free and not (
                costs.exclusive and plan.spanning_N[node] > 0
            ):
                plan.scratch_IN[ORDER, found] = node
                found += 1
    return found


@lean_part
def place(
    costs: PackedCosts, plan: PartialPlan, num_replicas: int, row_N: IntArray
) -> int:
    """Write a row of `num_replicas`: one node, the tightest that fits, else as few as
    possible.

    Returns the number of nodes, 0 where there is no such row.
    """
    _clear(row_N)
    best = -1
    for node in range(plan.free_N.size):
        free = plan.free_N[node]
        if free >= num_replicas and (best < 0 or free < plan.free_N[best]):
            best = node
    if best >= 0:
        row_N[best] = num_replicas
        return 1
    available = _order_spanning(costs, plan)
    return _fill(plan, num_replicas, min(available, costs.max_nodes), available, row_N)


@lean_part
def _fill(
    plan: PartialPlan, num_replicas: int, most: int, available: int, row_N: IntArray
) -> int:
    left = num_replicas
    for taken in range(most):
        node = plan.scratch_IN[ORDER, taken]
        if left > plan.free_N[node]:
            row_N[node] = plan.free_N[node]
            left -= plan.free_N[node]
            continue
        for last in range(available - 1, taken - 1, -1):
            if plan.free_N[plan.scratch_IN[ORDER, last]] >= left:
                row_N[plan.scratch_IN[ORDER, last]] = left
                return taken + 1
    _clear(row_N)
    return 0


@lean_part
def best_row(costs: PackedCosts, plan: PartialPlan, job: int, row_N: IntArray) -> float:
    """Write the cheapest row that `job`, which holds nothing, can have in `plan`;
    return its cost.
    """
    _clear(row_N)
    best = float(costs.cost_JC[job, WAITING])
    if can_keep(costs, plan, job) and (
        costs.limit_JL[job, PINNED] or costs.cost_JC[job, KEEPING] <= best
    ):
        _copy(costs.current_JN[job], row_N)
        best = float(costs.cost_JC[job, KEEPING])
    if costs.limit_JL[job, PINNED]:
        return best
    least = costs.limit_JL[job, LEAST]
    most = min(costs.limit_JL[job, MOST], plan.left_T[costs.limit_JL[job, TENANT]])
    node_most = 0
    for node in range(plan.free_N.size):
        node_most = max(node_most, plan.free_N[node])
    replicas = NOTHING
    for count in range(least, min(most, node_most) + 1):
        if costs.change_JSK[job, 0, count] < best:
            best = float(costs.change_JSK[job, 0, count])
            replicas = count
    if most > node_most:
        available = _order_spanning(costs, plan)
        reach = 0
        for taken in range(min(available, costs.max_nodes)):
            reach += plan.free_N[plan.scratch_IN[ORDER, taken]]
        for count in range(max(least, node_most + 1), min(most, reach) + 1):
            if costs.change_JSK[job, 1, count] < best:
                best = float(costs.change_JSK[job, 1, count])
                replicas = count
    if replicas > 0:
        place(costs, plan, replicas, row_N)
    return best


@compiled_lean
def place_counts(
    costs: PackedCosts, plan: PartialPlan, count_J: IntArray, order_J: IntArray
) -> None:
    """Give each job of `order_J` its count if possible, first those that keep (-1),
    pinned ones foremost.

    A job that finds no place in one node may get fewer replicas, whatever costs it
    least. `plan` must be the one in which every job waits.
    """
    row_N = plan.scratch_IN[0]
    best_N = plan.scratch_IN[1]
    # Frozen jobs first: they cannot move, so no other job may get their GPUs.
    for pinned in (True, False):
        for job in range(count_J.size):
            if (
                count_J[job] < 0
                and costs.limit_JL[job, PINNED] == pinned
                and can_keep(costs, plan, job)
            ):
                enter(
                    costs, plan, job, costs.current_JN[job], costs.cost_JC[job, KEEPING]
                )
    for place_of in range(order_J.size):
        job = order_J[place_of]
        best = plan.cost_J[job]
        _clear(best_N)
        most = min(count_J[job], plan.left_T[costs.limit_JL[job, TENANT]])
        for count in range(most, costs.limit_JL[job, LEAST] - 1, -1):
            if count < 1 or _cheapest(costs, job, count) >= best:
                continue
            cost = _candidate(costs, plan, job, count, row_N)
            if cost < best:
                best = cost
                _copy(row_N, best_N)
        if count_J[job] > 0 and best < plan.cost_J[job]:
            enter(costs, plan, job, best_N, best)


def improve(
    costs: PackedCosts, plan: PartialPlan, dual: DualBound, max_trials: int
) -> int:
    """Improve the plan until no job, no pair and no job that makes way for others can
    do better.

    Returns the trials spent; a trial is one row for one job, and `max_trials` bounds
    the work.
    """
    trials = 0
    improved = True
    while improved and trials < max_trials:
        improved = _move_each(costs, plan)
        trials += plan.cost_J.size
        gained, spent = _make_way_in_turn(costs, plan, dual, True, max_trials - trials)
        trials += spent
        improved = improved or gained
        gained, spent = _improve_pairs(costs, plan, dual, max_trials - trials)
        trials += spent
        improved = improved or gained
        if not improved:
            improved, spent = _make_way_in_turn(
                costs, plan, dual, False, max_trials - trials
            )
            trials += spent
    return trials


@compiled_lean
def _move_each(costs: PackedCosts, plan: PartialPlan) -> bool:
    improved = False
    for job in range(plan.cost_J.size):
        improved = _move(costs, plan, job) or improved
    return improved


@compiled_lean
def _improve_pairs(
    costs: PackedCosts, plan: PartialPlan, dual: DualBound, max_trials: int
) -> tuple[bool, int]:
    """Improve pairs of jobs, those with most slack first; return whether one gained,
    and the trials spent.

    What a job pays more than its ideal is its slack; the plan's distance to the bound
    is all slack and the price of all that lies idle. So a pair is worth trying only if
    these can pay for a gain.
    """
    num_jobs = plan.cost_J.size
    slack_J = plan.value_J
    order_J = plan.mark_J
    for job in range(num_jobs):
        slack_J[job] = _slack(costs, plan, dual, job)
        order_J[job] = job
    _sort_falling(slack_J, order_J)
    idle = _idle_price(plan, dual)
    improved = False
    trials = 0
    for one in range(num_jobs):
        for other in range(num_jobs):
            first = order_J[one]
            second = order_J[other]
            least = LEAST_GAIN * abs(plan.cost_J[first] + plan.cost_J[second])
            worth = slack_J[first] + slack_J[second] + idle > least
            if first == second or not worth or trials >= max_trials:
                continue
            gained, spent = _move_pair(costs, plan, dual, first, second)
            trials += spent
            if gained:
                improved = True
                slack_J[first] = _slack(costs, plan, dual, first)
                slack_J[second] = _slack(costs, plan, dual, second)
                idle = _idle_price(plan, dual)
    return improved, trials


@lean_part
def _sort_falling(value_J: FloatArray, order_J: IntArray) -> None:
    for place in range(1, order_J.size):
        job = order_J[place]
        hole = place
        while hole > 0 and value_J[order_J[hole - 1]] < value_J[job]:
            order_J[hole] = order_J[hole - 1]
            hole -= 1
        order_J[hole] = job


@lean_part
def _slack(costs: PackedCosts, plan: PartialPlan, dual: DualBound, job: int) -> float:
    total = 0
    num_nodes = 0
    wide = 0.0
    for node in range(plan.free_N.size):
        total += plan.row_JN[job, node]
        num_nodes += plan.row_JN[job, node] > 0
        wide += costs.wide_K[plan.row_JN[job, node]]
    spanned = num_nodes if num_nodes > 1 and not costs.limit_JL[job, PINNED] else 0
    used = (
        dual.multiplier_R[GPUS] * total
        + dual.multiplier_R[NODES] * spanned
        + dual.multiplier_R[WIDE] * wide
    )
    return float(plan.cost_J[job] + used - dual.reduced_cost_J[job])


@lean_part
def _idle_price(plan: PartialPlan, dual: DualBound) -> float:
    """Return the price of all that is free: GPUs, nodes for a job that spans nodes,
    wide pieces' places.
    """
    value = 0.0
    for node in range(plan.free_N.size):
        value += (
            dual.multiplier_R[GPUS] * plan.free_N[node]
            + dual.multiplier_R[WIDE] * plan.wide_N[node]
        )
        if plan.spanning_N[node] == 0:
            value += dual.multiplier_R[NODES]
    return value


@lean_part
def _move(costs: PackedCosts, plan: PartialPlan, job: int) -> bool:
    old = plan.cost_J[job]
    if old <= costs.cost_JC[job, CHEAPEST]:
        return False
    kept_N = plan.scratch_IN[0]
    row_N = plan.scratch_IN[1]
    # Withdrawn first, so that its own GPUs count as free for its best row.
    _copy(plan.row_JN[job], kept_N)
    withdraw(costs, plan, job)
    cost = best_row(costs, plan, job, row_N)
    if cost < old - LEAST_GAIN * abs(old):
        enter(costs, plan, job, row_N, cost)
        return True
    enter(costs, plan, job, kept_N, old)
    return False


@lean_part
def _move_pair(
    costs: PackedCosts, plan: PartialPlan, dual: DualBound, first: int, second: int
) -> tuple[bool, int]:
    """Give `first` each count in turn, `second` the best of the rest; take the best
    pair if it gains.
    """
    old_first = plan.cost_J[first]
    old_second = plan.cost_J[second]
    target = old_first + old_second
    target -= LEAST_GAIN * abs(target)
    best_first_N = plan.scratch_IN[2]
    best_second_N = plan.scratch_IN[3]
    row_first_N = plan.scratch_IN[4]
    row_second_N = plan.scratch_IN[5]
    _copy(plan.row_JN[first], best_first_N)
    _copy(plan.row_JN[second], best_second_N)
    cost_first = old_first
    cost_second = old_second
    withdraw(costs, plan, first)
    withdraw(costs, plan, second)
    # The least that the second can pay in what is left: its reduced cost, less the
    # price of all that is idle.
    rest = dual.reduced_cost_J[second] - _idle_price(plan, dual)
    least = costs.cost_JC[second, CHEAPEST]
    gained = False
    spent = 0
    most = 0
    if not costs.limit_JL[first, PINNED]:
        most = min(
            costs.limit_JL[first, MOST], plan.left_T[costs.limit_JL[first, TENANT]]
        )
    for count in range(-1, most + 1):  # -1: keep, 0: wait
        if 0 < count < costs.limit_JL[first, LEAST]:
            continue
        cost = _cheapest(costs, first, count)
        if cost + max(least, dual.multiplier_R[GPUS] * max(count, 0) + rest) >= target:
            continue
        cost = _candidate(costs, plan, first, count, row_first_N)
        if cost + max(least, _row_price(costs, dual, row_first_N) + rest) >= target:
            continue
        enter(costs, plan, first, row_first_N, cost)
        other = best_row(costs, plan, second, row_second_N)
        withdraw(costs, plan, first)
        spent += 1
        if cost + other < target:
            target = cost + other
            gained = True
            _copy(row_first_N, best_first_N)
            _copy(row_second_N, best_second_N)
            cost_first = cost
            cost_second = other
    enter(costs, plan, first, best_first_N, cost_first)
    enter(costs, plan, second, best_second_N, cost_second)
    return gained, spent


@lean_part
def _waits(row_N: IntArray) -> bool:
    held = 0
    for node in range(row_N.size):
        held += row_N[node]
    return held == 0


@compiled_lean
def _make_way_in_turn(
    costs: PackedCosts,
    plan: PartialPlan,
    dual: DualBound,
    for_waiting: bool,
    max_trials: int,
) -> tuple[bool, int]:
    """Let each job make way for those with slack, or for those of them that wait.

    Returns whether that gained, and the trials spent.
    """
    num_jobs = plan.cost_J.size
    wants_J = plan.mark_J
    num_wanting = 0
    for job in range(num_jobs):
        asked = not for_waiting or _waits(plan.row_JN[job])
        wants_J[job] = asked and _slack(costs, plan, dual, job) > LEAST_GAIN * abs(
            plan.cost_J[job]
        )
        num_wanting += wants_J[job]
    improved = False
    trials = 0
    for job in range(num_jobs):
        if num_wanting == 0 or trials >= max_trials:
            break
        if not _waits(plan.row_JN[job]) and not costs.limit_JL[job, PINNED]:
            improved = _make_way(costs, plan, job) or improved
            trials += num_wanting
    return improved, trials


@lean_part
def _make_way(costs: PackedCosts, plan: PartialPlan, job: int) -> bool:
    """Let jobs that want more GPUs take them from `job`, waiting jobs first, and `job`
    the rest.

    Returns whether the plan is better; if not, it is unchanged. Jobs that want more are
    marked in the plan.
    """
    num_jobs = plan.cost_J.size
    old_J = plan.value_J
    wants_J = plan.mark_J
    for other in range(num_jobs):
        old_J[other] = plan.cost_J[other]
        _copy(plan.row_JN[other], plan.scratch_IN[SAVED + other])
    withdraw(costs, plan, job)
    for waiting in (True, False):
        for other in range(num_jobs):
            if (
                wants_J[other] > 0
                and other != job
                and _waits(plan.scratch_IN[SAVED + other]) == waiting
            ):
                _move(costs, plan, other)
    _move(costs, plan, job)
    gain = 0.0
    for other in range(num_jobs):
        gain += old_J[other] - plan.cost_J[other]
    if gain > LEAST_GAIN * abs(old_J[job]):
        return True
    for other in range(num_jobs):
        if wants_J[other] > 0 or other == job:
            withdraw(costs, plan, other)
    for other in range(num_jobs):
        if wants_J[other] > 0 or other == job:
            enter(costs, plan, other, plan.scratch_IN[SAVED + other], old_J[other])
    return False


@lean_part
def _row_price(costs: PackedCosts, dual: DualBound, row_N: IntArray) -> float:
    """Return the price of the GPUs and wide pieces of a row."""
    value = 0.0
    for node in range(row_N.size):
        value += dual.multiplier_R[GPUS] * row_N[node]
        value += dual.multiplier_R[WIDE] * costs.wide_K[row_N[node]]
    return value


@lean_part
def _cheapest(costs: PackedCosts, job: int, count: int) -> float:
    """Return the least cost of `job` with `count` replicas (-1: keep, 0: wait),
    wherever they stand.
    """
    if count < 0:
        return float(costs.cost_JC[job, KEEPING])
    if count == 0:
        return float(costs.cost_JC[job, WAITING])
    return float(min(costs.change_JSK[job, 0, count], costs.change_JSK[job, 1, count]))


@lean_part
def _candidate(
    costs: PackedCosts, plan: PartialPlan, job: int, count: int, row_N: IntArray
) -> float:
    """Write the row of `count` replicas (-1: keep, 0: wait); return its cost, infinite
    if there is none.
    """
    if count == 0:
        _clear(row_N)
        return float(costs.cost_JC[job, WAITING])
    if count < 0:
        if not can_keep(costs, plan, job):
            return np.inf
        _copy(costs.current_JN[job], row_N)
        return float(costs.cost_JC[job, KEEPING])
    num_nodes = place(costs, plan, count, row_N)
    if num_nodes == 0:
        return np.inf
    return float(costs.change_JSK[job, min(num_nodes, 2) - 1, count])
