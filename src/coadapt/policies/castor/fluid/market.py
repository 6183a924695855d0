"""Play forward where GPUs are of several types: a market shares them out at each
instant.

Axes: J jobs, or parts of them, V corners of their curves one job after the other, T GPU
types, X columns.
"""

# Where all GPUs are alike, one order of all pieces says who gets them (play.py). Of
# several types there is no such order: a job is on one type at a time, so a piece on
# one gives way to pieces of the same job on another. What is best at an instant, and
# prices at which each job wants just that, are a program's:
#
#     max sum_j v_j sum_o G_jo y_jo  with  sum_o y_jo <= 1 for each job,  sum of k_o
#     y_jo <= N_t for each type
#
# y_jo being the part of its time that job j spends on option o, k_o GPUs of one type,
# and λ_t a dual: all of a type's GPUs are wanted at its price, or fewer at a price of
# nothing. For few steps to find prices, demand must not jump with them. So a job
# divides its time in proportion to exp((v G - λ_t k) / (SOFT x v G at most)), and
# likewise for having nothing: the same program with the entropy of y in it. Prices take
# Newton's steps, in logarithms, from those of the market before.
#
# A market is held once demand has strayed from what there is. Until then who comes
# divides its time at the prices that are, and all have more or less of what they want,
# in proportion, so that all GPUs are used.

from typing import NamedTuple

import numpy as np

from coadapt.goodput.compiled import compiled_lean, lean_part
from coadapt.policies.castor.arrays import FloatArray, IntArray
from coadapt.policies.castor.fluid.crowd import Course, Crowd, Curves, Goal
from coadapt.policies.castor.fluid.goal import cost_of, mean_s, weigh
from coadapt.policies.castor.fluid.play import own_values, whole_ends

# Of what a job earns at most: of options so far apart one is e times as likely (tried:
# 0.02, 0.1).
SOFT = 0.05
# of prices, at most, and how near to what there is demand must come (1)
STEPS = 16
CLOSE = 0.02
# of a price's logarithm; what demand is taken to yield to it besides (1)
STEP_MAX = 1.5
STIFF = 0.1
# of the most that anybody would pay: first prices, and those that are none (1)
OPENING = 0.1
NOTHING = 1e-3
# of a number near 1, in place of the exponential: a third of a play less, no worse ends
SQUARINGS = 9
POWER = 2.0**SQUARINGS
TURNED = 0.6  # of a price's longest step is left when it turns (1)
# of what there is: a market is held once demand is further from it (tried: 0.05)
STRAYED = 0.1
# Who ends within this part of the time since the play began, or these seconds, leaves
# its GPUs after it.
AT_ONCE = 0.005
AT_ONCE_S = 2.0

THERE, PRICE, NONE, WANTED, HAS, STEP = range(6)  # of a type; see Market
LEFT, RATE, IDLE, KEEN, MOST = range(5)  # of a job; see Market
GPUS, SQUARES, DOES = range(3)  # of a job on a type; see Market


class Market(NamedTuple):
    """What changes during a play. Arrays with the columns above; here_J: who is in
    play, in its first places.

    Of a type: GPUs that there are; their price, and the one that counts as none; how
    many are wanted, and how many of them one has for each that it wants; the longest
    step of its price. Of a job: what it has left; its rate; the part of its time with
    nothing; how many times e an option is likelier that earns 1 more; its highest
    goodput. Of a job on a type: GPUs that it wants in the mean, and their squares; what
    it does on them.

    first_JT: where each job's options of a type begin. part_V: how much of its time it
    has each, up to a factor.
    yields_TT: by how many fewer of each type (row) are wanted if the price of one
    (column) is higher by 1; its last column is of solving for prices. soft: SOFT.
    """

    type_XT: FloatArray
    job_JX: FloatArray
    own_JXT: FloatArray
    here_J: IntArray
    first_JT: IntArray
    part_V: FloatArray
    yields_TT: FloatArray
    soft: float


@lean_part
def _likelier(x: float) -> float:
    """Return e to the power of POWER (x - 1), or nearly so: that power of x, found by
    squaring.
    """
    x = max(x, 0.0)
    for _ in range(SQUARINGS):
        x *= x
    return x


