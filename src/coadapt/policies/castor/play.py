"""Play forward: what becomes of the jobs if GPUs always go where value x slope is largest, as a fluid.

Axes: J jobs, V corners of the jobs' majorants one job after the other, P pieces (one per corner).
"""

# Why a fluid. At given values v_j the best use of N GPUs at an instant is max sum_j v_j G_j(k_j), sum_j k_j
# <= N. With G_j replaced by its least concave majorant, that is: cut every curve into its straight pieces,
# and hand out GPUs in falling order of v_j x slope until they are used up. The value of the piece that got
# cut is the price of a GPU. Values stay as they are during a play, so the order of all pieces is sorted ONCE;
# what changes when a job comes or ends is only how far down that order the GPUs reach (`cut`). Ends move it
# down, arrivals up, and each move touches the jobs whose pieces it passes, nobody else: O((P + J) log J) a
# play.

from heapq import heappop, heappush
from typing import NamedTuple

import numpy as np

from coadapt.goodput.compiled import compiled, compiled_part, lean_part
from coadapt.policies.castor.arrays import BoolArray, FloatArray, IntArray

# GPUs and progress below these are rounding (1).
EPSILON = 1e-9
DIGIT_BITS = 11  # of the digits by which worths are sorted
DIGIT = (1 << DIGIT_BITS) - 1


class Curves(NamedTuple):
    """Concave goodput curves through (0, 0), one job after the other.

    first_J: where each job's corners begin, (num_jobs + 1,). gpus_V, goodput_V: the corners, both ascending;
    goodput in the job's own progress per second.
    """

    first_J: IntArray
    gpus_V: FloatArray
    goodput_V: FloatArray


class Crowd(NamedTuple):
    """All jobs of a play, those that are here first: curves, what is left, when they come (s from now).

    A job whose curve changes while it learns is several, one after the other: next_J is who comes when it
    ends (-1: nobody). Those that follow come after all others, the later ones of a job consecutively.
    """

    curves: Curves
    left_J: FloatArray
    arrives_J: FloatArray
    next_J: IntArray
    num_gpus: float


class Course(NamedTuple):
    """A play. start_J, end_J: when each job gets its first GPU and ends, seconds from now (infinity: never).

    price_J: of a GPU just before that end, in value per GPU-second.
    """

    start_J: FloatArray
    end_J: FloatArray
    price_J: FloatArray


@compiled
def majorants(goodput_JK: FloatArray, gpus_K: FloatArray) -> Curves:
    """Return the least concave majorants of the points (0, 0) and (gpus_K, goodput_JK), those of 0 left out.

    gpus_K ascends. A job without any point gets one corner of goodput 0.
    """
    num_jobs, num_sizes = goodput_JK.shape
    first_J = np.zeros(num_jobs + 1, np.int64)
    room = num_jobs * max(num_sizes, 1)  # the corner of goodput 0 needs its own, where no size can be had
    gpus_V, goodput_V = np.empty(room), np.empty(room)
    end = 0
    for j in range(num_jobs):
        begin = end
        for k in range(num_sizes):
            x, y = gpus_K[k], goodput_JK[j, k]
            if y <= 0.0 or (end > begin and y <= goodput_V[end - 1]):
                continue  # nothing, or no more than fewer GPUs give
            while end > begin:
                x0 = gpus_V[end - 2] if end - 1 > begin else 0.0
                y0 = goodput_V[end - 2] if end - 1 > begin else 0.0
                x1, y1 = gpus_V[end - 1], goodput_V[end - 1]
                if (y1 - y0) * (x - x1) > (y - y1) * (x1 - x0):
                    break
                end -= 1  # the last corner lies on or below the line past it
            gpus_V[end], goodput_V[end] = x, y
            end += 1
        if end == begin:
            gpus_V[end], goodput_V[end] = 1.0, 0.0
            end += 1
        first_J[j + 1] = end
    return Curves(first_J, gpus_V[:end].copy(), goodput_V[:end].copy())


