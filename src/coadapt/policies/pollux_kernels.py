"""Compiled loops of the exact Pollux solver: choosing one job's row of GPUs, and improving a whole plan.

Axes as in pollux_objective. Costs are those of job_cost: the plan with the least sum is the best one.
"""

import numpy as np

from coadapt.policies.compiled import compiled
from coadapt.policies.pollux_books import GPUS, NODES, WIDE, Books, Costs, Market
from coadapt.policies.pollux_objective import BoolArray, FloatArray, IntArray

# A move must gain more than this share of the cost that it touches, so that rounding cannot loop (1).
LEAST_GAIN = 1e-10


def open_books(costs: Costs) -> Books:
    """Return the books of the plan in which every job waits."""
    num_jobs, num_nodes = costs.current_JN.shape
    return Books(
        row_JN=np.zeros((num_jobs, num_nodes), dtype=np.int64),
        cost_J=costs.wait_J.copy(),
        free_N=costs.capacity_N.copy(),
        spanning_N=np.zeros(num_nodes, dtype=np.int64),
        wide_N=costs.wide_K[costs.capacity_N],
        left_T=costs.quota_T.copy(),
        order_N=np.zeros(num_nodes, dtype=np.int64),
        trial_IN=np.zeros((6, num_nodes), dtype=np.int64),
        saved_JN=np.zeros((num_jobs, num_nodes), dtype=np.int64),
    )


@compiled
def _copy(source_N: IntArray, target_N: IntArray) -> None:
    for node in range(source_N.size):
        target_N[node] = source_N[node]


@compiled
def _clear(row_N: IntArray) -> None:
    for node in range(row_N.size):
        row_N[node] = 0


@compiled
def enter(costs: Costs, books: Books, job: int, row_N: IntArray, cost: float) -> None:
    """Give `row_N` to `job`, which must hold nothing."""
    _book(costs, books, job, row_N, 1)
    _copy(row_N, books.row_JN[job])
    books.cost_J[job] = cost


@compiled
def withdraw(costs: Costs, books: Books, job: int) -> None:
    """Take everything from `job`."""
    _book(costs, books, job, books.row_JN[job], -1)
    _clear(books.row_JN[job])
    books.cost_J[job] = costs.wait_J[job]


@compiled
def _book(costs: Costs, books: Books, job: int, row_N: IntArray, sign: int) -> None:
    total = 0
    num_nodes = 0
    for node in range(row_N.size):
        if row_N[node] > 0:
            total += row_N[node]
            num_nodes += 1
            books.free_N[node] -= sign * row_N[node]
            books.wide_N[node] -= sign * costs.wide_K[row_N[node]]
    books.left_T[costs.tenant_J[job]] -= sign * total
    if num_nodes > 1:
        for node in range(row_N.size):
            if row_N[node] > 0:
                books.spanning_N[node] += sign


@compiled
def can_keep(costs: Costs, books: Books, job: int) -> bool:
    """Return whether `job`, which holds nothing in `books`, can have its current row."""
    current_N = costs.current_JN[job]
    total = 0
    num_nodes = 0
    crossed = False
    for node in range(current_N.size):
        if current_N[node] > 0:
            total += current_N[node]
            num_nodes += 1
            if current_N[node] > books.free_N[node]:
                return False
            crossed = crossed or books.spanning_N[node] > 0
    if total == 0 or total > books.left_T[costs.tenant_J[job]]:
        return False
    if costs.pinned_J[job]:
        return True
    if num_nodes > costs.max_nodes:
        return False
    return not (costs.exclusive and num_nodes > 1 and crossed)


@compiled
def _order_spanning(costs: Costs, books: Books) -> int:
    """Fill order_N with the nodes that a job spanning nodes may use, most free first; return their number."""
    most = 0
    for node in range(books.free_N.size):
        most = max(most, books.free_N[node])
    found = 0
    for free in range(most, 0, -1):
        for node in range(books.free_N.size):
            if books.free_N[node] == free and not (costs.exclusive and books.spanning_N[node] > 0):
                books.order_N[found] = node
                found += 1
    return found


@compiled
def place(costs: Costs, books: Books, num_replicas: int, row_N: IntArray) -> int:
    """Write a row of `num_replicas`: one node, the tightest that fits, else as few as possible.

    Returns the number of nodes, 0 where there is no such row.
    """
    _clear(row_N)
    best = -1
    for node in range(books.free_N.size):
        free = books.free_N[node]
        if free >= num_replicas and (best < 0 or free < books.free_N[best]):
            best = node
    if best >= 0:
        row_N[best] = num_replicas
        return 1
    available = _order_spanning(costs, books)
    return _fill(books, num_replicas, min(available, costs.max_nodes), available, row_N)


