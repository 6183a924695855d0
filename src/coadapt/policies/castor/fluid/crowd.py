"""What a play is of: jobs that are here or expected, their curves, the goal, the
course, room to play.

Axes: J jobs, V corners of the jobs' majorants one job after the other, P pieces (one
per corner), K sizes, C configurations (sizes of GPU types), T GPU types.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from coadapt.goodput.compiled import compiled_lean, variable
from coadapt.policies.castor.arrays import FloatArray, IntArray

# Worths are sorted by two digits of so many bits, and by comparing what is alike in
# them (tried: 8 to 10).
# What is sorted has its number in the bits below.
DIGIT_BITS = 11
NUMBER_BITS = 32


class Curves(NamedTuple):
    """Concave goodput curves through (0, 0), one job after the other, of a job one GPU
    type after the other.

    first_J: where each job's corners begin, (num_jobs + 1,). gpus_V, goodput_V: the
    corners, both ascending on each type; goodput in the job's own progress per second.
    type_V: the number of their GPU type.
    """

    first_J: IntArray
    gpus_V: FloatArray
    goodput_V: FloatArray
    type_V: IntArray


NO_CURVES = Curves(
    np.zeros(1, np.int64), np.empty(0), np.empty(0), np.empty(0, np.int64)
)


class Crowd(NamedTuple):
    """All jobs of a play, those that are here first: curves, what is left, when they
    come (s from now).

    A job whose curve changes while it learns is several, one after the other: next_J is
    who comes when it ends (-1: nobody). Those that follow come after all others, the
    later ones of a job consecutively.
    gpus_T: GPUs of each type.
    """

    curves: Curves
    left_J: FloatArray
    arrives_J: FloatArray
    next_J: IntArray
    gpus_T: FloatArray


class Course(NamedTuple):
    """A play. start_J, end_J: when each job gets its first GPU and ends, seconds from
    now (infinity: never).

    price_JT: of a GPU of each type just before that end, in value per GPU-second.
    """

    start_J: FloatArray
    end_J: FloatArray
    price_JT: FloatArray

    @classmethod
    def room(cls, num_jobs: int, num_types: int) -> "Course":
        """Return room for a play."""
        start_J, end_J = np.empty((2, num_jobs))
        return cls(start_J, end_J, np.empty((num_jobs, num_types)))


class Goal(NamedTuple):
    """What a plan is to make small, over jobs j that are here or expected:

    sum_j weight_J (long_J + LATE_JOBS max(end_J - due_J, 0))  +  makespan_jobs x the
    last end, in the mean over who of them comes,

    long_J being the completion time c = age_J + end_J in which a second past usual_s
    weighs more: as many times as it is past it, to the power of `tail`; past bears_J
    more again, by c / bears_J - 1, and past fair_J by FAIR_WEIGHT times c / fair_J - 1.
    due_J: deadline, seconds from now (infinity: none). chance_J: that it comes (1: it
    is here). usual_s 0: the mean completion time of the first play.
    """

    weight_J: FloatArray
    due_J: FloatArray
    age_J: FloatArray
    bears_J: FloatArray
    fair_J: FloatArray
    chance_J: FloatArray
    makespan_jobs: float
    tail: float
    usual_s: float


def joined(several: Sequence[Curves]) -> Curves:
    """Return these curves one after the other."""
    num_jobs, num_corners = (
        sum([len(each[axis]) for each in several]) for axis in (0, 1)
    )
    first_J, gpus_V, goodput_V = (
        np.empty(num_jobs - len(several) + 1, np.int64),
        *np.empty((2, num_corners)),
    )
    found = Curves(first_J, gpus_V, goodput_V, np.empty(num_corners, np.int64))
    job = 0
    corner = 0
    for each in several:
        _copy(each, variable(job), variable(corner), found)
        job = job + len(each.first_J) - 1
        corner = corner + len(each.gpus_V)
    return found


@compiled_lean
def _copy(some: Curves, job: int, corner: int, found: Curves) -> None:
    for j in range(len(some.first_J)):
        found.first_J[job + j] = corner + some.first_J[j]
    for v in range(len(some.gpus_V)):
        found.gpus_V[corner + v] = some.gpus_V[v]
        found.goodput_V[corner + v] = some.goodput_V[v]
        found.type_V[corner + v] = some.type_V[v]


def picked(some: Curves, others: Curves, rows: Sequence[int]) -> Curves:
    """Return the curves of these rows, copied. Beyond those of `some`, they are of
    `others`.
    """
    row_R = np.array(rows, dtype=np.int64)
    first_J = np.empty(len(rows) + 1, dtype=np.int64)
    end = _begin_picked(some.first_J, others.first_J, row_R, first_J)
    found = Curves(first_J, np.empty(end), np.empty(end), np.empty(end, dtype=np.int64))
    _copy_picked(some, others, row_R, found)
    return found


@compiled_lean
def _begin_picked(
    some_J: IntArray, others_J: IntArray, row_R: IntArray, first_J: IntArray
) -> int:
    """Write where the corners of each row begin; return how many there are."""
    many = len(some_J) - 1
    end = 0
    for r in range(len(row_R)):
        first_J[r] = end
        row = row_R[r]
        if row < many:
            end += some_J[row + 1] - some_J[row]
        else:
            end += others_J[row - many + 1] - others_J[row - many]
    first_J[len(row_R)] = end
    return end


@compiled_lean
def _copy_picked(some: Curves, others: Curves, row_R: IntArray, found: Curves) -> None:
    many = len(some.first_J) - 1
    for r in range(len(row_R)):
        row = row_R[r] if row_R[r] < many else row_R[r] - many
        source = some if row_R[r] < many else others
        begin = source.first_J[row]
        for to in range(found.first_J[r], found.first_J[r + 1]):
            corner = begin + to - found.first_J[r]
            found.gpus_V[to] = source.gpus_V[corner]
            found.goodput_V[to] = source.goodput_V[corner]
            found.type_V[to] = source.type_V[corner]


@compiled_lean
def _cover(
    goodput_JK: FloatArray,
    gpus_K: FloatArray,
    first_J: IntArray,
    gpus_V: FloatArray,
    goodput_V: FloatArray,
) -> int:
    num_jobs, num_sizes = goodput_JK.shape
    end = 0
    for j in range(num_jobs):
        begin = first_J[j] = end
        for k in range(num_sizes):
            x = gpus_K[k]
            y = goodput_JK[j, k]
            if y <= 0.0 or (end > begin and y <= goodput_V[end - 1]):
                continue  # nothing, or no more than fewer GPUs give
            while end > begin:
                x0 = gpus_V[end - 2] if end - 1 > begin else 0.0
                y0 = goodput_V[end - 2] if end - 1 > begin else 0.0
                x1 = gpus_V[end - 1]
                y1 = goodput_V[end - 1]
                if (y1 - y0) * (x - x1) > (y - y1) * (x1 - x0):
                    break
                end -= 1  # the last corner lies on or below the line past it
            gpus_V[end] = x
            goodput_V[end] = y
            end += 1
        if end == begin:
            gpus_V[end] = 1.0
            goodput_V[end] = 0.0
            end += 1
    first_J[num_jobs] = end
    return end


def majorants(goodput_JK: FloatArray, gpus_K: FloatArray, of_type: int = 0) -> Curves:
    """Return the least concave majorants of the points (0, 0) and (gpus_K, goodput_JK),
    those of 0 left out.

    gpus_K ascends. A job without any point gets one corner of goodput 0. of_type: the
    number of the GPU type.
    """
    num_jobs, num_sizes = goodput_JK.shape
    most = num_jobs * max(
        num_sizes, 1
    )  # the corner of goodput 0 needs its own, where no size can be had
    first_J = np.empty(num_jobs + 1, dtype=np.int64)
    gpus_V = np.empty(most)
    goodput_V = np.empty(most)
    end = _cover(goodput_JK, gpus_K, first_J, gpus_V, goodput_V)
    type_V = np.full(end, of_type, dtype=np.int64)
    return Curves(first_J, gpus_V[:end].copy(), goodput_V[:end].copy(), type_V)


def type_majorants(
    goodput_JC: FloatArray, gpus_C: IntArray, type_C: IntArray, number_T: Sequence[int]
) -> Curves:
    """Return the majorants on each GPU type, whose numbers are number_T. gpus_C ascends
    on each.
    """
    if len(number_T) == 1:
        return majorants(
            np.ascontiguousarray(goodput_JC), gpus_C.astype(np.float64), number_T[0]
        )
    several = [
        majorants(
            np.ascontiguousarray(goodput_JC[:, type_C == row]),
            gpus_C[type_C == row] * 1.0,
            number,
        )
        for row, number in enumerate(number_T)
    ]
    num_jobs = len(goodput_JC)
    whose_V = np.concatenate(
        [np.repeat(np.arange(num_jobs), np.diff(each.first_J)) for each in several]
    )
    gpus_V, goodput_V, type_V = (
        np.concatenate(each)
        for each in zip(*(curves[1:] for curves in several), strict=True)
    )
    some_J = np.bincount(whose_V, goodput_V, num_jobs) > 0.0
    kept_V = np.flatnonzero(
        (goodput_V > 0.0) | (~some_J[whose_V] & (type_V == number_T[0]))
    )
    order_V = kept_V[np.argsort(whose_V[kept_V], kind="stable")]
    first_J = np.cumsum([0, *np.bincount(whose_V[kept_V], minlength=num_jobs)])
    return Curves(first_J, gpus_V[order_V], goodput_V[order_V], type_V[order_V])


WIDTH, SLOPE, WORTH, TAKEN = range(
    4
)  # of a piece; worth: value x slope, taken: GPUs on it
LEFT, RATE, SINCE = range(
    3
)  # of a job: what it had left at SINCE, its rate from then on
HERE, TOUCHED = range(2)  # of a job: whether it is in play, on the stack
STACKED = 0  # how many are on the stack


class Flow(NamedTuple):
    """What changes during a play. Arrays of pieces and of jobs, with the columns above.

    whose_P: whose each piece is; order_P: pieces by falling worth; rank_P: the place of
    each there; whose_R: whose the piece at each place is. sorted_P, begin_XD: of
    sorting. soonest_X: a tree of minima over the ends of jobs (infinity: none), which
    are its second half; those of place x are at 2 x and 2 x + 1.
    stack_J: jobs whose GPUs changed.
    """

    piece_PX: FloatArray
    whose_P: IntArray
    rank_P: IntArray
    whose_R: IntArray
    order_P: IntArray
    sorted_P: IntArray
    begin_XD: IntArray
    job_JX: FloatArray
    state_JX: IntArray
    soonest_X: FloatArray
    stack_J: IntArray
    coming_J: IntArray
    count_X: IntArray


def flow_of(crowd: Crowd) -> Flow:
    """Return room for the plays of a crowd, with the straight pieces of all curves in
    it.
    """
    curves = crowd.curves
    num_jobs = len(crowd.left_J)
    num_pieces = len(curves.gpus_V)
    piece_PX = np.empty((num_pieces, 4))
    whose_P, order_P, sorted_P, rank_P, whose_R = np.empty(
        (5, num_pieces), dtype=np.int64
    )
    _cut(curves, piece_PX, whose_P)
    return Flow(
        piece_PX,
        whose_P,
        rank_P,
        whose_R,
        order_P,
        sorted_P,
        np.empty((2, 1 << DIGIT_BITS), dtype=np.int64),
        np.empty((num_jobs, 3)),
        np.empty((num_jobs, 2), dtype=np.int64),
        np.empty(2 << max(num_jobs - 1, 1).bit_length()),
        np.empty(num_jobs, dtype=np.int64),
        np.argsort(crowd.arrives_J, kind="stable"),
        np.zeros(1, dtype=np.int64),
    )


@compiled_lean
def _cut(curves: Curves, piece_PX: FloatArray, whose_P: IntArray) -> None:
    for j in range(len(curves.first_J) - 1):
        gpus = 0.0
        goodput = 0.0
        for p in range(curves.first_J[j], curves.first_J[j + 1]):
            piece_PX[p, WIDTH] = curves.gpus_V[p] - gpus
            piece_PX[p, SLOPE] = (curves.goodput_V[p] - goodput) / piece_PX[p, WIDTH]
            gpus = curves.gpus_V[p]
            goodput = curves.goodput_V[p]
            whose_P[p] = j
