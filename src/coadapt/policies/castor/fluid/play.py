"""Play forward: what becomes of the jobs if GPUs always go where value x slope is
largest, as a fluid.

Axes: J jobs, V corners of the jobs' majorants one job after the other, P pieces (one
per corner).
"""

# Why a fluid. At given values v_j the best use of N GPUs at an instant is max sum_j v_j
# G_j(k_j), sum_j k_j <= N. With G_j replaced by its least concave majorant, that is:
# cut every curve into its straight pieces, and hand out GPUs in falling order of v_j x
# slope until they are used up. The value of the piece that got cut is the price of a
# GPU. Values stay as they are during a play, so the order of all pieces is sorted ONCE;
# what changes when a job comes or ends is only how far down that order the GPUs reach
# (`cut`). Ends move it down, arrivals up, and each move touches the jobs whose pieces
# it passes, nobody else: O((P + J) log J) a play.

from typing import NamedTuple

import numpy as np

from coadapt.goodput.compiled import compiled_lean, lean_part, variable
from coadapt.policies.castor.arrays import FloatArray, IntArray
from coadapt.policies.castor.fluid.crowd import (
    DIGIT_BITS,
    HERE,
    LEFT,
    NUMBER_BITS,
    RATE,
    SINCE,
    SLOPE,
    STACKED,
    TAKEN,
    TOUCHED,
    WIDTH,
    WORTH,
    Course,
    Crowd,
    Curves,
    Flow,
    Goal,
    flow_of,
)
from coadapt.policies.castor.fluid.goal import cost_of, mean_s, weigh

# GPUs and progress below these are rounding (1).
EPSILON = 1e-9
FIRST = variable(0)
DIGIT = (1 << DIGIT_BITS) - 1
LAST_KEY = (1 << 2 * DIGIT_BITS) - 1
NUMBER = (1 << NUMBER_BITS) - 1


@lean_part
def _touch(flow: Flow, j: int) -> None:
    if not flow.state_JX[j, TOUCHED]:
        flow.state_JX[j, TOUCHED] = 1
        flow.stack_J[flow.count_X[STACKED]] = j
        flow.count_X[STACKED] += 1


@lean_part
def _expect(flow: Flow, j: int, end: float) -> None:
    """Take in that job j ends then; infinity: it has no end."""
    soonest_X = flow.soonest_X
    place = (len(soonest_X) >> 1) + j
    soonest_X[place] = end
    while place > 1:
        end = min(
            end, soonest_X[place ^ 1]
        )  # not read back: a store that was just made is slow to read
        place >>= 1
        soonest_X[place] = end


@lean_part
def _next(flow: Flow) -> int:
    """Return who ends next: of those at the same instant, the first."""
    soonest_X = flow.soonest_X
    place = 1
    while 2 * place < len(soonest_X):
        place = 2 * place + (soonest_X[2 * place] != soonest_X[place])
    return place - (len(soonest_X) >> 1)


@lean_part
def _rank(flow: Flow) -> None:
    """Order pieces by falling worth (none below 0); what is alike stays in its order.

    Bits of positive numbers are ordered as the numbers are. So pieces are sorted by two
    digits of how far their bits are below the highest, the lower digit first, which is
    several times as fast as comparing; the few that differ only in bits below change
    places then.
    """
    piece_PX = flow.piece_PX
    order_P = flow.order_P
    sorted_P = flow.sorted_P
    begin_XD = flow.begin_XD
    bits_PX = piece_PX.view(np.int64)
    num_pieces = len(order_P)
    lowest = highest = max(bits_PX[0, WORTH], 0)
    for p in range(num_pieces):
        bits = bits_PX[p, WORTH]
        highest = max(highest, bits)
        if bits > 0 and (bits < lowest or lowest == 0):
            lowest = bits
    span = highest - lowest
    shift = 0
    while span >> shift > LAST_KEY:
        shift += 1
    for digit in range(DIGIT + 1):
        begin_XD[0, digit] = begin_XD[1, digit] = 0
    for p in range(num_pieces):
        key = min(highest - max(bits_PX[p, WORTH], 0), span) >> shift
        order_P[p] = key << NUMBER_BITS | p
        begin_XD[0, key & DIGIT] += 1
        begin_XD[1, key >> DIGIT_BITS] += 1
    first = second = 0
    for digit in range(DIGIT + 1):
        count = begin_XD[0, digit]
        other = begin_XD[1, digit]
        begin_XD[0, digit] = first
        begin_XD[1, digit] = second
        first += count
        second += other
    for p in range(num_pieces):
        digit = order_P[p] >> NUMBER_BITS & DIGIT
        sorted_P[begin_XD[0, digit]] = order_P[p]
        begin_XD[0, digit] += 1
    for place in range(num_pieces):
        digit = sorted_P[place] >> NUMBER_BITS + DIGIT_BITS
        order_P[begin_XD[1, digit]] = sorted_P[place]
        begin_XD[1, digit] += 1
    last = order_P[0] >> NUMBER_BITS
    for rank in range(num_pieces):
        key = order_P[rank] >> NUMBER_BITS
        p = order_P[rank] & NUMBER
        place = rank
        while (
            key == last
            and place > 0
            and piece_PX[order_P[place - 1], WORTH] < piece_PX[p, WORTH]
        ):
            order_P[place] = order_P[place - 1]
            place -= 1
        order_P[place] = p
        last = key
    for rank in range(num_pieces):
        p = order_P[rank]
        flow.rank_P[p] = rank
        flow.whose_R[rank] = flow.whose_P[p]


