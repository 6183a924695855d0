"""The round's program: one option per job at most, its GPUs within what each type and
tenant has.

Axes: J jobs, O options of a job, R resources (GPU types, then tenants with a quota).
"""

# The choice at the prices that prove most uses about what there is; lawful.py makes it
# one that can be had.
#
# With several types that was 2.3 % below the best in the mean of rounds on Sia's
# cluster, and up to 18 %: a job can take the place of another only once that one has
# found its place elsewhere. Whoever found none waited, round after round. So the GPUs
# of two types at a time are given out anew, by dynamic programming, while jobs
# elsewhere may stay there, until no two types gain (0.01 % below the best); in the end
# those of all types. No choice that is better than the one at hand has an option that
# costs more at these prices than it is below their bound (fixing by reduced costs), so
# few options are left. Where all types at once are few enough steps, nothing is better
# than what is found; quotas are counted by their prices, then kept as above.

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from coadapt.goodput.compiled import compiled_lean
from coadapt.policies.castor.arrays import BoolArray, FloatArray, IntArray
from coadapt.policies.castor.program.lawful import make_lawful
from coadapt.policies.castor.program.prices import (
    WAIT,
    Options,
    at_prices,
    descend,
    halve,
    search_of,
    spare,
)

# inner steps of all dynamic programs of a round (measured: about 1 ns each)
MAX_EXACT_STEPS = 20_000_000
ROUNDING = 1e-12  # of the bound


class Choice(NamedTuple):
    """option_J: index, or WAIT. value: their sum; bound: no lawful choice has more.
    price_R: proves it.
    """

    option_J: IntArray
    value: float
    bound: float
    price_R: FloatArray


class _Open(NamedTuple):
    """What a program anew is of. anew_T: types whose GPUs are given out; stride_T: of
    them in its states.

    open_JO: that may be taken; rows: jobs that have some there, `_open` says how many.
    net_O: scratch.
    """

    anew_T: BoolArray
    stride_T: IntArray
    open_JO: BoolArray
    rows: IntArray
    net_O: FloatArray


@compiled_lean
def _open(
    options: Options, price_R: FloatArray, slack: float, room: _Open
) -> tuple[int, int]:
    """Write the options that may be in a choice whose value is at most `slack` below
    the bound at `price_R`.

    Returns how many rows there are, and how many options are open in them on types that
    are given out anew.
    """
    num_rows = 0
    count = 0
    net_O = room.net_O
    for j in range(len(options.tenant_J)):
        tenant = options.tenant_J[j]
        most = 0.0
        before = count
        extra = price_R[tenant] if tenant >= 0 else 0.0
        for o in range(len(net_O)):
            net_O[o] = -np.inf
            if options.value_JO[j, o] > 0.0:
                price = price_R[options.type_JO[j, o]] + extra
                net_O[o] = options.value_JO[j, o] - price * options.gpus_JO[j, o]
                most = max(most, net_O[o])
        for o in range(len(net_O)):
            room.open_JO[j, o] = most - net_O[o] <= slack
            if room.open_JO[j, o] and room.anew_T[options.type_JO[j, o]]:
                count += 1
        if count > before:
            room.rows[num_rows] = j
            num_rows += 1
    return num_rows, count


class _Table(NamedTuple):
    """Scratch of a program anew: best values by what is used, before a row and after
    it; choices by row.
    """

    value_2S: FloatArray
    choice_RS: NDArray[np.int16]


@compiled_lean
def _anew(
    options: Options, found_J: IntArray, room: _Open, price_R: FloatArray, table: _Table
) -> None:
    """Write the best choice where all GPUs of some types are given out anew.

    Each job has an open option there, or what it has elsewhere. Quotas count by their
    prices.
    """
    anew_T = room.anew_T
    stride_T = room.stride_T
    open_JO = room.open_JO
    value_2S, choice_RS = table
    num_rows, states = choice_RS.shape
    for j in range(len(found_J)):
        if found_J[j] != WAIT and anew_T[options.type_JO[j, found_J[j]]]:
            found_J[j] = WAIT
    for row in range(num_rows):
        j = room.rows[row]
        best_S = value_2S[row % 2]
        more_S = value_2S[1 - row % 2]
        price = price_R[options.tenant_J[j]] if options.tenant_J[j] >= 0 else 0.0
        kept = 0.0
        if found_J[j] != WAIT:
            kept = (
                options.value_JO[j, found_J[j]] - price * options.gpus_JO[j, found_J[j]]
            )
        for s in range(states):
            more_S[s] = best_S[s] + kept
            choice_RS[row, s] = found_J[j]
        for o in range(open_JO.shape[1]):
            gpus = options.gpus_JO[j, o]
            of_type = options.type_JO[j, o]
            if not (
                open_JO[j, o]
                and anew_T[of_type]
                and gpus <= options.capacity_R[of_type]
            ):
                continue
            value = options.value_JO[j, o] - price * gpus
            step = gpus * stride_T[of_type]
            period = (options.capacity_R[of_type] + 1) * stride_T[of_type]
            for begin in range(0, states, period):
                from_S = best_S[begin : begin + period - step]
                to_S = more_S[begin + step : begin + period]
                choice_S = choice_RS[row, begin + step : begin + period]
                for s in range(len(from_S)):
                    more = from_S[s] + value
                    better = more > to_S[s]
                    to_S[s] = more if better else to_S[s]
                    choice_S[s] = o if better else choice_S[s]
    left = states - 1
    for row in range(num_rows - 1, -1, -1):
        j = room.rows[row]
        o = choice_RS[row, left]
        found_J[j] = o
        if o != WAIT and anew_T[options.type_JO[j, o]]:
            left -= options.gpus_JO[j, o] * stride_T[options.type_JO[j, o]]


