"""The round's program: one option per job at most, its GPUs within what each type and tenant has.

Axes: J jobs, O options of a job, R resources (GPU types, then tenants with a quota).
"""

# The choice at the prices that prove most uses about what there is. Where it is too much, jobs step down
# where that costs least per GPU; then what is free goes where it brings most per GPU, until nothing fits.
#
# With several types that was 2.3 % below the best in the mean of rounds on Sia's cluster, and up to 18 %: a
# job can take the place of another only once that one has found its place elsewhere. Whoever found none
# waited, round after round. So the GPUs of two types at a time are given out anew, by dynamic programming,
# while jobs elsewhere may stay there, until no two types gain (0.01 % below the best); in the end those of
# all types. No choice that is better than the one at hand has an option that costs more at these prices
# than it is below their bound (fixing by reduced costs), so few options are left. Where all types at once
# are few enough steps, nothing is better than what is found; quotas are counted by their prices, then kept
# as above.

from typing import NamedTuple

import numpy as np

from coadapt.goodput.compiled import compiled, compiled_part
from coadapt.policies.castor.arrays import BoolArray, FloatArray, IntArray
from coadapt.policies.castor.program.prices import WAIT, Options, at_prices, prices, tighter, used, worth

MAX_EXACT_STEPS = 20_000_000  # inner steps of all dynamic programs of a round (measured: about 1 ns each)
ROUNDING = 1e-9  # of the bound


class Choice(NamedTuple):
    """option_J: index, or WAIT. value: their sum; bound: no lawful choice has more. price_R: proves it."""

    option_J: IntArray
    value: float
    bound: float
    price_R: FloatArray


@compiled_part
def _fits(options: Options, left_R: IntArray, j: int, old: int, new: int) -> bool:
    """Return whether job j may go from option `old` to `new` with what is left."""
    gpus, of_type = options.gpus_JO[j, new], options.type_JO[j, new]
    back = 0 if old == WAIT else options.gpus_JO[j, old]
    more = gpus - (back if old != WAIT and options.type_JO[j, old] == of_type else 0)
    if more > left_R[of_type]:
        return False
    tenant = options.tenant_J[j]
    return tenant < 0 or bool(gpus - back <= left_R[tenant])


@compiled_part
def _move(options: Options, left_R: IntArray, option_J: IntArray, j: int, new: int) -> None:
    tenant = options.tenant_J[j]
    for o, sign in ((option_J[j], 1), (new, -1)):
        if o != WAIT:
            left_R[options.type_JO[j, o]] += sign * options.gpus_JO[j, o]
            if tenant >= 0:
                left_R[tenant] += sign * options.gpus_JO[j, o]
    option_J[j] = new


@compiled_part
def _repair(options: Options, option_J: IntArray, left_R: IntArray) -> None:
    """Step jobs down, where that costs least per GPU of what is short, until all fits."""
    num_jobs, num_options = options.value_JO.shape
    for r in range(len(left_R)):
        while left_R[r] < 0:
            best_j, best_o, least = -1, WAIT, np.inf
            for j in range(num_jobs):
                old = option_J[j]
                if old == WAIT or (options.type_JO[j, old] != r and options.tenant_J[j] != r):
                    continue
                for o in range(-1, num_options):
                    if o != WAIT and (
                        options.value_JO[j, o] <= 0.0
                        or options.type_JO[j, o] != options.type_JO[j, old]
                        or options.gpus_JO[j, o] >= options.gpus_JO[j, old]
                    ):
                        continue
                    value = 0.0 if o == WAIT else options.value_JO[j, o]
                    gpus = options.gpus_JO[j, old] - (0 if o == WAIT else options.gpus_JO[j, o])
                    # More than is short helps no further.
                    loss = (options.value_JO[j, old] - value) / min(gpus, -left_R[r])
                    if loss < least:
                        best_j, best_o, least = j, o, loss
            _move(options, left_R, option_J, best_j, best_o)