@compiled
def _fill(books: Books, num_replicas: int, most: int, available: int, row_N: IntArray) -> int:
    left = num_replicas
    for taken in range(most):
        node = books.order_N[taken]
        if left > books.free_N[node]:
            row_N[node] = books.free_N[node]
            left -= books.free_N[node]
            continue
        for last in range(available - 1, taken - 1, -1):
            if books.free_N[books.order_N[last]] >= left:
                row_N[books.order_N[last]] = left
                return taken + 1
    _clear(row_N)
    return 0


@compiled
def best_row(costs: Costs, books: Books, job: int, row_N: IntArray) -> float:
    """Write the cheapest row that `job`, which holds nothing, can have in `books`; return its cost."""
    _clear(row_N)
    best = float(costs.wait_J[job])
    if can_keep(costs, books, job) and (costs.pinned_J[job] or costs.keep_J[job] <= best):
        _copy(costs.current_JN[job], row_N)
        best = float(costs.keep_J[job])
    if costs.pinned_J[job]:
        return best
    least = costs.min_J[job]
    most = min(costs.max_J[job], books.left_T[costs.tenant_J[job]])
    node_most = 0
    for node in range(books.free_N.size):
        node_most = max(node_most, books.free_N[node])
    replicas = 0
    for count in range(least, min(most, node_most) + 1):
        if costs.change_JSK[job, 0, count] < best:
            best = float(costs.change_JSK[job, 0, count])
            replicas = count
    if most > node_most:
        available = _order_spanning(costs, books)
        reach = 0
        for taken in range(min(available, costs.max_nodes)):
            reach += books.free_N[books.order_N[taken]]
        for count in range(max(least, node_most + 1), min(most, reach) + 1):
            if costs.change_JSK[job, 1, count] < best:
                best = float(costs.change_JSK[job, 1, count])
                replicas = count
    if replicas > 0:
        place(costs, books, replicas, row_N)
    return best


@compiled
def place_counts(costs: Costs, books: Books, count_J: IntArray, order_J: IntArray) -> None:
    """Give each job of `order_J` its count if possible, first those that keep (-1), pinned ones foremost.

    A job that finds no place in one node may get fewer replicas, whatever costs it least. `books` must be
    those of the plan in which every job waits.
    """
    row_N, best_N = books.trial_IN[0], books.trial_IN[1]
    for pinned in (True, False):
        for job in range(count_J.size):
            if count_J[job] < 0 and costs.pinned_J[job] == pinned and can_keep(costs, books, job):
                enter(costs, books, job, costs.current_JN[job], costs.keep_J[job])
    for place_of in range(order_J.size):
        job = order_J[place_of]
        best = books.cost_J[job]
        _clear(best_N)
        for count in range(min(count_J[job], books.left_T[costs.tenant_J[job]]), costs.min_J[job] - 1, -1):
            if count < 1 or _cheapest(costs, job, count) >= best:
                continue
            cost = _candidate(costs, books, job, count, row_N)
            if cost < best:
                best = cost
                _copy(row_N, best_N)
        if count_J[job] > 0 and best < books.cost_J[job]:
            enter(costs, books, job, best_N, best)


@compiled
def improve(costs: Costs, books: Books, market: Market, max_trials: int) -> int:
    """Improve the plan until no job, no pair and no job that makes way for others can do better.

    Returns the trials spent; a trial is one row for one job, and `max_trials` bounds the work.
    """
    num_jobs = costs.wait_J.size
    trials = 0
    improved = True
    while improved and trials < max_trials:
        improved = False
        for job in range(num_jobs):
            improved = _reseat(costs, books, job) or improved
        trials += num_jobs
        gained, spent = _make_way_in_turn(costs, books, market, True, max_trials - trials)
        trials += spent
        improved = improved or gained
        gained, spent = _improve_pairs(costs, books, market, max_trials - trials)
        trials += spent
        improved = improved or gained
        if not improved:
            improved, spent = _make_way_in_turn(costs, books, market, False, max_trials - trials)
            trials += spent
    return trials