@dataclass(slots=True)
class _Found:
    """The best choice so far, and its value. price_R, bound: a proof that none is
    better than that bound.

    budget: inner steps that may yet be taken.
    """

    options: Options
    option_J: IntArray
    value: float
    price_R: FloatArray
    bound: float
    budget: int = MAX_EXACT_STEPS

    def try_anew(self, anew_T: BoolArray, *, alike: bool = False) -> bool:
        """Give the GPUs of these types out anew; return whether that took steps, and
        few enough.

        What is found is taken if it is better, or (alike) no worse.
        """
        options = self.options
        capacity_R = self.options.capacity_R
        stride_T = np.zeros(options.num_types, np.int64)
        states = 1
        for t in np.flatnonzero(anew_T).tolist():
            stride_T[t] = states
            states *= int(capacity_R[t]) + 1
        num_jobs, num_options = options.value_JO.shape
        open_JO = np.empty((num_jobs, num_options), np.bool_)
        room = _Open(
            anew_T,
            stride_T,
            open_JO,
            np.empty(num_jobs, np.int64),
            np.empty(num_options),
        )
        slack = self.bound - self.value + ROUNDING * self.bound
        num_rows, count = _open(options, self.price_R, slack, room)
        steps = states * (count + num_rows)
        if steps > self.budget:
            return False
        self.budget -= steps
        found_J = self.option_J.copy()
        table = _Table(np.zeros((2, states)), np.empty((num_rows, states), np.int16))
        _anew(options, found_J, room, self.price_R, table)
        value = make_lawful(options, found_J, self.price_R)
        if value > self.value or (alike and value == self.value):
            self.option_J = found_J
            self.value = value
        return steps > 0

    def improve(self) -> bool:
        """Give out two types at a time anew until none gain, then all; return whether
        none is better.
        """
        num_types = self.options.num_types
        before = -np.inf if num_types > 1 else self.value
        while self.value > before:
            before = self.value
            for first in range(num_types):
                for second in range(first, num_types):
                    anew_T = np.zeros(num_types, np.bool_)
                    anew_T[first] = anew_T[second] = True
                    self.try_anew(anew_T)
        exact = self.try_anew(np.ones(num_types, np.bool_), alike=True)
        return exact and len(self.options.capacity_R) == num_types


def prove(options: Options) -> tuple[float, FloatArray]:
    """Return a bound of what lawful choices are worth, and prices that prove it."""
    option_J = np.empty_like(options.tenant_J)
    left_R = np.empty_like(options.capacity_R)
    free_R = np.zeros(len(left_R))
    bound = at_prices(options, free_R, option_J)
    spare(options, option_J, left_R)
    if left_R.min() >= 0:  # each job has its best: GPUs cost nothing
        return bound, free_R
    search = search_of(options, free_R)
    return halve(options, search, bound), search.best_R


def solve(options: Options) -> Choice:
    """Return a choice of nearly the most value, and the bound that proves how near."""
    option_J = np.empty_like(options.tenant_J)
    left_R = np.empty_like(options.capacity_R)
    bound, price_R = prove(options)
    at_prices(options, price_R, option_J)
    value = spare(options, option_J, left_R)
    if left_R.min() >= 0 and not price_R.any():
        return Choice(option_J, value, max(bound, value), price_R)
    value = make_lawful(options, option_J, price_R)
    search = search_of(options, price_R)
    bound = descend(options, search, bound, value)
    found = _Found(options, option_J, value, search.best_R, bound)
    exact = found.improve()
    return Choice(
        found.option_J,
        found.value,
        found.value if exact else max(bound, found.value),
        found.price_R,
    )
