"""Play forward where GPUs are of several types: a market shares them out at each instant.

Axes: J jobs, or parts of them, V corners of their curves one job after the other, T GPU types, X columns.
"""

# Where all GPUs are alike, one order of all pieces says who gets them (play.py). Of several types there is no
# such order: a job is on one type at a time, so a piece on one gives way to pieces of the same job on
# another. What is best at an instant, and prices at which each job wants just that, are a program's:
#
#     max sum_j v_j sum_o G_jo y_jo  with  sum_o y_jo <= 1 for each job,  sum of k_o y_jo <= N_t for each type
#
# y_jo being the part of its time that job j spends on option o, k_o GPUs of one type, and λ_t a dual: all of
# a type's GPUs are wanted at its price, or fewer at a price of nothing. For few steps to find prices, demand
# must not jump with them. So a job divides its time in proportion to exp((v G - λ_t k) / (SOFT x v G at
# most)), and likewise for having nothing: the same program with the entropy of y in it. Prices take Newton's
# steps, in logarithms, from those of the instant before; what is then wanted beyond what there is goes to all
# who want it in proportion.
#
# One that comes or goes among hundreds hardly moves a price, so a market is held when MOVED of those in play
# have. Until then who came waits, and what was left stands idle.

from typing import NamedTuple

import numpy as np

from coadapt.goodput.compiled import compiled_lean, lean_part
from coadapt.policies.castor.arrays import FloatArray, IntArray
from coadapt.policies.castor.fluid.crowd import Course, Crowd, Curves, Goal
from coadapt.policies.castor.fluid.play import cost_of, mean_s, own_values, weigh, whole_ends

# Of what a job earns at most: of options so far apart one is e times as likely (tried: 0.02, 0.1).
SOFT = 0.05
STEPS, NEAR = 16, 0.02  # of prices, at most, and how near to what there is demand must come (1)
STEP_MAX, STIFF = 1.5, 0.1  # of a price's logarithm; what demand is taken to yield to it besides (1)
OPENING, NOTHING = 0.1, 1e-3  # of the most that anybody would pay: first prices, and those that are none (1)
FAR = -20.0  # exponents below are nothing (1)
TURNED = 0.6  # of a price's longest step is left when it turns (1)
MOVED = 0.02  # of those in play: so many come and go between markets, or one (1)

THERE, PRICE, NONE, WANTED, OWN, SQUARES, STEP = range(7)  # of a type; see Market
LEFT, RATE, IDLE = range(3)  # of a job: what it has left, its rate, the part of its time with nothing


class Market(NamedTuple):
    """What changes during a play. Arrays with the columns above, and part_V: what part of its time a job
    has each option. here_J: who is in play, in its first places. soft: SOFT.

    Of a type: GPUs that there are; their price, and the one that counts as none; how many are wanted; of one
    job its GPUs in the mean, and their squares. yields_TT: by how many fewer of each type (row) are wanted if
    the price of one (column) is higher by 1; its last column is of solving for prices.
    """

    type_XT: FloatArray
    part_V: FloatArray
    job_JX: FloatArray
    here_J: IntArray
    yields_TT: FloatArray
    soft: float


@lean_part
def _divide(curves: Curves, market: Market, j: int, value: float) -> None:
    """Divide the time of job j over its options, and take in what it wants."""
    type_XT, part_V = market.type_XT, market.part_V
    begin, end, highest, gain = curves.first_J[j], curves.first_J[j + 1], 0.0, 0.0
    for p in range(begin, end):
        t, earns = curves.type_V[p], value * curves.goodput_V[p]
        part_V[p] = -np.inf
        if type_XT[THERE, t] > 0.0 and earns > 0.0:
            part_V[p] = earns - type_XT[PRICE, t] * curves.gpus_V[p]
            highest, gain = max(highest, earns), max(gain, part_V[p])
    soft = market.soft * highest if highest > 0.0 else 1.0
    idle = np.exp(-gain / soft)
    total = idle
    for p in range(begin, end):
        exponent = (part_V[p] - gain) / soft
        part_V[p] = np.exp(exponent) if exponent > FAR else 0.0
        total += part_V[p]
    market.job_JX[j, IDLE] = idle / total
    for t in range(type_XT.shape[1]):
        type_XT[OWN, t] = type_XT[SQUARES, t] = 0.0
    for p in range(begin, end):
        if part_V[p] > 0.0:
            t, gpus = curves.type_V[p], curves.gpus_V[p]
            part_V[p] /= total
            type_XT[OWN, t] += part_V[p] * gpus
            type_XT[SQUARES, t] += part_V[p] * gpus * gpus
    for t in range(type_XT.shape[1]):
        own = type_XT[OWN, t]
        type_XT[WANTED, t] += own
        market.yields_TT[t, t] += type_XT[SQUARES, t] / soft
        for other in range(type_XT.shape[1]):
            market.yields_TT[t, other] -= own * type_XT[OWN, other] / soft