@compiled_part
def _fill(options: Options, option_J: IntArray, left_R: IntArray, price_R: FloatArray) -> None:
    """Let jobs step to options that bring more, the most first beyond what they cost at `price_R`."""
    num_jobs, num_options = options.value_JO.shape
    for _ in range(4 * num_jobs):
        best_j, best_o, most = -1, WAIT, 0.0
        for j in range(num_jobs):
            old = option_J[j]
            now = 0.0 if old == WAIT else options.value_JO[j, old]
            for o in range(num_options):
                gain = options.value_JO[j, o] - now
                if gain <= 1e-12 * max(now, 1e-300) or options.value_JO[j, o] <= 0.0:
                    continue
                if not _fits(options, left_R, j, old, o):
                    continue
                price = price_R[options.type_JO[j, o]]
                cost = price * (options.gpus_JO[j, o] - (0 if old == WAIT else options.gpus_JO[j, old]))
                rank = gain / max(cost, 1e-12) if cost > 0.0 else 1e12 * (1.0 + gain)
                if rank > most:
                    best_j, best_o, most = j, o, rank
        if best_j < 0:
            return
        _move(options, left_R, option_J, best_j, best_o)


@compiled_part
def _open(options: Options, price_R: FloatArray, slack: float) -> BoolArray:
    """Return which options may be in a choice whose value is at most `slack` below the bound at `price_R`."""
    num_options = options.value_JO.shape[1]
    open_JO = np.zeros(options.value_JO.shape, np.bool_)
    net_O = np.empty(num_options)
    for j in range(len(options.tenant_J)):
        tenant, most = options.tenant_J[j], 0.0
        extra = price_R[tenant] if tenant >= 0 else 0.0
        for o in range(num_options):
            net_O[o] = -np.inf
            if options.value_JO[j, o] > 0.0:
                price = price_R[options.type_JO[j, o]] + extra
                net_O[o] = options.value_JO[j, o] - price * options.gpus_JO[j, o]
                most = max(most, net_O[o])
        for o in range(num_options):
            open_JO[j, o] = most - net_O[o] <= slack
    return open_JO


@compiled_part
def _moved(options: Options, open_JO: BoolArray, anew_T: BoolArray) -> tuple[IntArray, int]:
    """Return the jobs with open options on the types `anew_T`, and the inner steps of `_anew`."""
    rows, states, count = np.zeros(len(options.tenant_J), np.bool_), 1, 0
    for t in range(options.num_types):
        if anew_T[t]:
            states *= options.capacity_R[t] + 1
    for j in range(len(rows)):
        for o in range(open_JO.shape[1]):
            if open_JO[j, o] and anew_T[options.type_JO[j, o]]:
                rows[j] = True
                count += 1
    return np.flatnonzero(rows), states * (count + rows.sum())


@compiled_part
def _anew(
    options: Options, option_J: IntArray, open_JO: BoolArray, anew_T: BoolArray, price_R: FloatArray
) -> IntArray:
    """Return the best choice where all GPUs of the types `anew_T` are given out anew.

    Each job has an open option there, or what it has elsewhere. Quotas count by their prices.
    """
    stride_T, states = np.zeros(options.num_types, np.int64), 1
    for t in range(options.num_types):
        if anew_T[t]:
            stride_T[t] = states
            states *= options.capacity_R[t] + 1
    found_J = option_J.copy()
    for j in range(len(found_J)):
        if found_J[j] != WAIT and anew_T[options.type_JO[j, found_J[j]]]:
            found_J[j] = WAIT
    rows = _moved(options, open_JO, anew_T)[0]
    best, more = np.zeros(states), np.zeros(states)
    choice_RS = np.empty((len(rows), states), np.int16)
    for row in range(len(rows)):
        j = rows[row]
        price = price_R[options.tenant_J[j]] if options.tenant_J[j] >= 0 else 0.0
        kept = 0.0
        if found_J[j] != WAIT:
            kept = options.value_JO[j, found_J[j]] - price * options.gpus_JO[j, found_J[j]]
        more[:] = best + kept
        choice_RS[row] = found_J[j]
        for o in range(open_JO.shape[1]):
            gpus, of_type = options.gpus_JO[j, o], options.type_JO[j, o]
            if not (open_JO[j, o] and anew_T[of_type] and gpus <= options.capacity_R[of_type]):
                continue
            value = options.value_JO[j, o] - price * gpus
            step, period = gpus * stride_T[of_type], (options.capacity_R[of_type] + 1) * stride_T[of_type]
            for begin in range(0, states, period):
                for s in range(begin + step, begin + period):
                    if best[s - step] + value > more[s]:
                        more[s] = best[s - step] + value
                        choice_RS[row, s] = o
        best, more = more, best
    left = states - 1
    for row in range(len(rows) - 1, -1, -1):
        j, o = rows[row], choice_RS[row, left]
        found_J[j] = o
        if o != WAIT and anew_T[options.type_JO[j, o]]:
            left -= options.gpus_JO[j, o] * stride_T[options.type_JO[j, o]]
    return found_J


