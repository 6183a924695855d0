"""What a play is of: jobs that are here or expected, their curves, the goal, the course, room to play.

Axes: J jobs, V corners of the jobs' majorants one job after the other, P pieces (one per corner), K sizes.
"""

from typing import NamedTuple

import numpy as np

from coadapt.goodput.compiled import compiled_lean
from coadapt.policies.castor.arrays import FloatArray, IntArray

# Worths are sorted by so many digits of so many bits, below the sign, and by comparing what is alike in them.
NUM_DIGITS, DIGIT_BITS = 3, 12


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


@compiled_lean
def _cover(goodput_JK: FloatArray, gpus_K: FloatArray, room: Curves) -> int:
    first_J, gpus_V, goodput_V = room
    num_jobs, num_sizes = goodput_JK.shape
    end = 0
    for j in range(num_jobs):
        begin = first_J[j] = end
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
    first_J[num_jobs] = end
    return end


def majorants(goodput_JK: FloatArray, gpus_K: FloatArray) -> Curves:
    """Return the least concave majorants of the points (0, 0) and (gpus_K, goodput_JK), those of 0 left out.

    gpus_K ascends. A job without any point gets one corner of goodput 0.
    """
    num_jobs, num_sizes = goodput_JK.shape
    most = num_jobs * max(num_sizes, 1)  # the corner of goodput 0 needs its own, where no size can be had
    room = Curves(np.empty(num_jobs + 1, dtype=np.int64), np.empty(most), np.empty(most))
    end = _cover(goodput_JK, gpus_K, room)
    return Curves(room.first_J, room.gpus_V[:end].copy(), room.goodput_V[:end].copy())


WIDTH, SLOPE, WORTH, TAKEN = range(4)  # of a piece; worth: value x slope, taken: GPUs on it
JOB, RANK = range(2)  # of a piece: whose it is, its place by falling worth
LEFT, RATE, SINCE, NEXT = range(
    4
)  # of a job: what it had left at SINCE, its rate from then on, its end at that
HERE, TOUCHED, PLACE = range(
    3
)  # of a job: whether it is in play, on the stack; its place in the heap, -1: none
STACKED, ENDS = range(2)  # how many are on the stack, in the heap


class Flow(NamedTuple):
    """What changes during a play. Arrays of pieces and of jobs, with the columns above.

    order_P: pieces by falling worth. heap_J: jobs that have an end, the next one first. stack_J: those whose
    GPUs changed. sorted_P, begin_XD: of sorting.
    """

    piece_PX: FloatArray
    whose_PX: IntArray
    order_P: IntArray
    sorted_P: IntArray
    begin_XD: IntArray
    job_JX: FloatArray
    state_JX: IntArray
    heap_J: IntArray
    stack_J: IntArray
    coming_J: IntArray
    count_X: IntArray


def flow_of(crowd: Crowd) -> Flow:
    """Return room for the plays of a crowd, with the straight pieces of all curves in it."""
    curves, num_jobs = crowd.curves, len(crowd.left_J)
    num_pieces, begin_J = len(curves.gpus_V), curves.first_J[:-1]
    piece_PX, whose_PX = np.empty((num_pieces, 4)), np.empty((num_pieces, 2), dtype=np.int64)
    for corner_V, column in ((curves.gpus_V, WIDTH), (curves.goodput_V, SLOPE)):
        piece_PX[:, column] = np.diff(corner_V, prepend=0.0)
        piece_PX[begin_J, column] = corner_V[begin_J]
    piece_PX[:, SLOPE] /= piece_PX[:, WIDTH]
    whose_PX[:, JOB] = np.repeat(np.arange(num_jobs), np.diff(curves.first_J))
    order_P, sorted_P = np.empty((2, num_pieces), dtype=np.int64)
    heap_J, stack_J = np.empty((2, num_jobs), dtype=np.int64)
    return Flow(
        piece_PX,
        whose_PX,
        order_P,
        sorted_P,
        np.empty((NUM_DIGITS, 1 << DIGIT_BITS), dtype=np.int64),
        np.empty((num_jobs, 4)),
        np.empty((num_jobs, 3), dtype=np.int64),
        heap_J,
        stack_J,
        np.argsort(crowd.arrives_J, kind="stable"),
        np.zeros(2, dtype=np.int64),
    )