@compiled
def _improve_pairs(costs: Costs, books: Books, market: Market, max_trials: int) -> tuple[bool, int]:
    """Improve pairs of jobs, those with most slack first; return whether one gained, and the trials spent.

    What a job pays more than its ideal is its slack; the plan's distance to the bound is all slack and the
    price of all that lies idle. So a pair is worth trying only if these can pay for a gain.
    """
    num_jobs = costs.wait_J.size
    slack_J = np.zeros(num_jobs)
    order_J = np.arange(num_jobs)
    for job in range(num_jobs):
        slack_J[job] = _slack(costs, books, market, job)
    _sort_falling(slack_J, order_J)
    idle = _idle(books, market)
    improved = False
    trials = 0
    for one in range(num_jobs):
        for other in range(num_jobs):
            first, second = order_J[one], order_J[other]
            least = LEAST_GAIN * abs(books.cost_J[first] + books.cost_J[second])
            worth = slack_J[first] + slack_J[second] + idle > least
            if first == second or not worth or trials >= max_trials:
                continue
            gained, spent = _reseat_pair(costs, books, market, first, second)
            trials += spent
            if gained:
                improved = True
                slack_J[first] = _slack(costs, books, market, first)
                slack_J[second] = _slack(costs, books, market, second)
                idle = _idle(books, market)
    return improved, trials


@compiled
def _sort_falling(value_J: FloatArray, order_J: IntArray) -> None:
    for place in range(1, order_J.size):
        job = order_J[place]
        hole = place
        while hole > 0 and value_J[order_J[hole - 1]] < value_J[job]:
            order_J[hole] = order_J[hole - 1]
            hole -= 1
        order_J[hole] = job


@compiled
def _slack(costs: Costs, books: Books, market: Market, job: int) -> float:
    total = 0
    num_nodes = 0
    wide = 0.0
    for node in range(books.free_N.size):
        total += books.row_JN[job, node]
        num_nodes += books.row_JN[job, node] > 0
        wide += costs.wide_K[books.row_JN[job, node]]
    spanned = num_nodes if num_nodes > 1 and not costs.pinned_J[job] else 0
    used = market.price_R[GPUS] * total + market.price_R[NODES] * spanned + market.price_R[WIDE] * wide
    return float(books.cost_J[job] + used - market.ideal_J[job])


@compiled
def _idle(books: Books, market: Market) -> float:
    """Return the price of all that is free: GPUs, nodes for a job that spans nodes, room for wide pieces."""
    value = 0.0
    for node in range(books.free_N.size):
        value += market.price_R[GPUS] * books.free_N[node] + market.price_R[WIDE] * books.wide_N[node]
        if books.spanning_N[node] == 0:
            value += market.price_R[NODES]
    return value


@compiled
def _reseat(costs: Costs, books: Books, job: int) -> bool:
    old = books.cost_J[job]
    if old <= costs.least_J[job]:
        return False
    kept_N, row_N = books.trial_IN[0], books.trial_IN[1]
    _copy(books.row_JN[job], kept_N)
    withdraw(costs, books, job)
    cost = best_row(costs, books, job, row_N)
    if cost < old - LEAST_GAIN * abs(old):
        enter(costs, books, job, row_N, cost)
        return True
    enter(costs, books, job, kept_N, old)
    return False


@compiled
def _reseat_pair(costs: Costs, books: Books, market: Market, first: int, second: int) -> tuple[bool, int]:
    """Give `first` each count in turn, `second` the best of the rest; take the best pair if it gains."""
    old_first, old_second = books.cost_J[first], books.cost_J[second]
    target = old_first + old_second
    target -= LEAST_GAIN * abs(target)
    best_first_N, best_second_N = books.trial_IN[2], books.trial_IN[3]
    row_first_N, row_second_N = books.trial_IN[4], books.trial_IN[5]
    _copy(books.row_JN[first], best_first_N)
    _copy(books.row_JN[second], best_second_N)
    cost_first, cost_second = old_first, old_second
    withdraw(costs, books, first)
    withdraw(costs, books, second)
    rest = market.ideal_J[second] - _idle(books, market)
    least = costs.least_J[second]
    gained = False
    spent = 0
    most = 0
    if not costs.pinned_J[first]:
        most = min(costs.max_J[first], books.left_T[costs.tenant_J[first]])
    for count in range(-1, most + 1):  # -1: keep, 0: wait
        if 0 < count < costs.min_J[first]:
            continue
        cost = _cheapest(costs, first, count)
        if cost + max(least, market.price_R[GPUS] * max(count, 0) + rest) >= target:
            continue
        cost = _candidate(costs, books, first, count, row_first_N)
        if cost + max(least, _price_of(costs, market, row_first_N) + rest) >= target:
            continue
        enter(costs, books, first, row_first_N, cost)
        other = best_row(costs, books, second, row_second_N)
        withdraw(costs, books, first)
        spent += 1
        if cost + other < target:
            target = cost + other
            gained = True
            _copy(row_first_N, best_first_N)
            _copy(row_second_N, best_second_N)
            cost_first, cost_second = cost, other
    enter(costs, books, first, best_first_N, cost_first)
    enter(costs, books, second, best_second_N, cost_second)
    return gained, spent