@lean_part
def _fill(flow: Flow, cut: int, free: float) -> tuple[int, float]:
    """Hand out what is free down the order, from `cut` on; return the new cut, and what
    is free then.
    """
    while free > EPSILON and cut < len(flow.order_P):
        j = flow.whose_R[cut]
        piece_X = flow.piece_PX[flow.order_P[cut]]
        if flow.state_JX[j, HERE] and piece_X[WORTH] > 0.0:
            more = min(piece_X[WIDTH] - piece_X[TAKEN], free)
            piece_X[TAKEN] += more
            free -= more
            _touch(flow, j)
            if piece_X[TAKEN] < piece_X[WIDTH] - EPSILON:
                break
        cut += 1
    return cut, free


@lean_part
def _admit(
    curves: Curves, flow: Flow, j: int, now: float, cut: int, free: float
) -> tuple[int, float]:
    """Let job j take its pieces above `cut`; those at the end of the order give way.
    Return cut and free.
    """
    flow.state_JX[j, HERE] = 1
    flow.job_JX[j, SINCE] = now
    _touch(flow, j)
    for p in range(curves.first_J[j], curves.first_J[j + 1]):
        if flow.rank_P[p] >= cut:
            break  # pieces of one curve come in its order
        flow.piece_PX[p, TAKEN] = flow.piece_PX[p, WIDTH]
        free -= flow.piece_PX[p, WIDTH]
    while free < -EPSILON:
        if cut < len(flow.order_P) and flow.piece_PX[flow.order_P[cut], TAKEN] > 0.0:
            p = flow.order_P[cut]
            back = min(flow.piece_PX[p, TAKEN], -free)
            flow.piece_PX[p, TAKEN] -= back
            free += back
            _touch(flow, flow.whose_R[cut])
        else:
            cut -= 1
    return cut, free


@lean_part
def _price(flow: Flow, cut: int, free: float) -> float:
    """Return the value of the piece that got cut, 0 while GPUs are free."""
    if free > EPSILON:
        return 0.0
    while cut < len(flow.order_P) and not flow.state_JX[flow.whose_R[cut], HERE]:
        cut += 1
    price: float = (
        flow.piece_PX[flow.order_P[cut], WORTH] if cut < len(flow.order_P) else 0.0
    )
    return price


@lean_part
def _leave(curves: Curves, flow: Flow, j: int, free: float) -> float:
    """Let job j go; return what is free then."""
    flow.state_JX[j, HERE] = 0
    _expect(flow, j, np.inf)
    for p in range(curves.first_J[j], curves.first_J[j + 1]):
        if flow.piece_PX[p, TAKEN] <= 0.0:
            break
        free += flow.piece_PX[p, TAKEN]
        flow.piece_PX[p, TAKEN] = 0.0
    return free


@lean_part
def _renew(curves: Curves, flow: Flow, j: int, now: float) -> float:
    """Book what job j did so far, set its new rate, and return when it will end at
    that.
    """
    job_X = flow.job_JX[j]
    job_X[LEFT] = max(job_X[LEFT] - job_X[RATE] * (now - job_X[SINCE]), 0.0)
    job_X[SINCE] = now
    rate = 0.0
    for p in range(curves.first_J[j], curves.first_J[j + 1]):
        if flow.piece_PX[p, TAKEN] <= 0.0:
            break  # pieces of one curve are taken in its order
        rate += flow.piece_PX[p, TAKEN] * flow.piece_PX[p, SLOPE]
    job_X[RATE] = rate
    return now + job_X[LEFT] / rate if rate > 0.0 else np.inf