@lean_part
def _divide(curves: Curves, market: Market, j: int, value: float) -> None:
    """Divide the time of job j over its options, and take in what it wants."""
    type_XT = market.type_XT
    job_X = market.job_JX[j]
    own_XT = market.own_JXT[j]
    part_V = market.part_V
    num_types = type_XT.shape[1]
    first_T = market.first_JT[j]
    highest = value * market.job_JX[j, MOST]
    for t in range(num_types):
        own_XT[GPUS, t] = own_XT[SQUARES, t] = own_XT[DOES, t] = 0.0
    job_X[IDLE] = 1.0
    job_X[KEEN] = 0.0
    if not highest > 0.0:
        return
    keen = 1.0 / (market.soft * highest)
    each = keen / POWER
    nothing = 1.0 - highest * keen / POWER
    idle = total = _likelier(nothing)
    earns = value * each
    for t in range(num_types):
        price = type_XT[PRICE, t] * each
        # Numbers without a sign, else numba asks of each whether it counts from the
        # end.
        begin = np.uint64(first_T[t])
        end = np.uint64(first_T[t + 1])
        for p in range(begin, end):
            part_V[p] = _likelier(
                nothing + earns * curves.goodput_V[p] - price * curves.gpus_V[p]
            )
        gpus = squares = does = 0.0
        for p in range(begin, end):
            part = part_V[p]
            total += part
            does += part * curves.goodput_V[p]
            part *= curves.gpus_V[p]
            gpus += part
            squares += part * curves.gpus_V[p]
        own_XT[GPUS, t] = gpus
        own_XT[SQUARES, t] = squares
        own_XT[DOES, t] = does
    whole = 1.0 / total
    job_X[IDLE] = idle * whole
    job_X[KEEN] = keen
    for t in range(num_types):
        for x in range(3):
            own_XT[x, t] *= whole
        type_XT[WANTED, t] += own_XT[GPUS, t]


@lean_part
def _yield(market: Market, j: int) -> None:
    """Take in by how much job j yields to prices."""
    own_XT = market.own_JXT[j]
    keen = market.job_JX[j, KEEN]
    for t in range(own_XT.shape[1]):
        market.yields_TT[t, t] += own_XT[SQUARES, t] * keen
        times = own_XT[GPUS, t] * keen
        for other in range(own_XT.shape[1]):
            market.yields_TT[t, other] -= times * own_XT[GPUS, other]


@lean_part
def _solve(side_TX: FloatArray) -> None:
    """Solve linear equations, one a row, whose last column is what they are equal to:
    there the solution is.

    Of prices they are semidefinite, but for scales and a diagonal, so no rows need to
    change places.
    """
    last = len(side_TX)
    for row in range(last):
        for below in range(row + 1, last):
            times = side_TX[below, row] / side_TX[row, row]
            for column in range(row, last + 1):
                side_TX[below, column] -= times * side_TX[row, column]
    for row in range(last - 1, -1, -1):
        for column in range(row + 1, last):
            side_TX[row, last] -= side_TX[row, column] * side_TX[column, last]
        side_TX[row, last] /= side_TX[row, row]


@lean_part
def _step(market: Market) -> bool:
    """Move prices towards where all GPUs are wanted; return whether they are near
    enough already.
    """
    type_XT = market.type_XT
    yields_TT = market.yields_TT
    near = True
    last = type_XT.shape[1]
    for t in range(last):
        there = type_XT[THERE, t]
        wanted = type_XT[WANTED, t]
        stays = wanted <= there and type_XT[PRICE, t] <= type_XT[NONE, t]
        near = near and (stays or abs(wanted - there) < CLOSE * there)
        for other in range(last):
            own = 1.0 if other == t else 0.0
            if stays:
                yields_TT[t, other] = own
            else:  # in logarithms
                yields_TT[t, other] *= type_XT[PRICE, other] / max(
                    wanted, NOTHING * there
                )
                yields_TT[t, other] += STIFF * own
        yields_TT[t, last] = 0.0 if stays else np.log(max(wanted / there, NOTHING))
    if near:
        return True
    _solve(yields_TT)
    for t in range(last):
        most = abs(type_XT[STEP, t])
        if yields_TT[t, last] * type_XT[STEP, t] < 0.0:
            # else prices swing about that of a type to which many turn at once
            most *= TURNED
        step = min(max(yields_TT[t, last], -most), most)
        type_XT[STEP, t] = most if step > 0.0 else -most
        type_XT[PRICE, t] = max(type_XT[PRICE, t] * np.exp(step), type_XT[NONE, t])
    return False