@compiled
def _total(row_N: IntArray) -> int:
    total = 0
    for node in range(row_N.size):
        total += row_N[node]
    return total


@compiled
def _make_way_in_turn(
    costs: Costs, books: Books, market: Market, for_waiting: bool, max_trials: int
) -> tuple[bool, int]:
    """Let each job make way for those with slack, or for those of them that wait.

    Returns whether that gained, and the trials spent.
    """
    num_jobs = costs.wait_J.size
    wants_J = np.zeros(num_jobs, np.bool_)
    num_wanting = 0
    for job in range(num_jobs):
        if not for_waiting or _total(books.row_JN[job]) == 0:
            wants_J[job] = _slack(costs, books, market, job) > LEAST_GAIN * abs(books.cost_J[job])
            num_wanting += wants_J[job]
    improved = False
    trials = 0
    for job in range(num_jobs):
        if num_wanting == 0 or trials >= max_trials:
            break
        if _total(books.row_JN[job]) > 0 and not costs.pinned_J[job]:
            improved = _make_way(costs, books, job, wants_J) or improved
            trials += num_wanting
    return improved, trials


@compiled
def _make_way(costs: Costs, books: Books, job: int, wants_J: BoolArray) -> bool:
    """Let those who want, who wait foremost, take what they like of what `job` holds, and `job` the rest.

    Returns whether that gained; else all is as before.
    """
    num_jobs = costs.wait_J.size
    old_J = books.cost_J.copy()
    for other in range(num_jobs):
        _copy(books.row_JN[other], books.saved_JN[other])
    withdraw(costs, books, job)
    for waiting in (True, False):
        for other in range(num_jobs):
            if wants_J[other] and other != job and (_total(books.saved_JN[other]) == 0) == waiting:
                _reseat(costs, books, other)
    _reseat(costs, books, job)
    gain = 0.0
    for other in range(num_jobs):
        gain += old_J[other] - books.cost_J[other]
    if gain > LEAST_GAIN * abs(old_J[job]):
        return True
    for other in range(num_jobs):
        if wants_J[other] or other == job:
            withdraw(costs, books, other)
    for other in range(num_jobs):
        if wants_J[other] or other == job:
            enter(costs, books, other, books.saved_JN[other], old_J[other])
    return False


@compiled
def _price_of(costs: Costs, market: Market, row_N: IntArray) -> float:
    """Return the price of the GPUs and wide pieces of a row."""
    value = 0.0
    for node in range(row_N.size):
        value += market.price_R[GPUS] * row_N[node]
        value += market.price_R[WIDE] * costs.wide_K[row_N[node]]
    return value


@compiled
def _cheapest(costs: Costs, job: int, count: int) -> float:
    """Return the least cost of `job` with `count` replicas (-1: keep, 0: wait), wherever they stand."""
    if count < 0:
        return float(costs.keep_J[job])
    if count == 0:
        return float(costs.wait_J[job])
    return float(min(costs.change_JSK[job, 0, count], costs.change_JSK[job, 1, count]))


@compiled
def _candidate(costs: Costs, books: Books, job: int, count: int, row_N: IntArray) -> float:
    """Write the row of `count` replicas (-1: keep, 0: wait); return its cost, infinite if there is none."""
    if count == 0:
        _clear(row_N)
        return float(costs.wait_J[job])
    if count < 0:
        if not can_keep(costs, books, job):
            return np.inf
        _copy(costs.current_JN[job], row_N)
        return float(costs.keep_J[job])
    num_nodes = place(costs, books, count, row_N)
    if num_nodes == 0:
        return np.inf
    return float(costs.change_JSK[job, min(num_nodes, 2) - 1, count])