@lean_part
def _begin(crowd: Crowd, flow: Flow, value_J: FloatArray, course: Course) -> None:
    for p in range(len(flow.order_P)):
        flow.piece_PX[p, WORTH] = value_J[flow.whose_P[p]] * flow.piece_PX[p, SLOPE]
        flow.piece_PX[p, TAKEN] = 0.0
    _rank(flow)
    for j in range(len(value_J)):
        flow.job_JX[j, LEFT] = crowd.left_J[j]
        flow.job_JX[j, RATE] = 0.0
        flow.job_JX[j, SINCE] = 0.0
        flow.state_JX[j, HERE] = 0
        flow.state_JX[j, TOUCHED] = 0
        course.start_J[j] = np.inf
        course.end_J[j] = np.inf
        course.price_JT[j, 0] = 0.0
    for place in range(len(flow.soonest_X)):
        flow.soonest_X[place] = np.inf
    flow.count_X[STACKED] = 0


@lean_part
def _play(crowd: Crowd, flow: Flow, value_J: FloatArray, course: Course) -> None:
    """Write the course of a crowd at these values."""
    curves = crowd.curves
    num_jobs = len(value_J)
    _begin(crowd, flow, value_J, course)
    next_coming = FIRST
    cut = FIRST
    free = crowd.gpus_T[0]
    while True:
        ends = flow.soonest_X[1]
        arrives = (
            crowd.arrives_J[flow.coming_J[next_coming]]
            if next_coming < num_jobs
            else np.inf
        )
        now = min(ends, arrives)
        if now == np.inf:
            break  # all have ended, or who is left can make no progress
        if ends <= arrives:
            j = _next(flow)
            course.end_J[j] = now
            course.price_JT[j, 0] = _price(flow, cut, free)
            free = _leave(curves, flow, j, free)
            if crowd.next_J[j] >= 0:
                cut, free = _admit(curves, flow, crowd.next_J[j], now, cut, free)
        while (
            next_coming < num_jobs
            and crowd.arrives_J[flow.coming_J[next_coming]] <= now
        ):
            cut, free = _admit(curves, flow, flow.coming_J[next_coming], now, cut, free)
            next_coming += 1
        cut, free = _fill(flow, cut, free)
        for place in range(flow.count_X[STACKED]):
            j = flow.stack_J[place]
            flow.state_JX[j, TOUCHED] = 0
            if not flow.state_JX[j, HERE]:
                continue
            end = _renew(curves, flow, j, now)
            if end < np.inf:
                course.start_J[j] = min(course.start_J[j], now)
            _expect(flow, j, end)
        flow.count_X[STACKED] = 0


@compiled_lean
def whole_ends(end_J: FloatArray, next_J: IntArray, whole_J: FloatArray) -> None:
    """Write the ends of whole jobs: each ends with the last that follows."""
    for j in range(len(whole_J)):
        last = j
        while next_J[last] >= 0:
            last = next_J[last]
        whole_J[j] = end_J[last]


@lean_part
def _best(curves: Curves, j: int, weight: float, price_T: FloatArray) -> float:
    """Return min_k (weight + price k) / goodput(k) of job j, over all types; infinity:
    it can do nothing.
    """
    least = np.inf
    for p in range(curves.first_J[j], curves.first_J[j + 1]):
        if curves.goodput_V[p] > 0.0:
            price = price_T[curves.type_V[p]]
            least = min(
                least, (weight + price * curves.gpus_V[p]) / curves.goodput_V[p]
            )
    return least


@compiled_lean
def own_values(
    crowd: Crowd, course: Course, weight_J: FloatArray, own_J: FloatArray
) -> None:
    """Write the value of each at the price of its own end, 0 where there is none.

    A second costs who is followed what it keeps the follower from: max_k (v G(k) -
    price k).
    """
    curves = crowd.curves
    for part in range(len(own_J)):
        own_J[part] = 0.0
    for j in range(len(weight_J)):
        part = j
        while crowd.next_J[part] >= 0:
            part = crowd.next_J[part]
        weight = weight_J[j]
        while True:
            least = _best(curves, part, weight, course.price_JT[part])
            if least < np.inf:
                own_J[part] = least
            if part == j:
                break
            before = j if part == crowd.next_J[j] else part - 1
            weight = 0.0
            for p in range(curves.first_J[part], curves.first_J[part + 1]):
                price = course.price_JT[before, curves.type_V[p]]
                weight = max(
                    weight, own_J[part] * curves.goodput_V[p] - price * curves.gpus_V[p]
                )
            part = before


