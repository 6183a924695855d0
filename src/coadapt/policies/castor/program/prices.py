"""The round's program, and prices of its GPUs: each set of them proves what no choice
can be worth more than.

Axes: J jobs, O options of a job, R resources (GPU types, then tenants with a quota).
"""

# max sum_j value[j, o_j]  subject to  sum of gpus over type t <= N_t, over tenant q <=
# Q_q.
#
# Lagrangian duality. For prices u_r >= 0,  L(u) = sum_j max(0, max_o value - (u_type +
# u_tenant) gpus)
# + sum_r u_r C_r  is at least the value of every lawful choice, whatever u is: a poor
#   search costs tightness,
# never truth. L is convex, and its slope along u_r is C_r minus what is used of r, so
# each price is found by halving, in turns. That ends in kinks where several prices
# would have to move at once; steps down the whole slope go on from there (of 1,024 GPUs
# of three types it takes the gap from 0.64 to 0.26 %).

from typing import NamedTuple

import numpy as np

from coadapt.goodput.compiled import compiled_lean, lean_part, variable
from coadapt.policies.castor.arrays import FloatArray, IntArray

TURNS = 3  # over all prices
# a price is sought within this factor of what it was a turn before, then farther
NEAR = 1.1
HALVINGS = 60  # of the interval in which a price is searched
FAR = 4.0  # bounds further apart are halved in logarithms (1)
# Of the highest price: what is less is none. What is owed may make one worth 1e9 times
# all others (1).
LEAST = 1e-18
SLOPE_STEPS = 60  # (tried: 200, no tighter)
ROUNDING = 1e-12  # of a price, and of a bound: what is less is nothing (1)
NEVER = -1.0  # value of an option that is not there
WAIT = variable(-1)
LOW, HIGH, OPEN = range(3)  # of Search.between_XJ


class Options(NamedTuple):
    """value_JO: of each option, below 0 where there is none. gpus_JO, type_JO: what it
    takes. tenant_J: a resource that the job's options use besides, or -1. capacity_R:
    GPUs of each resource, the types first.
    """

    value_JO: FloatArray
    gpus_JO: IntArray
    type_JO: IntArray
    tenant_J: IntArray
    capacity_R: IntArray
    num_types: int


@compiled_lean
def spare(options: Options, option_J: IntArray, left_R: IntArray) -> float:
    """Write what a choice leaves of each resource (below 0: short); return what it is
    worth.
    """
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


@lean_part
def _best(options: Options, price_R: FloatArray, j: int) -> tuple[int, float]:
    """Return the option that earns job j most beyond its price, and that; WAIT and 0:
    none does.
    """
    best = WAIT
    most = 0.0
    tenant = options.tenant_J[j]
    extra = price_R[tenant] if tenant >= 0 else 0.0
    for o in range(options.value_JO.shape[1]):
        if options.value_JO[j, o] > 0.0:
            price = price_R[options.type_JO[j, o]] + extra
            net = options.value_JO[j, o] - price * options.gpus_JO[j, o]
            if net > most:
                best = o
                most = net
    return best, most


@compiled_lean
def at_prices(options: Options, price_R: FloatArray, option_J: IntArray) -> float:
    """Write the choice at `price_R` into `option_J`; return the bound that they
    prove.
    """
    total = 0.0
    for r in range(len(price_R)):
        total += price_R[r] * options.capacity_R[r]
    for j in range(len(option_J)):
        option_J[j], most = _best(options, price_R, j)
        total += most
    return total


class Search(NamedTuple):
    """A search for prices. best_R: those that proved least; price_R, option_J, left_R:
    of the last step.

    between_XJ: of halving: choices at its lower and its higher price, and jobs of which
    these differ.
    """

    best_R: FloatArray
    price_R: FloatArray
    option_J: IntArray
    left_R: IntArray
    between_XJ: IntArray


def search_of(options: Options, best_R: FloatArray) -> Search:
    """Return a search that begins at `best_R`."""
    return Search(
        best_R,
        best_R.copy(),
        np.empty_like(options.tenant_J),
        np.empty_like(options.capacity_R),
        np.empty((3, len(options.tenant_J)), dtype=np.int64),
    )