class _Pieces(NamedTuple):
    """Straight pieces of all curves. worth_P: value x slope. order_P: by falling worth; rank_P: in it."""

    job_P: IntArray
    width_P: FloatArray
    slope_P: FloatArray
    worth_P: FloatArray
    order_P: IntArray
    rank_P: IntArray


class _Flow(NamedTuple):
    """What changes during a play. taken_P: GPUs on each piece. rate_J: since since_J, its stamp_J-th."""

    taken_P: FloatArray
    left_J: FloatArray
    rate_J: FloatArray
    since_J: FloatArray
    stamp_J: IntArray
    here_J: BoolArray
    touched_J: BoolArray
    stack: IntArray  # the touched jobs, from place 1 on; place 0: how many


@lean_part
def _touch(flow: _Flow, j: int) -> None:
    if not flow.touched_J[j]:
        flow.touched_J[j] = True
        flow.stack[0] += 1
        flow.stack[flow.stack[0]] = j


@compiled_part
def _falling(worth_P: FloatArray) -> IntArray:
    """Return the order of falling worth (none below 0); what is alike stays in its order.

    Bits of positive numbers are ordered as the numbers are, so digit by digit of them, the lowest first: four
    times as fast as by comparing.
    """
    num_pieces, bits_P = len(worth_P), worth_P.view(np.int64)
    order_P, sorted_P = np.arange(num_pieces), np.empty(num_pieces, np.int64)
    begin_D = np.empty(1 << DIGIT_BITS, np.int64)
    for shift in range(0, 64, DIGIT_BITS):
        begin_D[:] = 0
        for p in range(num_pieces):
            begin_D[~(bits_P[p] >> shift) & DIGIT] += 1
        before = 0
        for digit in range(len(begin_D)):
            count = begin_D[digit]
            begin_D[digit] = before
            before += count
        for rank in range(num_pieces):
            p = order_P[rank]
            digit = ~(bits_P[p] >> shift) & DIGIT
            sorted_P[begin_D[digit]] = p
            begin_D[digit] += 1
        order_P, sorted_P = sorted_P, order_P
    return order_P


@compiled_part
def _cut_up(curves: Curves, value_J: FloatArray) -> _Pieces:
    num_pieces = len(curves.gpus_V)
    job_P, width_P, slope_P = np.empty(num_pieces, np.int64), np.empty(num_pieces), np.empty(num_pieces)
    for j in range(len(curves.first_J) - 1):
        x0 = y0 = 0.0
        for p in range(curves.first_J[j], curves.first_J[j + 1]):
            job_P[p] = j
            width_P[p] = curves.gpus_V[p] - x0
            slope_P[p] = (curves.goodput_V[p] - y0) / width_P[p]
            x0, y0 = curves.gpus_V[p], curves.goodput_V[p]
    worth_P = value_J[job_P] * slope_P
    order_P = _falling(worth_P)
    rank_P = np.empty_like(order_P)
    for rank in range(num_pieces):
        rank_P[order_P[rank]] = rank
    return _Pieces(job_P, width_P, slope_P, worth_P, order_P, rank_P)


@lean_part
def _fill(pieces: _Pieces, flow: _Flow, cut: int, free: float) -> tuple[int, float]:
    """Hand out what is free down the order, from `cut` on; return the new cut, and what is free then."""
    while free > EPSILON and cut < len(pieces.order_P):
        p = pieces.order_P[cut]
        j = pieces.job_P[p]
        if flow.here_J[j] and pieces.worth_P[p] > 0.0:
            more = min(pieces.width_P[p] - flow.taken_P[p], free)
            flow.taken_P[p] += more
            free -= more
            _touch(flow, j)
            if flow.taken_P[p] < pieces.width_P[p] - EPSILON:
                break
        cut += 1
    return cut, free