@lean_part
def _solve(side_TX: FloatArray) -> None:
    """Solve linear equations, one a row, whose last column is what they are equal to: there the solution is.

    Of prices they are semidefinite, but for scales and a diagonal, so no rows need to change places.
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
    """Move prices towards where all GPUs are wanted; return whether they are near enough already."""
    type_XT, yields_TT, near = market.type_XT, market.yields_TT, True
    last = type_XT.shape[1]
    for t in range(last):
        there, wanted = type_XT[THERE, t], type_XT[WANTED, t]
        stays = there <= 0.0 or (wanted < there and type_XT[PRICE, t] <= type_XT[NONE, t])
        near = near and (stays or abs(wanted - there) < NEAR * there)
        for other in range(last):
            own = 1.0 if other == t else 0.0
            if stays:
                yields_TT[t, other] = own
            else:  # in logarithms
                yields_TT[t, other] *= type_XT[PRICE, other] / max(wanted, NOTHING * there)
                yields_TT[t, other] += STIFF * own
        yields_TT[t, last] = 0.0 if stays else np.log(max(wanted / there, NOTHING))
    if near:
        return True
    _solve(yields_TT)
    for t in range(last):
        most = abs(type_XT[STEP, t])
        if yields_TT[t, last] * type_XT[STEP, t] < 0.0:
            most *= TURNED  # else prices swing about that of a type to which many turn at once
        step = min(max(yields_TT[t, last], -most), most)
        type_XT[STEP, t] = most if step > 0.0 else -most
        type_XT[PRICE, t] = max(type_XT[PRICE, t] * np.exp(step), type_XT[NONE, t])
    return False


@lean_part
def _share_out(curves: Curves, market: Market, value_J: FloatArray, count: int) -> None:
    """Hold a market of the first `count` in play: write prices, and rates and idle parts of jobs."""
    type_XT = market.type_XT
    for t in range(type_XT.shape[1]):
        type_XT[STEP, t] = STEP_MAX
    for step in range(STEPS):
        for t in range(type_XT.shape[1]):
            type_XT[WANTED, t] = 0.0
            market.yields_TT[t] = 0.0
        for place in range(count):
            j = market.here_J[place]
            _divide(curves, market, j, value_J[j])
        if step == STEPS - 1 or _step(market):
            break
    for place in range(count):
        j, rate = market.here_J[place], 0.0
        for p in range(curves.first_J[j], curves.first_J[j + 1]):
            if market.part_V[p] > 0.0:
                there, wanted = type_XT[THERE, curves.type_V[p]], type_XT[WANTED, curves.type_V[p]]
                rate += market.part_V[p] * curves.goodput_V[p] * min(there / wanted, 1.0)
        market.job_JX[j, RATE] = rate


@lean_part
def _open(crowd: Crowd, market: Market, value_J: FloatArray, course: Course) -> None:
    curves, type_XT = crowd.curves, market.type_XT
    for t in range(type_XT.shape[1]):
        type_XT[THERE, t], type_XT[PRICE, t] = crowd.gpus_T[t], 0.0
    for j in range(len(value_J)):
        market.job_JX[j, LEFT], market.job_JX[j, RATE], market.job_JX[j, IDLE] = crowd.left_J[j], 0.0, 1.0
        course.start_J[j] = course.end_J[j] = np.inf
        for t in range(type_XT.shape[1]):
            course.price_JT[j, t] = 0.0
        for p in range(curves.first_J[j], curves.first_J[j + 1]):
            pays, t = value_J[j] * curves.goodput_V[p] / curves.gpus_V[p], curves.type_V[p]
            if pays > type_XT[PRICE, t]:
                type_XT[PRICE, t] = pays
    for t in range(type_XT.shape[1]):
        type_XT[NONE, t] = NOTHING * type_XT[PRICE, t]
        type_XT[PRICE, t] *= OPENING


@lean_part
def _soonest(market: Market, count: int) -> tuple[int, float]:
    """Return the place of who ends next, and in how long, infinity: nobody does."""
    soonest, soonest_s = 0, np.inf
    for place in range(count):
        job_X = market.job_JX[market.here_J[place]]
        if job_X[RATE] > 0.0 and job_X[LEFT] / job_X[RATE] < soonest_s:
            soonest, soonest_s = place, job_X[LEFT] / job_X[RATE]
    return soonest, soonest_s


@lean_part
def _end(market: Market, course: Course, j: int, now: float) -> None:
    course.start_J[j], course.end_J[j] = min(course.start_J[j], now), now
    for t in range(market.type_XT.shape[1]):
        price = market.type_XT[PRICE, t] if market.type_XT[THERE, t] > 0.0 else np.inf
        course.price_JT[j, t] = price if price > market.type_XT[NONE, t] else 0.0


@compiled_lean
def _play(crowd: Crowd, market: Market, coming_J: IntArray, value_J: FloatArray, course: Course) -> None:
    """Write the course of a crowd at these values. coming_J: who comes, in that order."""
    _open(crowd, market, value_J, course)
    job_JX, here_J, num_coming = market.job_JX, market.here_J, len(coming_J)
    count, coming, moved, now = 0, 0, 0, 0.0
    while True:
        while coming < num_coming and crowd.arrives_J[coming_J[coming]] <= now:
            here_J[count] = coming_J[coming]
            count += 1
            coming += 1
            moved += 1
        soonest, soonest_s = _soonest(market, count)
        if moved > 0 and (moved >= MOVED * count or soonest_s == np.inf):
            _share_out(crowd.curves, market, value_J, count)
            soonest, soonest_s = _soonest(market, count)
            moved = 0
        comes_s = crowd.arrives_J[coming_J[coming]] - now if coming < num_coming else np.inf
        ahead_s = min(soonest_s, comes_s)
        if ahead_s == np.inf:
            break  # all have ended, or who is left can make no progress
        for place in range(count):
            j = here_J[place]
            if job_JX[j, IDLE] < 0.5:
                course.start_J[j] = min(course.start_J[j], now)
            job_JX[j, LEFT] = max(job_JX[j, LEFT] - job_JX[j, RATE] * ahead_s, 0.0)
        now += ahead_s
        if soonest_s <= comes_s:
            j = here_J[soonest]
            _end(market, course, j, now)
            moved += 1
            if crowd.next_J[j] >= 0:
                here_J[soonest] = crowd.next_J[j]
            else:
                count -= 1
                here_J[soonest] = here_J[count]


def _market(crowd: Crowd, soft: float) -> Market:
    num_parts, num_types = len(crowd.left_J), len(crowd.gpus_T)
    return Market(
        np.empty((7, num_types)),
        np.empty(len(crowd.curves.gpus_V)),
        np.empty((num_parts, 3)),
        np.empty(num_parts, dtype=np.int64),
        np.empty((num_types, num_types + 1)),
        soft,
    )


def _coming(crowd: Crowd) -> IntArray:
    order_J = np.argsort(crowd.arrives_J, kind="stable")
    coming_J: IntArray = order_J[: np.isfinite(crowd.arrives_J).sum()]
    return coming_J


def play_types(crowd: Crowd, value_J: FloatArray, soft: float = SOFT) -> Course:
    """Return the course of a crowd at these values, part by part, on GPUs of several types."""
    course = Course.room(len(value_J), len(crowd.gpus_T))
    _play(crowd, _market(crowd, soft), _coming(crowd), value_J, course)
    return course


def settle_types(
    crowd: Crowd, value_J: FloatArray, goal: Goal, num_plays: int
) -> tuple[FloatArray, Course, float]:
    """Return the best values found from `value_J` on, the course of whole jobs at them, and its cost."""
    market, coming_J, num_jobs = _market(crowd, SOFT), _coming(crowd), len(goal.weight_J)
    parts, least, value_J = Course.room(len(value_J), len(crowd.gpus_T)), np.inf, value_J.copy()
    weight_J, share_J = np.empty((2, num_jobs))
    own_J, best_J, best = np.empty(len(value_J)), value_J, parts
    for turn in range(num_plays):
        _play(crowd, market, coming_J, value_J, parts)
        whole_J = np.empty(num_jobs)
        whole_ends(parts.end_J, crowd.next_J, whole_J)
        course = Course(parts.start_J[:num_jobs].copy(), whole_J, parts.price_JT[:num_jobs].copy())
        if turn == 0 and goal.usual_s <= 0.0:
            goal = goal._replace(usual_s=mean_s(course, goal))
        cost = cost_of(course, goal)
        if turn == 0 or cost < least:
            least, best_J, best = cost, value_J.copy(), course
        if turn == num_plays - 1 or (not parts.price_JT.any() and np.isfinite(whole_J).all()):
            break  # or GPUs are never short: then no other values lead to another course
        weigh(course, goal, weight_J, share_J)
        own_values(crowd, parts, weight_J, own_J)
        both_J = (own_J > 0.0) & (value_J > 0.0)
        value_J[both_J] = np.sqrt(value_J[both_J] * own_J[both_J])  # as in play.py
    return best_J, best, least