@lean_part
def _share_out(curves: Curves, market: Market, value_J: FloatArray, count: int) -> None:
    """Hold a market of the first `count` in play: write prices, and divide the time of
    each at them.
    """
    type_XT = market.type_XT
    for t in range(type_XT.shape[1]):
        type_XT[STEP, t] = STEP_MAX
    for _ in range(STEPS):
        for t in range(type_XT.shape[1]):
            market.yields_TT[t] = 0.0
        for place in range(count):
            _yield(market, market.here_J[place])
        if _step(market):
            break
        for t in range(type_XT.shape[1]):
            type_XT[WANTED, t] = 0.0
        for place in range(count):
            j = market.here_J[place]
            _divide(curves, market, j, value_J[j])


@lean_part
def _strayed(market: Market) -> bool:
    """Write how many GPUs one has for each that it wants; return whether a market is to
    be held.
    """
    type_XT = market.type_XT
    strayed = False
    for t in range(type_XT.shape[1]):
        there = type_XT[THERE, t]
        wanted = type_XT[WANTED, t]
        has = 1.0
        if wanted > there or type_XT[PRICE, t] > type_XT[NONE, t]:
            strayed = strayed or abs(wanted - there) > STRAYED * there
            if wanted > (1.0 - STRAYED) * there:
                has = there / wanted  # of more than that nobody could make use
        type_XT[HAS, t] = has
    return strayed


@lean_part
def _open(crowd: Crowd, market: Market, value_J: FloatArray, course: Course) -> None:
    curves = crowd.curves
    type_XT = market.type_XT
    for t in range(type_XT.shape[1]):
        type_XT[THERE, t] = crowd.gpus_T[t]
        type_XT[PRICE, t] = 0.0
        type_XT[WANTED, t] = 0.0
    for j in range(len(value_J)):
        market.job_JX[j, LEFT] = crowd.left_J[j]
        course.start_J[j] = course.end_J[j] = np.inf
        for t in range(type_XT.shape[1]):
            course.price_JT[j, t] = 0.0
        for p in range(curves.first_J[j], curves.first_J[j + 1]):
            pays = value_J[j] * curves.goodput_V[p] / curves.gpus_V[p]
            t = curves.type_V[p]
            if pays > type_XT[PRICE, t]:
                type_XT[PRICE, t] = pays
    for t in range(type_XT.shape[1]):
        type_XT[NONE, t] = NOTHING * type_XT[PRICE, t]
        type_XT[PRICE, t] *= OPENING


@lean_part
def _soonest(market: Market, count: int) -> float:
    """Write the rate of each; return in how long the next one ends, infinity: nobody
    does.
    """
    soonest_s = np.inf
    type_XT = market.type_XT
    for place in range(count):
        j = market.here_J[place]
        rate = 0.0
        for t in range(type_XT.shape[1]):
            rate += market.own_JXT[j, DOES, t] * type_XT[HAS, t]
        market.job_JX[j, RATE] = rate
        if market.job_JX[j, LEFT] < soonest_s * rate:
            soonest_s = market.job_JX[j, LEFT] / rate
    return soonest_s


@lean_part
def _end(market: Market, course: Course, j: int, now: float) -> None:
    course.start_J[j] = min(course.start_J[j], now)
    course.end_J[j] = now
    for t in range(market.type_XT.shape[1]):
        market.type_XT[WANTED, t] -= market.own_JXT[j, GPUS, t]
        price = market.type_XT[PRICE, t]
        course.price_JT[j, t] = price if price > market.type_XT[NONE, t] else 0.0


@compiled_lean
def _play(
    crowd: Crowd,
    market: Market,
    coming_J: IntArray,
    value_J: FloatArray,
    course: Course,
) -> None:
    """Write the course of a crowd at these values. coming_J: who comes, in that
    order.
    """
    _open(crowd, market, value_J, course)
    curves = crowd.curves
    job_JX = market.job_JX
    here_J = market.here_J
    num_coming = len(coming_J)
    count = 0
    coming = 0
    now = 0.0
    while True:
        while coming < num_coming and crowd.arrives_J[coming_J[coming]] <= now:
            j = here_J[count] = coming_J[coming]
            _divide(curves, market, j, value_J[j])
            count += 1
            coming += 1
        if _strayed(market):
            _share_out(curves, market, value_J, count)
            _strayed(market)
        soonest_s = _soonest(market, count)
        comes_s = (
            crowd.arrives_J[coming_J[coming]] - now if coming < num_coming else np.inf
        )
        ahead_s = min(max(soonest_s, AT_ONCE * now, AT_ONCE_S), comes_s)
        if ahead_s == np.inf:
            break  # all have ended, or who is left can make no progress
        for place in range(count - 1, -1, -1):
            j = here_J[place]
            job_X = job_JX[j]
            if job_X[IDLE] < 0.5:
                course.start_J[j] = min(course.start_J[j], now)
            if job_X[RATE] <= 0.0 or job_X[LEFT] > job_X[RATE] * ahead_s:
                job_X[LEFT] -= job_X[RATE] * ahead_s
                continue
            _end(market, course, j, now + job_X[LEFT] / job_X[RATE])
            after = crowd.next_J[j]
            if after >= 0:
                here_J[place] = after
                _divide(curves, market, after, value_J[after])
            else:
                count -= 1
                here_J[place] = here_J[count]
        now += ahead_s


