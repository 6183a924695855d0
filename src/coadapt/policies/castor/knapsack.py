"""The round's program: one option per job at most, its GPUs within what each type and tenant has.

Axes: J jobs, O options of a job, R resources (GPU types, then tenants with a quota).
"""

# max sum_j value[j, o_j]  subject to  sum of gpus over type t <= N_t, over tenant q <= Q_q.
#
# One type and no quota in the way, and not too large: dynamic programming over GPUs, exact.
#
# Else Lagrangian duality. For prices u_r >= 0,  L(u) = sum_j max(0, max_o value - (u_type + u_tenant) gpus)
# + sum_r u_r C_r  is at least the value of every lawful choice, whatever u is: a poor search costs tightness,
# never truth. L is convex, and its slope along u_r is C_r minus what is used of r, so each price is found by
# halving, in turns. The choice at these prices uses about what there is; where too much, jobs step down where
# that costs least per GPU; then what is free goes where it brings most per GPU, until nothing fits. At one
# resource the gap is less than the value of one job's step, whatever the number of jobs.

from typing import NamedTuple

import numpy as np

from coadapt.goodput.compiled import compiled, compiled_part
from coadapt.policies.castor.arrays import FloatArray, IntArray

MAX_EXACT_STEPS = 20_000_000  # inner steps of the dynamic program (measured: about 1 ns each)
TURNS = 3  # over all prices
HALVINGS = 40  # of the interval in which a price is searched
NEVER = -1.0  # value of an option that is not there
WAIT = -1


class Options(NamedTuple):
    """value_JO: of each option, below 0 where there is none. gpus_JO, type_JO: what it takes. tenant_J: a
    resource that the job's options use besides, or -1. capacity_R: GPUs of each resource, the types first.
    """

    value_JO: FloatArray
    gpus_JO: IntArray
    type_JO: IntArray
    tenant_J: IntArray
    capacity_R: IntArray
    num_types: int


class Choice(NamedTuple):
    """option_J: index, or WAIT. value: their sum; bound: no lawful choice has more. price_R: proves it."""

    option_J: IntArray
    value: float
    bound: float
    price_R: FloatArray


@compiled_part
def _exact(options: Options) -> IntArray:
    """Return the best choice within capacity_R[0] alone."""
    num_jobs, num_options = options.value_JO.shape
    num_gpus = options.capacity_R[0]
    best = np.zeros(num_gpus + 1)
    choice_JG = np.full((num_jobs, num_gpus + 1), WAIT, np.int16)
    for j in range(num_jobs):
        for g in range(num_gpus, -1, -1):
            most = best[g]
            for o in range(num_options):
                gpus, value = options.gpus_JO[j, o], options.value_JO[j, o]
                if value > 0.0 and gpus <= g and best[g - gpus] + value > most:
                    most = best[g - gpus] + value
                    choice_JG[j, g] = o
            best[g] = most
    option_J = np.full(num_jobs, WAIT, np.int64)
    left = num_gpus
    for j in range(num_jobs - 1, -1, -1):
        option_J[j] = choice_JG[j, left]
        if option_J[j] != WAIT:
            left -= options.gpus_JO[j, option_J[j]]
    return option_J


@compiled_part
def _used(options: Options, option_J: IntArray) -> IntArray:
    used_R = np.zeros(len(options.capacity_R), np.int64)
    for j in range(len(option_J)):
        if option_J[j] != WAIT:
            gpus = options.gpus_JO[j, option_J[j]]
            used_R[options.type_JO[j, option_J[j]]] += gpus
            if options.tenant_J[j] >= 0:
                used_R[options.tenant_J[j]] += gpus
    return used_R


@compiled_part
def _at_prices(options: Options, price_R: FloatArray, option_J: IntArray) -> float:
    """Write the choice at `price_R` into `option_J`; return the bound that they prove."""
    total = 0.0
    for r in range(len(price_R)):
        total += price_R[r] * options.capacity_R[r]
    for j in range(len(option_J)):
        option_J[j], most = WAIT, 0.0
        tenant = options.tenant_J[j]
        extra = price_R[tenant] if tenant >= 0 else 0.0
        for o in range(options.value_JO.shape[1]):
            if options.value_JO[j, o] > 0.0:
                price = price_R[options.type_JO[j, o]] + extra
                net = options.value_JO[j, o] - price * options.gpus_JO[j, o]
                if net > most:
                    option_J[j], most = o, net
        total += most
    return total


@compiled_part
def _prices(options: Options) -> tuple[FloatArray, float]:
    """Return prices, and the least bound that was met on the way to them."""
    num_resources = len(options.capacity_R)
    option_J = np.full(len(options.tenant_J), WAIT, np.int64)
    price_R, best_R = np.zeros(num_resources), np.zeros(num_resources)
    bound = _at_prices(options, price_R, option_J)
    highest = 0.0
    for j in range(options.value_JO.shape[0]):
        for o in range(options.value_JO.shape[1]):
            if options.value_JO[j, o] > 0.0:
                highest = max(highest, options.value_JO[j, o] / options.gpus_JO[j, o])
    for _ in range(1 if num_resources == 1 else TURNS):
        for r in range(num_resources):
            low, high = 0.0, highest
            for _halving in range(HALVINGS):
                price_R[r] = 0.5 * (low + high)
                proven = _at_prices(options, price_R, option_J)
                if proven < bound:
                    bound = proven
                    best_R[:] = price_R
                if _used(options, option_J)[r] > options.capacity_R[r]:
                    low = price_R[r]
                else:
                    high = price_R[r]
                if high - low <= 1e-12 * highest:
                    break
            price_R[r] = high
            proven = _at_prices(options, price_R, option_J)
            if proven < bound:
                bound = proven
                best_R[:] = price_R
    return best_R, bound


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


@compiled
def solve(options: Options) -> Choice:
    """Return a choice of nearly the most value, and the bound that proves how near."""
    num_jobs, num_options = options.value_JO.shape
    option_J = np.full(num_jobs, WAIT, np.int64)
    price_R = np.zeros(len(options.capacity_R))
    bound = _at_prices(options, price_R, option_J)
    if (options.capacity_R - _used(options, option_J)).min() > 0:  # each job has its best: GPUs cost nothing
        value = _worth(options, option_J)
        return Choice(option_J, value, max(bound, value), price_R)
    price_R, bound = _prices(options)
    option_J[:] = WAIT
    exact = options.num_types == 1 and num_jobs * num_options * options.capacity_R[0] <= MAX_EXACT_STEPS
    if exact:
        option_J = _exact(options)
        bound = min(bound, _worth(options, option_J))
    else:
        _at_prices(options, price_R, option_J)
    left_R = options.capacity_R - _used(options, option_J)
    if not exact or left_R.min() < 0:
        _repair(options, option_J, left_R)
        _fill(options, option_J, left_R, price_R)
    value = _worth(options, option_J)
    return Choice(option_J, value, max(bound, value), price_R)


@compiled_part
def _worth(options: Options, option_J: IntArray) -> float:
    total = 0.0
    for j in range(len(option_J)):
        if option_J[j] != WAIT:
            total += options.value_JO[j, option_J[j]]
    return total