@compiled_part
def _tried(
    options: Options, option_J: IntArray, anew_T: BoolArray, proof: tuple[FloatArray, float], budget: int
) -> tuple[IntArray, int]:
    """Return `_anew` made lawful, and its steps; if those are more than `budget`, `option_J` and 0.

    proof: prices and the bound that they prove.
    """
    price_R, bound = proof
    slack = bound - worth(options, option_J) + ROUNDING * bound
    open_JO = _open(options, price_R, slack)
    steps = _moved(options, open_JO, anew_T)[1]
    if steps > budget:
        return option_J, 0
    tried_J = _anew(options, option_J, open_JO, anew_T, price_R)
    left_R = options.capacity_R - used(options, tried_J)
    _repair(options, tried_J, left_R)
    _fill(options, tried_J, left_R, price_R)
    return tried_J, steps


@compiled_part
def _better(options: Options, option_J: IntArray, proof: tuple[FloatArray, float]) -> tuple[IntArray, bool]:
    """Return a choice that is no worse than `option_J`, and whether none is better."""
    num_types, budget = options.num_types, MAX_EXACT_STEPS
    value, gains = worth(options, option_J), num_types > 1
    while gains:
        gains = False
        for first in range(num_types):
            for second in range(first, num_types):
                anew_T = np.zeros(num_types, np.bool_)
                anew_T[first] = anew_T[second] = True
                tried_J, steps = _tried(options, option_J, anew_T, proof, budget)
                budget -= steps
                if worth(options, tried_J) > value:
                    option_J, value, gains = tried_J, worth(options, tried_J), True
    tried_J, steps = _tried(options, option_J, np.ones(num_types, np.bool_), proof, budget)
    if worth(options, tried_J) >= value:
        option_J = tried_J
    return option_J, steps > 0 and len(options.capacity_R) == num_types


@compiled
def solve(options: Options) -> Choice:
    """Return a choice of nearly the most value, and the bound that proves how near."""
    option_J = np.full(len(options.tenant_J), WAIT, np.int64)
    price_R = np.zeros(len(options.capacity_R))
    bound = at_prices(options, price_R, option_J)
    if (options.capacity_R - used(options, option_J)).min() > 0:  # each job has its best: GPUs cost nothing
        value = worth(options, option_J)
        return Choice(option_J, value, max(bound, value), price_R)
    price_R, bound = prices(options)
    at_prices(options, price_R, option_J)
    left_R = options.capacity_R - used(options, option_J)
    _repair(options, option_J, left_R)
    _fill(options, option_J, left_R, price_R)
    if len(price_R) > 1:
        price_R, bound = tighter(options, (price_R, bound), worth(options, option_J))
    option_J, exact = _better(options, option_J, (price_R, bound))
    value = worth(options, option_J)
    return Choice(option_J, value, value if exact else max(bound, value), price_R)
