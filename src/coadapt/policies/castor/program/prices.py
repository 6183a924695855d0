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

from coadapt.goodput.compiled import compiled_lean, lean_part, variable
from coadapt.policies.castor.arrays import FloatArray, IntArray

TURNS = 3  # over all prices
HALVINGS = 40  # of the interval in which a price is searched
SLOPE_STEPS = 60  # (tried: 200, no tighter)
NEVER = -1.0  # value of an option that is not there
WAIT = variable(-1)


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


@compiled_lean
def spare(options: Options, option_J: IntArray, left_R: IntArray) -> float:
    """Write what a choice leaves of each resource (below 0: short); return what it is worth."""
    total = 0.0
    for r in range(len(left_R)):
        left_R[r] = options.capacity_R[r]
    for j in range(len(option_J)):
        o = option_J[j]
        if o != WAIT:
            left_R[options.type_JO[j, o]] -= options.gpus_JO[j, o]
            if options.tenant_J[j] >= 0:
                left_R[options.tenant_J[j]] -= options.gpus_JO[j, o]
            total += options.value_JO[j, o]
    return total


@compiled_lean
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


class Search(NamedTuple):
    """A search for prices. best_R: those that proved least; price_R, option_J, left_R: of the last step."""

    best_R: FloatArray
    price_R: FloatArray
    option_J: IntArray
    left_R: IntArray


def search_of(options: Options, best_R: FloatArray) -> Search:
    """Return a search that begins at `best_R`."""
    return Search(best_R, best_R.copy(), np.empty_like(options.tenant_J), np.empty_like(options.capacity_R))


@lean_part
def _prove(options: Options, search: Search, bound: float) -> float:
    """Write the choice at the present prices and what it leaves; return the bound that they prove.

    They are kept if that is below `bound`.
    """
    proven = at_prices(options, search.price_R, search.option_J)
    spare(options, search.option_J, search.left_R)
    if proven < bound:
        for r in range(len(search.best_R)):
            search.best_R[r] = search.price_R[r]
    return proven


@compiled_lean
def halve(options: Options, search: Search) -> float:
    """Search prices by halving from 0 on; return the least bound that was met on the way to them."""
    price_R = search.price_R
    bound = at_prices(options, price_R, search.option_J)
    highest = 0.0
    for j in range(options.value_JO.shape[0]):
        for o in range(options.value_JO.shape[1]):
            if options.value_JO[j, o] > 0.0:
                highest = max(highest, options.value_JO[j, o] / options.gpus_JO[j, o])
    for _ in range(1 if len(price_R) == 1 else TURNS):
        for r in range(len(price_R)):
            low, high = 0.0, highest
            for _halving in range(HALVINGS):
                price_R[r] = 0.5 * (low + high)
                bound = min(bound, _prove(options, search, bound))
                if search.left_R[r] < 0:
                    low = price_R[r]
                else:
                    high = price_R[r]
                if high - low <= 1e-12 * highest:
                    break
            price_R[r] = high
            bound = min(bound, _prove(options, search, bound))
    return bound


@compiled_lean
def descend(options: Options, search: Search, bound: float, value: float) -> float:
    """Search on by steps down the bound's slope (Polyak; value: of any choice); return a bound no higher.

    One price was found by halving: nothing is left to do.
    """
    price_R = search.price_R
    for _ in range(SLOPE_STEPS if len(price_R) > 1 else 0):
        proven = _prove(options, search, bound)
        bound = min(bound, proven)
        square = 0.0
        for r in range(len(price_R)):
            if price_R[r] > 0.0 or search.left_R[r] <= 0:
                square += float(search.left_R[r]) ** 2
        if square <= 0.0:
            break
        for r in range(len(price_R)):
            if price_R[r] > 0.0 or search.left_R[r] <= 0:
                step = search.left_R[r] * (proven - value) / square
                price_R[r] = max(price_R[r] - step, 0.0)
            else:
                price_R[r] = max(price_R[r], 0.0)
    return bound