@lean_part
def _prove(options: Options, search: Search, bound: float) -> float:
    """Write the choice at the present prices and what it leaves; return the bound that
    they prove.

    They are kept if that is below `bound`.
    """
    proven = at_prices(options, search.price_R, search.option_J)
    spare(options, search.option_J, search.left_R)
    if proven < bound:
        for r in range(len(search.best_R)):
            search.best_R[r] = search.price_R[r]
    return proven


@lean_part
def _used(options: Options, j: int, o: int, r: int) -> int:
    """Return how much of resource r job j uses by option o."""
    if o == WAIT or (options.type_JO[j, o] != r and options.tenant_J[j] != r):
        return 0
    gpus: int = options.gpus_JO[j, o]
    return gpus


@lean_part
def _ask(options: Options, search: Search, r: int, price: float, num_open: int) -> int:
    """Write what the first `num_open` of the open jobs choose if r has that price;
    return what they use.
    """
    used = 0
    open_J = search.between_XJ[OPEN]
    search.price_R[r] = price
    for place in range(num_open):
        search.option_J[place], _ = _best(options, search.price_R, open_J[place])
        used += _used(options, open_J[place], search.option_J[place], r)
    return used


@lean_part
def _note(search: Search, bound: int, num_open: int) -> None:
    """Keep what they chose as their choices at the lower, or the higher, price."""
    for place in range(num_open):
        search.between_XJ[bound, search.between_XJ[OPEN, place]] = search.option_J[
            place
        ]


@lean_part
def _halve_one(options: Options, search: Search, r: int, highest: float) -> None:
    """Write the least price of r at which no more of it is used than there is, others
    as they are.

    Who chooses alike at a lower and at a higher price does so between them, as what
    options earn beyond their price is linear in it. So few are asked again.
    """
    low_J, high_J, open_J = search.between_XJ
    capacity = options.capacity_R[r]
    num_open = len(open_J)
    certain = 0
    for j in range(num_open):
        open_J[j] = j
    low = search.price_R[r] / NEAR
    high = search.price_R[r] * NEAR
    if high <= 0.0 or _ask(options, search, r, high, num_open) > capacity:
        high = highest
        _ask(options, search, r, high, num_open)
    _note(search, HIGH, num_open)
    if _ask(options, search, r, low, num_open) <= capacity:
        if low <= 0.0:
            return
        high = low
        low = 0.0
        _note(search, HIGH, num_open)
        if _ask(options, search, r, low, num_open) <= capacity:
            return
    _note(search, LOW, num_open)
    for _ in range(HALVINGS):
        before = num_open
        num_open = 0
        for place in range(before):
            j = open_J[place]
            if low_J[j] == high_J[j]:
                certain += _used(options, j, low_J[j], r)
            else:
                open_J[num_open] = j
                num_open += 1
        least = max(low, LEAST * highest)
        middle = np.sqrt(least * high) if high > FAR * least else 0.5 * (low + high)
        if certain + _ask(options, search, r, middle, num_open) > capacity:
            low = middle
            _note(search, LOW, num_open)
        else:
            high = middle
            _note(search, HIGH, num_open)
        if high - low <= ROUNDING * high or high <= LEAST * highest:
            break
    search.price_R[r] = high


@compiled_lean
def halve(options: Options, search: Search, bound: float) -> float:
    """Search prices by halving from 0 on; return the least bound that was met on the
    way to them, or the one that 0 proves.
    """
    highest = 0.0
    for j in range(options.value_JO.shape[0]):
        for o in range(options.value_JO.shape[1]):
            if options.value_JO[j, o] > highest * options.gpus_JO[j, o]:
                highest = options.value_JO[j, o] / options.gpus_JO[j, o]
    num_resources = len(search.price_R)
    for _ in range(1 if num_resources == 1 else TURNS):
        for r in range(num_resources):
            _halve_one(options, search, r, highest)
            bound = min(bound, _prove(options, search, bound))
    return bound


@compiled_lean
def descend(options: Options, search: Search, bound: float, value: float) -> float:
    """Search on by steps down the bound's slope (Polyak; value: of any choice); return
    a bound no higher.

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
                price = price_R[r] - search.left_R[r] * (proven - value) / square
                none = price * options.capacity_R[r] <= ROUNDING * bound
                price_R[r] = 0.0 if none else price
    return bound
