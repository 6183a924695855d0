"""The round's program, and prices of its GPUs: each set of them proves what no choice can be worth more than.

Axes: J jobs, O options of a job, R resources (GPU types, then tenants with a quota).
"""

# max sum_j value[j, o_j]  subject to  sum of gpus over type t <= N_t, over tenant q <= Q_q.
#
# Lagrangian duality. For prices u_r >= 0,  L(u) = sum_j max(0, max_o value - (u_type + u_tenant) gpus)
# + sum_r u_r C_r  is at least the value of every lawful choice, whatever u is: a poor search costs tightness,
# never truth. L is convex, and its slope along u_r is C_r minus what is used of r, so each price is found by
# halving, in turns. That ends in kinks where several prices would have to move at once; steps down the whole
# slope go on from there (of 1,024 GPUs of three types it takes the gap from 0.64 to 0.26 %).

from typing import NamedTuple

import numpy as np

from coadapt.goodput.compiled import compiled_part
from coadapt.policies.castor.arrays import FloatArray, IntArray

TURNS = 3  # over all prices
HALVINGS = 40  # of the interval in which a price is searched
SLOPE_STEPS = 60  # (tried: 200, no tighter)
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


@compiled_part
def used(options: Options, option_J: IntArray) -> IntArray:
    used_R = np.zeros(len(options.capacity_R), np.int64)
    for j in range(len(option_J)):
        if option_J[j] != WAIT:
            gpus = options.gpus_JO[j, option_J[j]]
            used_R[options.type_JO[j, option_J[j]]] += gpus
            if options.tenant_J[j] >= 0:
                used_R[options.tenant_J[j]] += gpus
    return used_R


@compiled_part
def worth(options: Options, option_J: IntArray) -> float:
    total = 0.0
    for j in range(len(option_J)):
        if option_J[j] != WAIT:
            total += options.value_JO[j, option_J[j]]
    return total


@compiled_part
def at_prices(options: Options, price_R: FloatArray, option_J: IntArray) -> float:
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
def prices(options: Options) -> tuple[FloatArray, float]:
    """Return prices, and the least bound that was met on the way to them."""
    num_resources = len(options.capacity_R)
    option_J = np.full(len(options.tenant_J), WAIT, np.int64)
    price_R, best_R = np.zeros(num_resources), np.zeros(num_resources)
    bound = at_prices(options, price_R, option_J)
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
                proven = at_prices(options, price_R, option_J)
                if proven < bound:
                    bound = proven
                    best_R[:] = price_R
                if used(options, option_J)[r] > options.capacity_R[r]:
                    low = price_R[r]
                else:
                    high = price_R[r]
                if high - low <= 1e-12 * highest:
                    break
            price_R[r] = high
            proven = at_prices(options, price_R, option_J)
            if proven < bound:
                bound = proven
                best_R[:] = price_R
    return best_R, bound


@compiled_part
def tighter(options: Options, proof: tuple[FloatArray, float], value: float) -> tuple[FloatArray, float]:
    """Return prices that prove a bound no higher, by steps down its slope (Polyak; value: of any choice)."""
    best_R, bound = proof
    price_R, option_J = best_R.copy(), np.full(len(options.tenant_J), WAIT, np.int64)
    for _ in range(SLOPE_STEPS):
        proven = at_prices(options, price_R, option_J)
        if proven < bound:
            bound = proven
            best_R = price_R.copy()
        slope_R = (options.capacity_R - used(options, option_J)).astype(np.float64)
        for r in range(len(slope_R)):
            if price_R[r] <= 0.0 and slope_R[r] > 0.0:
                slope_R[r] = 0.0
        square = (slope_R**2).sum()
        if square <= 0.0:
            break
        price_R = np.maximum(price_R - slope_R * (proven - value) / square, 0.0)
    return best_R, bound