def _market(crowd: Crowd, soft: float) -> Market:
    curves = crowd.curves
    num_parts = len(crowd.left_J)
    num_types = len(crowd.gpus_T)
    whose_V = np.repeat(np.arange(num_parts), np.diff(curves.first_J))
    count_JT = np.bincount(
        whose_V * num_types + curves.type_V, minlength=num_parts * num_types
    )
    job_JX = np.zeros((num_parts, 5))
    np.maximum.at(job_JX[:, MOST], whose_V, curves.goodput_V)
    end_JT = np.cumsum(count_JT).reshape(num_parts, num_types)
    return Market(
        np.empty((6, num_types)),
        job_JX,
        np.empty((num_parts, 3, num_types)),
        np.empty(num_parts, dtype=np.int64),
        np.hstack((curves.first_J[:-1, None], end_JT)),
        np.empty(len(curves.gpus_V)),
        np.empty((num_types, num_types + 1)),
        soft,
    )


def _offered(crowd: Crowd) -> Crowd:
    """Return a crowd without its options on types that have no GPUs."""
    if crowd.gpus_T.all():
        return crowd
    first_J, gpus_V, goodput_V, type_V = crowd.curves
    there_V = crowd.gpus_T[type_V] > 0.0
    before_V = np.concatenate(([0], np.cumsum(there_V)))
    curves = Curves(
        before_V[first_J], gpus_V[there_V], goodput_V[there_V], type_V[there_V]
    )
    return crowd._replace(curves=curves)


def _coming(crowd: Crowd) -> IntArray:
    order_J = np.argsort(crowd.arrives_J, kind="stable")
    coming_J: IntArray = order_J[: np.isfinite(crowd.arrives_J).sum()]
    return coming_J


def play_types(crowd: Crowd, value_J: FloatArray, soft: float = SOFT) -> Course:
    """Return the course of a crowd at these values, part by part, on GPUs of several
    types.
    """
    crowd, course = _offered(crowd), Course.room(len(value_J), len(crowd.gpus_T))
    _play(crowd, _market(crowd, soft), _coming(crowd), value_J, course)
    return course


def settle_types(
    crowd: Crowd, value_J: FloatArray, goal: Goal, num_plays: int
) -> tuple[FloatArray, Course, float]:
    """Return the best values found from `value_J` on, the course of whole jobs at them,
    and its cost.
    """
    crowd = _offered(crowd)
    market = _market(crowd, SOFT)
    coming_J = _coming(crowd)
    num_jobs = len(goal.weight_J)
    parts = Course.room(len(value_J), len(crowd.gpus_T))
    least = np.inf
    value_J = value_J.copy()
    weight_J, share_J = np.empty((2, num_jobs))
    own_J = np.empty(len(value_J))
    best_J = value_J
    best = parts
    for turn in range(num_plays):
        _play(crowd, market, coming_J, value_J, parts)
        whole_J = np.empty(num_jobs)
        whole_ends(parts.end_J, crowd.next_J, whole_J)
        course = Course(
            parts.start_J[:num_jobs].copy(), whole_J, parts.price_JT[:num_jobs].copy()
        )
        if turn == 0 and goal.usual_s <= 0.0:
            goal = goal._replace(usual_s=mean_s(course, goal))
        cost = cost_of(course, goal)
        if turn == 0 or cost < least:
            least = cost
            best_J = value_J.copy()
            best = course
        if turn == num_plays - 1 or (
            not parts.price_JT.any() and np.isfinite(whole_J).all()
        ):
            # or GPUs are never short: then no other values lead to another course
            break
        weigh(course, goal, weight_J, share_J)
        own_values(crowd, parts, weight_J, own_J)
        both_J = (own_J > 0.0) & (value_J > 0.0)
        value_J[both_J] = np.sqrt(value_J[both_J] * own_J[both_J])  # as in play.py
    return best_J, best, least