@compiled_lean
def _at_price(
    curves: Curves, weight_J: FloatArray, price_T: FloatArray, value_J: FloatArray
) -> None:
    for j in range(len(weight_J)):
        least = _best(curves, j, weight_J[j], price_T)
        value_J[j] = least if least < np.inf else 0.0


def at_price(curves: Curves, weight_J: FloatArray, price_T: FloatArray) -> FloatArray:
    """Return min_k (weight + price k) / goodput(k) per job: the value at which its end
    is best; 0: none.
    """
    value_J = np.empty(len(weight_J))
    _at_price(curves, weight_J, price_T, value_J)
    return value_J


class _Turns(NamedTuple):
    """What plays find. value_J, best_J, own_J: values by part of a job; weight_J,
    share_J: of whole jobs.

    played: the course of parts; whole, best: of whole jobs.
    """

    value_J: FloatArray
    best_J: FloatArray
    own_J: FloatArray
    weight_J: FloatArray
    share_J: FloatArray
    played: Course
    whole_J: FloatArray
    best: Course


@lean_part
def _keep(turns: _Turns) -> None:
    """Keep the values of this play, and its course, as the best."""
    for part in range(len(turns.value_J)):
        turns.best_J[part] = turns.value_J[part]
    for j in range(len(turns.whole_J)):
        turns.best.start_J[j] = turns.played.start_J[j]
        turns.best.end_J[j] = turns.whole_J[j]
        turns.best.price_JT[j, 0] = turns.played.price_JT[j, 0]


@lean_part
def _free(course: Course) -> bool:
    """Return whether GPUs are never short: then no other values lead to another
    course.
    """
    short = False
    for j in range(len(course.end_J)):
        short = short or course.price_JT[j, 0] > 0.0 or course.end_J[j] == np.inf
    return not short


@compiled_lean
def _settle(
    crowd: Crowd, flow: Flow, goal: Goal, turns: _Turns, num_plays: int
) -> float:
    value_J = turns.value_J
    own_J = turns.own_J
    played = turns.played
    least = np.inf
    course = Course(played.start_J, turns.whole_J, played.price_JT)
    for turn in range(max(num_plays, 1)):
        _play(crowd, flow, value_J, played)
        whole_ends(played.end_J, crowd.next_J, turns.whole_J)
        if turn == 0:
            _keep(turns)
            usual_s = goal.usual_s if goal.usual_s > 0.0 else mean_s(course, goal)
            goal = Goal(
                goal.weight_J,
                goal.due_J,
                goal.age_J,
                goal.bears_J,
                goal.fair_J,
                goal.chance_J,
                goal.makespan_jobs,
                goal.tail,
                usual_s,
            )
        if turn == num_plays:
            break
        cost = cost_of(course, goal)
        if cost < least:
            least = cost
            _keep(turns)
        if _free(played) or turn == num_plays - 1:
            break
        weigh(course, goal, turns.weight_J, turns.share_J)
        own_values(crowd, played, turns.weight_J, own_J)
        for j in range(len(value_J)):
            if own_J[j] > 0.0 and value_J[j] > 0.0:
                # Half of the way in logarithms: where it is all of it, the values swing
                # (tried).
                value_J[j] = np.sqrt(value_J[j] * own_J[j])
    return least


def settle(
    crowd: Crowd, value_J: FloatArray, goal: Goal, num_plays: int
) -> tuple[FloatArray, Course, float]:
    """Return the best values found from `value_J` on, the course of whole jobs at them,
    and its cost.
    """
    num_parts = len(value_J)
    num_jobs = len(goal.weight_J)
    best_J, own_J = np.empty((2, num_parts))
    weight_J, share_J, whole_J = np.empty((3, num_jobs))
    played = Course.room(num_parts, 1)
    best = Course.room(num_jobs, 1)
    turns = _Turns(
        value_J.copy(), best_J, own_J, weight_J, share_J, played, whole_J, best
    )
    least = _settle(crowd, flow_of(crowd), goal, turns, variable(num_plays))
    return best_J, best, least


def play(crowd: Crowd, value_J: FloatArray) -> Course:
    """Return the course of a crowd at these values, part by part."""
    none = np.empty(0)
    nobody = Course.room(0, 1)
    played = Course.room(len(value_J), 1)
    goal = Goal(
        none, none, none, none, none, none, makespan_jobs=0.0, tail=0.0, usual_s=1.0
    )
    best_J = np.empty(len(value_J))
    turns = _Turns(value_J, best_J, none, none, none, played, none, nobody)
    _settle(crowd, flow_of(crowd), goal, turns, variable(0))
    return played