@lean_part
def _admit(curves: Curves, pieces: _Pieces, flow: _Flow, j: int, cut: int, free: float) -> tuple[int, float]:
    """Let job j take its pieces above `cut`; those at the end of the order give way. Return cut and free."""
    flow.here_J[j] = True
    _touch(flow, j)
    for p in range(curves.first_J[j], curves.first_J[j + 1]):
        if pieces.rank_P[p] >= cut:
            break  # pieces of one curve come in its order
        flow.taken_P[p] = pieces.width_P[p]
        free -= pieces.width_P[p]
    while free < -EPSILON:
        if cut < len(pieces.order_P) and flow.taken_P[pieces.order_P[cut]] > 0.0:
            p = pieces.order_P[cut]
            back = min(flow.taken_P[p], -free)
            flow.taken_P[p] -= back
            free += back
            _touch(flow, pieces.job_P[p])
        else:
            cut -= 1
    return cut, free


@lean_part
def _price(pieces: _Pieces, flow: _Flow, cut: int, free: float) -> float:
    """Return the value of the piece that got cut, 0 while GPUs are free."""
    if free > EPSILON:
        return 0.0
    while cut < len(pieces.order_P) and not flow.here_J[pieces.job_P[pieces.order_P[cut]]]:
        cut += 1
    price: float = pieces.worth_P[pieces.order_P[cut]] if cut < len(pieces.order_P) else 0.0
    return price


@lean_part
def _renew(curves: Curves, pieces: _Pieces, flow: _Flow, j: int, now: float) -> float:
    """Book what job j did so far, set its new rate, and return when it will end at that."""
    flow.left_J[j] = max(flow.left_J[j] - flow.rate_J[j] * (now - flow.since_J[j]), 0.0)
    flow.since_J[j] = now
    rate = 0.0
    for p in range(curves.first_J[j], curves.first_J[j + 1]):
        if flow.taken_P[p] <= 0.0:
            break  # pieces of one curve are taken in its order
        rate += flow.taken_P[p] * pieces.slope_P[p]
    flow.rate_J[j] = rate
    flow.stamp_J[j] += 1
    return now + flow.left_J[j] / rate if rate > 0.0 else np.inf


@compiled
def play(crowd: Crowd, value_J: FloatArray) -> Course:
    """Return the course of a crowd at these values."""
    curves, arrives_J = crowd.curves, crowd.arrives_J
    num_jobs = len(value_J)
    pieces = _cut_up(curves, value_J)
    flow = _Flow(
        np.zeros(len(pieces.order_P)),
        crowd.left_J.copy(),
        np.zeros(num_jobs),
        np.zeros(num_jobs),
        np.zeros(num_jobs, np.int64),
        np.zeros(num_jobs, np.bool_),
        np.zeros(num_jobs, np.bool_),
        np.zeros(num_jobs + 1, np.int64),
    )
    start_J, end_J, price_J = np.full(num_jobs, np.inf), np.full(num_jobs, np.inf), np.zeros(num_jobs)
    coming_J = np.argsort(arrives_J, kind="mergesort")
    next_coming, cut, free = 0, 0, crowd.num_gpus
    ends = [(np.inf, -1, 0)]  # (instant, job, stamp): what the stamp of the job has passed is void
    while True:
        while ends[0][1] >= 0 and flow.stamp_J[ends[0][1]] != ends[0][2]:
            heappop(ends)
        arrives = arrives_J[coming_J[next_coming]] if next_coming < num_jobs else np.inf
        now = min(ends[0][0], arrives)
        if now == np.inf:
            break  # all have ended, or who is left can make no progress
        if ends[0][0] <= arrives:
            j = ends[0][1]
            end_J[j], price_J[j] = now, _price(pieces, flow, cut, free)
            flow.here_J[j] = False
            flow.stamp_J[j] += 1
            for p in range(curves.first_J[j], curves.first_J[j + 1]):
                if flow.taken_P[p] <= 0.0:
                    break
                free += flow.taken_P[p]
                flow.taken_P[p] = 0.0
            after = crowd.next_J[j]
            if after >= 0:
                flow.since_J[after] = now
                cut, free = _admit(curves, pieces, flow, after, cut, free)
        while next_coming < num_jobs and arrives_J[coming_J[next_coming]] <= now:
            j = coming_J[next_coming]
            flow.since_J[j] = now
            cut, free = _admit(curves, pieces, flow, j, cut, free)
            next_coming += 1
        cut, free = _fill(pieces, flow, cut, free)
        for place in range(1, flow.stack[0] + 1):
            j = flow.stack[place]
            flow.touched_J[j] = False
            if not flow.here_J[j]:
                continue
            end = _renew(curves, pieces, flow, j, now)
            if end < np.inf:
                start_J[j] = min(start_J[j], now)
                heappush(ends, (end, j, flow.stamp_J[j]))
        flow.stack[0] = 0
    return Course(start_J, end_J, price_J)


