"""Multiple-choice knapsack: at most one option per job, within the GPUs of types and
quotas.

Axes: J jobs, O options of a job, R resources (GPU types, then tenants with a quota).
"""

#     max sum_j value[j, o_j]   subject to   sum of gpus over type t    <= N_t,
#                                            sum of gpus over tenant q  <= Q_q.
#
# 1. Dual prices. For prices u_r >= 0, L(u) = sum_j max(0, max_o value - (u_type +
# u_tenant)
#    gpus) + sum_r u_r C_r is at least the value of every feasible choice (weak
#    duality), so a poor search costs tightness, never truth. L is convex and its slope
#    along u_r is C_r minus the use of r: each price is found by bisection, in turns.
#    That ends in kinks where several prices would have to move at once. Polyak steps
#    down the slope go on from there.
# 2. Greedy repair. What jobs would choose at these prices uses about all of each
# resource.
#    Jobs step down where that costs least per GPU until all fits, then step up where a
#    GPU brings most.
# 3. Dynamic programming. With several types (2) was 2.3 % below the best on Sia's
# cluster,
#    and up to 18 %: a job can take the place of another only once that one has found
#    its place elsewhere. So the GPUs of two types at a time are given out again,
#    exactly, while jobs elsewhere may stay there, until no two types gain; at last
#    those of all types. No better choice has an option that costs more at the prices
#    than the choice at hand is below the bound (fixing by reduced costs), so few
#    options are left.

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from coadapt.goodput.compiled import compiled_lean, lean_part, variable
from coadapt.policies.solvers.arrays import BoolArray, FloatArray, IntArray

WAIT = variable(-1)  # the choice of a job that gets nothing
NEVER = -1.0  # value of an option that does not exist
TURNS = 3  # of bisection over all prices
NEAR = 1.1  # a price is first sought within this factor of the last one
HALVINGS = 60  # of the interval in which a price is sought
LEAST_PRICE = (
    1e-18  # of the highest price; a reservation may be worth 1e9 times the rest
)
SLOPE_STEPS = 60  # of Polyak (200 are no tighter)
ROUNDING = 1e-12  # of a price or a bound
MAX_EXACT_STEPS = 20_000_000  # inner steps of all dynamic programs, about 1 ns each


class Options(NamedTuple):
    """What each job may choose.

    value_JO: of each option, <= 0 where it cannot be chosen. gpus_JO, type_JO: what it
    takes. tenant_J: the resource that all options of a job use besides, or -1.
    capacity_R: GPUs of each resource, the types first.
    """

    value_JO: FloatArray
    gpus_JO: IntArray
    type_JO: IntArray
    tenant_J: IntArray
    capacity_R: IntArray
    num_types: int


class Choice(NamedTuple):
    """A feasible choice. option_J: index of each job's option, or WAIT.

    value: their sum. bound: no feasible choice has more; price_R proves that.
    """

    option_J: IntArray
    value: float
    bound: float
    price_R: FloatArray


def solve(options: Options) -> Choice:
    """Return a choice of nearly the highest value, and a bound on any choice's
    value.
    """
    bound, price_R = prove(options)
    option_J = np.empty_like(options.tenant_J)
    left_R = np.empty_like(options.capacity_R)
    choose_at(options, price_R, option_J)
    value = leftover(options, option_J, left_R)
    if left_R.min() >= 0 and not price_R.any():
        return Choice(option_J, value, max(bound, value), price_R)
    value = make_feasible(options, option_J, price_R)
    bound, price_R = _descend(options, price_R, bound, value)
    found = _Search(options, option_J, value, price_R, bound)
    exact = found.improve()
    bound = found.value if exact else max(bound, found.value)
    return Choice(found.option_J, found.value, bound, price_R)


def prove(options: Options) -> tuple[float, FloatArray]:
    """Return a bound on the value of feasible choices, and dual prices that prove
    it.
    """
    option_J = np.empty_like(options.tenant_J)
    left_R = np.empty_like(options.capacity_R)
    price_R = np.zeros(len(left_R))
    best_R = price_R.copy()
    bound = choose_at(options, price_R, option_J)
    leftover(options, option_J, left_R)
    if left_R.min() >= 0:  # each job has its best option: GPUs cost nothing
        return bound, best_R
    positive_JO = options.value_JO > 0.0
    per_gpu_JO = options.value_JO[positive_JO] / options.gpus_JO[positive_JO]
    highest = float(per_gpu_JO.max(initial=0.0))
    for _ in range(1 if len(price_R) == 1 else TURNS):
        for r in range(len(price_R)):
            _bisect(options, price_R, variable(r), highest)
            proven = choose_at(options, price_R, option_J)
            if proven < bound:
                bound = proven
                best_R = price_R.copy()
    return bound, best_R


