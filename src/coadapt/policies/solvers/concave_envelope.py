"""Concave envelopes: the least concave curves above goodputs on given numbers of GPUs.

Axes: J jobs, V corners of all curves one job after the other, K sizes, C configurations
(a size of a GPU type), T GPU types.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from coadapt.goodput.compiled import compiled_lean
from coadapt.policies.solvers.arrays import FloatArray, IntArray


class Curves(NamedTuple):
    """Concave curves through (0, 0), one job after the other, per job one GPU type
    after the other.

    first_J: where each job's corners begin, shape (num_jobs + 1,). gpus_V, goodput_V:
    the corners, both ascending on each type; goodput in the job's own progress per
    second. type_V: the number of their GPU type.
    """

    first_J: IntArray
    gpus_V: FloatArray
    goodput_V: FloatArray
    type_V: IntArray

    def one(self, row: int) -> "Curves":
        """Return a copy of the curves of one job."""
        corners = slice(self.first_J[row], self.first_J[row + 1])
        return Curves(
            np.array([0, corners.stop - corners.start]),
            self.gpus_V[corners].copy(),
            self.goodput_V[corners].copy(),
            self.type_V[corners].copy(),
        )


NO_CURVES = Curves(
    np.zeros(1, np.int64), np.empty(0), np.empty(0), np.empty(0, np.int64)
)


def concatenated(several: Sequence[Curves]) -> Curves:
    """Return these curves one after the other."""
    counts_J = np.concatenate([np.diff(each.first_J) for each in several])
    first_J = np.concatenate(([0], np.cumsum(counts_J)))
    return Curves(
        first_J,
        np.concatenate([each.gpus_V for each in several]),
        np.concatenate([each.goodput_V for each in several]),
        np.concatenate([each.type_V for each in several]),
    )


@compiled_lean
def _cover(
    goodput_JK: FloatArray,
    gpus_K: FloatArray,
    first_J: IntArray,
    gpus_V: FloatArray,
    goodput_V: FloatArray,
) -> int:
    """Write the corners of all envelopes; return how many there are."""
    num_jobs, num_sizes = goodput_JK.shape
    end = 0
    for j in range(num_jobs):
        begin = end
        first_J[j] = begin
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


def envelopes(goodput_JK: FloatArray, gpus_K: FloatArray, of_type: int = 0) -> Curves:
    """Return the envelopes of the points (0, 0) and (gpus_K, goodput_JK), those of 0
    left out.

    gpus_K ascends. A job without any point gets one corner of goodput 0. of_type: the
    number of the GPU type.
    """
    num_jobs, num_sizes = goodput_JK.shape
    most = num_jobs * max(num_sizes, 1)
    first_J = np.empty(num_jobs + 1, dtype=np.int64)
    gpus_V = np.empty(most)
    goodput_V = np.empty(most)
    end = _cover(
        np.ascontiguousarray(goodput_JK), gpus_K * 1.0, first_J, gpus_V, goodput_V
    )
    type_V = np.full(end, of_type, dtype=np.int64)
    return Curves(first_J, gpus_V[:end].copy(), goodput_V[:end].copy(), type_V)


def type_envelopes(
    goodput_JC: FloatArray, gpus_C: IntArray, type_C: IntArray, number_T: Sequence[int]
) -> Curves:
    """Return the envelopes on each GPU type. gpus_C ascends on each.

    number_T: the numbers of these types in the curves.
    """
    several = [
        envelopes(goodput_JC[:, type_C == row], gpus_C[type_C == row], number)
        for row, number in enumerate(number_T)
    ]
    if len(several) == 1:
        return several[0]
    num_jobs = len(goodput_JC)
    owner_V = np.concatenate(
        [np.repeat(np.arange(num_jobs), np.diff(each.first_J)) for each in several]
    )
    corners = zip(*(curves[1:] for curves in several), strict=True)
    gpus_V, goodput_V, type_V = (np.concatenate(each) for each in corners)
    some_J = np.bincount(owner_V, goodput_V, num_jobs) > 0.0
    # A job with no point at all keeps one corner of goodput 0, on the first type.
    empty_V = ~some_J[owner_V] & (type_V == number_T[0])
    kept_V = np.flatnonzero((goodput_V > 0.0) | empty_V)
    order_V = kept_V[np.argsort(owner_V[kept_V], kind="stable")]
    counts_J = np.bincount(owner_V[kept_V], minlength=num_jobs)
    first_J = np.cumsum([0, *counts_J])
    return Curves(first_J, gpus_V[order_V], goodput_V[order_V], type_V[order_V])