class Goal(NamedTuple):
    """What a plan is to make small, over jobs j that are here or expected:

    sum_j weight_J (long_J + LATE_JOBS max(end_J - due_J, 0))  +  makespan_jobs x the last end,

    long_J being the completion time c = age_J + end_J in which a second past usual_s weighs more: as many
    times as it is past it, to the power of `tail`; and past bears_J more again, by c / bears_J - 1. due_J:
    deadline, seconds from now (infinity: none). usual_s 0: the mean completion time of the first play.
    """

    weight_J: FloatArray
    due_J: FloatArray
    age_J: FloatArray
    bears_J: FloatArray
    makespan_jobs: float
    tail: float
    usual_s: float


# The last end stands for the ends within this share of it: softmax instead of max (tried: 0.05-0.2 alike).
LAST_SHARE = 0.1
# Of one step of the fixed point, in logarithms: at 1 the values swing (tried).
DAMPING = 0.5
# A second past its deadline counts as so many seconds of waiting besides (1).
LATE_JOBS = 4.0


@compiled_part
def _last_end(course: Course, num_jobs: int) -> float:
    last = 0.0
    for j in range(num_jobs):
        if course.end_J[j] < np.inf:
            last = max(last, course.end_J[j])
    return last


@compiled_part
def _mean_s(course: Course, goal: Goal) -> float:
    total, count = 0.0, 0
    for j in range(len(goal.weight_J)):
        if course.end_J[j] < np.inf:
            total += goal.age_J[j] + course.end_J[j]
            count += 1
    mean: float = max(total / max(count, 1), 1.0)
    return mean


@compiled_part
def _second(course: Course, goal: Goal, j: int) -> float:
    """Return what a second more adds to long_J of job j."""
    long = goal.age_J[j] + course.end_J[j]
    weighs: float = max(long / goal.usual_s, 1.0) ** goal.tail + max(long / goal.bears_J[j] - 1.0, 0.0)
    return weighs


@compiled
def cost_of(course: Course, goal: Goal) -> float:
    """Return what a course costs; jobs that never end cost nothing, whatever the values."""
    cost: float = goal.makespan_jobs * _last_end(course, len(goal.weight_J))
    for j in range(len(goal.weight_J)):
        if course.end_J[j] < np.inf:
            late = max(course.end_J[j] - goal.due_J[j], 0.0)
            past = max((goal.age_J[j] + course.end_J[j]) / goal.usual_s, 1.0)
            # The integral of _second over the completion time.
            long = goal.age_J[j] + course.end_J[j]
            starved = max(long - goal.bears_J[j], 0.0) ** 2 / (2.0 * goal.bears_J[j])
            if past > 1.0:
                long = goal.usual_s * (goal.tail + past ** (1.0 + goal.tail)) / (1.0 + goal.tail)
            long += starved
            cost += goal.weight_J[j] * (long + LATE_JOBS * late)
    return cost


@compiled_part
def _weights(course: Course, goal: Goal) -> FloatArray:
    """Return ω: what one second by which each job ends sooner takes off the goal."""
    last = _last_end(course, len(goal.weight_J))
    weight_J = goal.weight_J.copy()
    share_J = np.zeros(len(weight_J))
    for j in range(len(weight_J)):
        if course.end_J[j] < np.inf and last > 0.0:
            share_J[j] = np.exp((course.end_J[j] - last) / (LAST_SHARE * last))
        if course.end_J[j] == np.inf:
            continue
        second = _second(course, goal, j)
        if course.end_J[j] > goal.due_J[j]:
            second += LATE_JOBS
        weight_J[j] *= second
    total = share_J.sum()
    if total > 0.0:
        weight_J += goal.makespan_jobs * share_J / total
    return weight_J