def _descend(
    options: Options, price_R: FloatArray, bound: float, value: float
) -> tuple[float, FloatArray]:
    """Search on by Polyak steps. value: of any feasible choice. One price is exact
    already.
    """
    option_J = np.empty_like(options.tenant_J)
    left_R = np.empty_like(options.capacity_R)
    best_R = price_R
    for _ in range(SLOPE_STEPS if len(price_R) > 1 else 0):
        proven = choose_at(options, price_R, option_J)
        leftover(options, option_J, left_R)
        if proven < bound:
            bound = proven
            best_R = price_R
        moves_R = (price_R > 0.0) | (left_R <= 0)
        square = float((left_R[moves_R].astype(np.float64) ** 2).sum())
        if square <= 0.0:
            break
        next_R = price_R - left_R * (proven - value) / square
        none_R = next_R * options.capacity_R <= ROUNDING * bound
        price_R = np.where(moves_R, np.where(none_R, 0.0, next_R), price_R)
    return bound, best_R


@lean_part
def _best(options: Options, price_R: FloatArray, j: int) -> tuple[int, float]:
    """Return the option that earns job j most beyond its price; WAIT and 0: none
    does.
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
def choose_at(options: Options, price_R: FloatArray, option_J: IntArray) -> float:
    """Write each job's best option at these prices; return the bound that they
    prove.
    """
    bound = 0.0
    for r in range(len(price_R)):
        bound += price_R[r] * options.capacity_R[r]
    for j in range(len(option_J)):
        option_J[j], most = _best(options, price_R, j)
        bound += most
    return bound


@compiled_lean
def leftover(options: Options, option_J: IntArray, left_R: IntArray) -> float:
    """Write what a choice leaves of each resource (< 0: short); return its value."""
    value = 0.0
    for r in range(len(left_R)):
        left_R[r] = options.capacity_R[r]
    for j in range(len(option_J)):
        o = option_J[j]
        if o != WAIT:
            _give(options, left_R, j, o, -1)
            value += options.value_JO[j, o]
    return value


@lean_part
def _give(options: Options, left_R: IntArray, j: int, o: int, sign: int) -> None:
    """Add to what is left (or take, sign -1) what option o of job j uses."""
    if o == WAIT:
        return
    left_R[options.type_JO[j, o]] += sign * options.gpus_JO[j, o]
    if options.tenant_J[j] >= 0:
        left_R[options.tenant_J[j]] += sign * options.gpus_JO[j, o]


@lean_part
def _use(options: Options, price_R: FloatArray, r: int, price: float) -> int:
    """Return the GPUs of resource r that jobs choose if it has this price; set the
    price.
    """
    used = 0
    price_R[r] = price
    for j in range(len(options.tenant_J)):
        o, _ = _best(options, price_R, j)
        if o != WAIT and (options.type_JO[j, o] == r or options.tenant_J[j] == r):
            used += options.gpus_JO[j, o]
    return used


@compiled_lean
def _bisect(options: Options, price_R: FloatArray, r: int, highest: float) -> None:
    """Set the price of r to the least at which no more than its capacity is chosen."""
    capacity = options.capacity_R[r]
    low = price_R[r] / NEAR
    high = price_R[r] * NEAR
    if high <= 0.0 or _use(options, price_R, r, high) > capacity:
        high = highest
    if _use(options, price_R, r, low) <= capacity:
        if low <= 0.0:
            return
        high = low
        low = 0.0
        if _use(options, price_R, r, low) <= capacity:
            return
    for _ in range(HALVINGS):
        least = max(low, LEAST_PRICE * highest)
        middle = np.sqrt(least * high) if high > 4.0 * least else 0.5 * (low + high)
        if _use(options, price_R, r, middle) > capacity:
            low = middle
        else:
            high = middle
        if high - low <= ROUNDING * high or high <= LEAST_PRICE * highest:
            break
    price_R[r] = high


def make_feasible(options: Options, option_J: IntArray, price_R: FloatArray) -> float:
    """Change a choice until it fits and leaves nothing that is wanted; return its
    value.
    """
    left_R = np.empty_like(options.capacity_R)
    leftover(options, option_J, left_R)
    _repair(options, option_J, left_R)
    _fill(options, option_J, left_R, price_R)
    return leftover(options, option_J, left_R)


@compiled_lean
def _repair(options: Options, option_J: IntArray, left_R: IntArray) -> None:
    """Let jobs step down, where a GPU of what is short costs least, until all fits."""
    for r in range(len(left_R)):
        while left_R[r] < 0:
            step_j = -1
            step_o = WAIT
            least = np.inf
            for j in range(len(option_J)):
                old = option_J[j]
                if old == WAIT:
                    continue
                if options.type_JO[j, old] != r and options.tenant_J[j] != r:
                    continue
                for o in range(-1, options.value_JO.shape[1]):
                    loss = _loss(options, j, old, o, -left_R[r])
                    if loss < least:
                        step_j = j
                        step_o = o
                        least = loss
            _give(options, left_R, step_j, option_J[step_j], 1)
            _give(options, left_R, step_j, step_o, -1)
            option_J[step_j] = step_o


@lean_part
def _loss(options: Options, j: int, old: int, o: int, short: int) -> float:
    """Return what job j loses per GPU of those short by going from `old` to fewer
    GPUs.
    """
    gpus = options.gpus_JO[j, old]
    loss: float = options.value_JO[j, old]
    if o != WAIT:
        if options.value_JO[j, o] <= 0.0 or options.gpus_JO[j, o] >= gpus:
            return np.inf
        if options.type_JO[j, o] != options.type_JO[j, old]:
            return np.inf
        gpus -= options.gpus_JO[j, o]
        loss -= options.value_JO[j, o]
    return loss / min(gpus, short) if loss > 0.0 else loss


@compiled_lean
def _fill(
    options: Options, option_J: IntArray, left_R: IntArray, price_R: FloatArray
) -> None:
    """Let jobs step to better options that fit, most gain per price first."""
    for _ in range(4 * len(option_J)):
        step_j = -1
        step_o = WAIT
        most = 0.0
        for j in range(len(option_J)):
            for o in range(options.value_JO.shape[1]):
                gain = _gain(options, left_R, price_R, j, option_J[j], o)
                if gain > most:
                    step_j = j
                    step_o = o
                    most = gain
        if step_j < 0:
            return
        _give(options, left_R, step_j, option_J[step_j], 1)
        _give(options, left_R, step_j, step_o, -1)
        option_J[step_j] = step_o


@lean_part
def _gain(
    options: Options, left_R: IntArray, price_R: FloatArray, j: int, old: int, o: int
) -> float:
    """Return what going from `old` to option o brings per price of the GPUs; 0: it
    cannot.
    """
    now = 0.0
    back = 0
    own_type = -1
    if old != WAIT:
        now = options.value_JO[j, old]
        back = options.gpus_JO[j, old]
        own_type = options.type_JO[j, old]
    gain = options.value_JO[j, o] - now
    if gain <= 1e-12 * max(now, 1e-300) or options.value_JO[j, o] <= 0.0:
        return 0.0
    gpus = options.gpus_JO[j, o]
    of_type = options.type_JO[j, o]
    tenant = options.tenant_J[j]
    if gpus - (back if of_type == own_type else 0) > left_R[of_type]:
        return 0.0
    if tenant >= 0 and gpus - back > left_R[tenant]:
        return 0.0
    cost = price_R[of_type] * (gpus - back)
    if cost > 0.0:
        return float(gain / max(cost, 1e-12))
    return float(1e12 * (1.0 + gain))


@compiled_lean
def _give_out(
    options: Options,
    option_J: IntArray,
    open_JO: BoolArray,
    stride_T: IntArray,
    price_R: FloatArray,
    value_2S: FloatArray,
    choice_JS: NDArray[np.int16],
) -> None:
    """Write the best choice where all GPUs of the types with a stride are given out
    again.

    Each job has an open option of these types, or what it has elsewhere. A state is how
    many GPUs of each such type are used: sum of used x stride. Quotas count by their
    prices. value_2S, choice_JS: scratch.
    """
    num_jobs, num_states = choice_JS.shape
    for j in range(num_jobs):
        old = option_J[j]
        if old != WAIT and stride_T[options.type_JO[j, old]] > 0:
            option_J[j] = WAIT
        old = option_J[j]
        from_S = value_2S[j % 2]
        to_S = value_2S[1 - j % 2]
        tenant = options.tenant_J[j]
        extra = price_R[tenant] if tenant >= 0 else 0.0
        kept = 0.0
        if old != WAIT:
            kept = options.value_JO[j, old] - extra * options.gpus_JO[j, old]
        for s in range(num_states):
            to_S[s] = from_S[s] + kept
            choice_JS[j, s] = old
        for o in range(open_JO.shape[1]):
            gpus = options.gpus_JO[j, o]
            of_type = options.type_JO[j, o]
            stride = stride_T[of_type]
            if not open_JO[j, o] or stride == 0 or gpus > options.capacity_R[of_type]:
                continue
            value = options.value_JO[j, o] - extra * gpus
            period = (options.capacity_R[of_type] + 1) * stride
            for begin in range(0, num_states, period):
                for s in range(begin + gpus * stride, begin + period):
                    more = from_S[s - gpus * stride] + value
                    better = more > to_S[s]
                    to_S[s] = more if better else to_S[s]
                    choice_JS[j, s] = o if better else choice_JS[j, s]
    state = num_states - 1
    for j in range(num_jobs - 1, -1, -1):
        o = choice_JS[j, state]
        option_J[j] = o
        if o != WAIT and stride_T[options.type_JO[j, o]] > 0:
            state -= options.gpus_JO[j, o] * stride_T[options.type_JO[j, o]]


@dataclass(slots=True)
class _Search:
    """The best choice so far and its value; price_R, bound: no choice is better than
    that.

    budget: inner steps of dynamic programs that may yet be taken.
    """

    options: Options
    option_J: IntArray
    value: float
    price_R: FloatArray
    bound: float
    budget: int = MAX_EXACT_STEPS

    def improve(self) -> bool:
        """Give out two types at a time until none gain, then all; return whether it is
        exact.
        """
        num_types = self.options.num_types
        before = -np.inf if num_types > 1 else self.value
        while self.value > before:
            before = self.value
            for first in range(num_types):
                for second in range(first, num_types):
                    self._give_out({first, second})
        exact = self._give_out(set(range(num_types)), take_equal=True)
        return exact and len(self.options.capacity_R) == num_types

    def _give_out(self, types: set[int], *, take_equal: bool = False) -> bool:
        """Give out these types again; return whether that took steps, and few enough.

        What is found is taken if it is better, or (take_equal) no worse.
        """
        options = self.options
        stride_T = np.zeros(options.num_types, np.int64)
        num_states = 1
        for t in sorted(types):
            stride_T[t] = num_states
            num_states *= int(options.capacity_R[t]) + 1
        open_JO = self._open()
        chosen_JO: BoolArray = open_JO & (stride_T[options.type_JO] > 0)
        some_J = np.asarray(chosen_JO.any(axis=1))
        steps = num_states * int(chosen_JO.sum() + some_J.sum())
        if steps > self.budget:
            return False
        self.budget -= steps
        found_J = self.option_J.copy()
        self._run(found_J, some_J, open_JO, stride_T, num_states)
        value = make_feasible(options, found_J, self.price_R)
        if value > self.value or (take_equal and value == self.value):
            self.option_J = found_J
            self.value = value
        return steps > 0

    def _open(self) -> BoolArray:
        """Return the options that a choice better than the one at hand may have."""
        options = self.options
        price_JO = self.price_R[options.type_JO]
        limited_J = options.tenant_J >= 0
        extra_J = np.where(limited_J, self.price_R[options.tenant_J], 0.0)
        net_JO = options.value_JO - (price_JO + extra_J[:, None]) * options.gpus_JO
        net_JO[options.value_JO <= 0.0] = -np.inf
        most_J = net_JO.max(axis=1, initial=0.0)
        slack = self.bound - self.value + ROUNDING * self.bound
        open_JO: BoolArray = most_J[:, None] - net_JO <= slack
        return open_JO

    def _run(
        self,
        found_J: IntArray,
        some_J: BoolArray,
        open_JO: BoolArray,
        stride_T: IntArray,
        num_states: int,
    ) -> None:
        """Run the dynamic program over jobs with an open option there; others keep
        theirs.
        """
        options = self.options
        away_J = ~some_J & (found_J != WAIT)
        away_J[away_J] &= stride_T[options.type_JO[away_J, found_J[away_J]]] > 0
        found_J[away_J] = WAIT
        own_J = found_J[some_J]
        part = options._replace(
            value_JO=options.value_JO[some_J],
            gpus_JO=options.gpus_JO[some_J],
            type_JO=options.type_JO[some_J],
            tenant_J=options.tenant_J[some_J],
        )
        value_2S = np.zeros((2, num_states))
        choice_JS = np.empty((len(own_J), num_states), np.int16)
        _give_out(
            part, own_J, open_JO[some_J], stride_T, self.price_R, value_2S, choice_JS
        )
        found_J[some_J] = own_J