@compiled_part
def _whole(course: Course, next_J: IntArray, num_jobs: int) -> Course:
    """Return the course of whole jobs: each ends with the last that follows."""
    end_J = course.end_J[:num_jobs].copy()
    for j in range(num_jobs):
        last = j
        while next_J[last] >= 0:
            last = next_J[last]
        end_J[j] = course.end_J[last]
    return Course(course.start_J[:num_jobs], end_J, course.price_J[:num_jobs])


@compiled_part
def _best(curves: Curves, j: int, weight: float, price: float) -> float:
    """Return min_k (weight + price k) / goodput(k) of job j; infinity where it can do nothing."""
    least = np.inf
    for p in range(curves.first_J[j], curves.first_J[j + 1]):
        if curves.goodput_V[p] > 0.0:
            least = min(least, (weight + price * curves.gpus_V[p]) / curves.goodput_V[p])
    return least


@compiled_part
def _own(crowd: Crowd, course: Course, weight_J: FloatArray) -> FloatArray:
    """Return the value of each at the price of its own end, 0 where there is none.

    A second costs who is followed what it keeps the follower from: max_k (v G(k) - price k).
    """
    curves = crowd.curves
    own_J = np.zeros(len(crowd.next_J))
    for j in range(len(weight_J)):
        part = j
        while crowd.next_J[part] >= 0:
            part = crowd.next_J[part]
        weight = weight_J[j]
        while True:
            least = _best(curves, part, weight, course.price_J[part])
            if least < np.inf:
                own_J[part] = least
            if part == j:
                break
            before = j if part == crowd.next_J[j] else part - 1
            weight = 0.0
            for p in range(curves.first_J[part], curves.first_J[part + 1]):
                earns = own_J[part] * curves.goodput_V[p] - course.price_J[before] * curves.gpus_V[p]
                weight = max(weight, earns)
            part = before
    return own_J


@compiled
def at_price(curves: Curves, weight_J: FloatArray, price_J: FloatArray) -> FloatArray:
    """Return min_k (weight + price k) / goodput(k) per job: the value at which its end is best; 0: none."""
    value_J = np.zeros(len(weight_J))
    for j in range(len(weight_J)):
        least = _best(curves, j, weight_J[j], price_J[j])
        if least < np.inf:
            value_J[j] = least
    return value_J


@compiled
def settle(crowd: Crowd, value_J: FloatArray, goal: Goal, num_plays: int) -> tuple[FloatArray, Course, float]:
    """Return the best values found from `value_J` on, the course of whole jobs at them, and its cost."""
    value, num_jobs = value_J.copy(), len(goal.weight_J)
    best, least = value.copy(), np.inf
    played = play(crowd, value)
    best_course = _whole(played, crowd.next_J, num_jobs)
    course = best_course
    usual_s = goal.usual_s
    if usual_s <= 0.0:
        usual_s = _mean_s(course, goal)
    goal = Goal(goal.weight_J, goal.due_J, goal.age_J, goal.bears_J, goal.makespan_jobs, goal.tail, usual_s)
    for turn in range(num_plays):
        if turn:
            played = play(crowd, value)
            course = _whole(played, crowd.next_J, num_jobs)
        cost = cost_of(course, goal)
        if cost < least:
            least, best, best_course = cost, value.copy(), course
        if played.price_J.max() == 0.0 and played.end_J.max() < np.inf:
            break  # GPUs are never short: no other values lead to another course
        own_J = _own(crowd, played, _weights(course, goal))
        for j in range(len(value)):
            if own_J[j] > 0.0 and value[j] > 0.0:
                value[j] = np.exp((1.0 - DAMPING) * np.log(value[j]) + DAMPING * np.log(own_J[j]))
    return best, best_course, least
