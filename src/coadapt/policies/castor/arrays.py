"""Short names for arrays (axes are told by the letters after the underscore), which row
a job has, and exp, log and power to the same bits on all machines.
"""

# numpy has an exp, log and power of its own for processors with AVX-512, whose last
# bits are not those of the C library. Sizes that are alike are told apart by less, and
# a run that takes another of two becomes another run. Compiled loops call the C library
# everywhere.

from collections.abc import Iterable
from itertools import repeat

import numpy as np
from numpy.typing import NDArray

from coadapt.goodput.compiled import compiled_lean
from coadapt.model import JobId

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]


def median(values: FloatArray) -> float:
    """Return the median of some numbers: that of numpy takes eight times as long for
    160 of them.
    """
    ordered = np.sort(values)
    return 0.5 * float(ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2])


def exp(values_N: FloatArray) -> FloatArray:
    """Return the exponentials of some numbers."""
    found_N = np.empty(len(values_N))
    _exp(values_N, found_N)
    return found_N


def log(values_N: FloatArray) -> FloatArray:
    """Return the logarithms of some numbers > 0."""
    found_N = np.empty(len(values_N))
    _log(values_N, found_N)
    return found_N


def power(values_N: FloatArray, exponent: float) -> FloatArray:
    """Return some numbers to the power of another."""
    found_N = np.empty(len(values_N))
    _power(values_N, exponent, found_N)
    return found_N


@compiled_lean
def _exp(values_N: FloatArray, found_N: FloatArray) -> None:
    for n in range(len(values_N)):
        found_N[n] = np.exp(values_N[n])


@compiled_lean
def _log(values_N: FloatArray, found_N: FloatArray) -> None:
    for n in range(len(values_N)):
        found_N[n] = np.log(values_N[n])


@compiled_lean
def _power(values_N: FloatArray, exponent: float, found_N: FloatArray) -> None:
    for n in range(len(values_N)):
        found_N[n] = values_N[n] ** exponent


class JobRows:
    """Who is in a round, and in which row: `row_of`, in the order of rows.

    What is kept of jobs from round to round are arrays with such rows. Which row of the
    last round each job had is found once, for all of them.
    """

    __slots__ = ("_before_J", "_earlier", "_found", "row_of")

    def __init__(self, names: Iterable[JobId] = ()) -> None:
        self.row_of = {name: row for row, name in enumerate(names)}
        self._earlier: JobRows | None = None
        self._before_J = np.empty(0, dtype=np.int64)
        self._found = self._before_J, self._before_J

    def before(self, earlier: "JobRows") -> IntArray:
        """Return the row of each job in an earlier round, -1: it was not there."""
        if self._earlier is not earlier:
            rows = map(earlier.row_of.get, self.row_of, repeat(-1))
            self._before_J = np.fromiter(rows, np.int64, len(self.row_of))
            (found,) = (self._before_J >= 0).nonzero()
            self._found = found, self._before_J[found]
            # no chain of all rounds
            self._earlier = earlier
            earlier._earlier = None
        return self._before_J

    def kept(
        self, earlier: "JobRows", value_XJ: FloatArray, otherwise: float | FloatArray
    ) -> FloatArray:
        """Return the values of each job in an earlier round, of who was not there what
        it is `otherwise`.
        """
        num_jobs = len(self.before(earlier))
        found, before = self._found
        kept_XJ = np.empty((*value_XJ.shape[:-1], num_jobs))
        if len(found) < num_jobs:
            kept_XJ[...] = otherwise
        kept_XJ[..., found] = value_XJ[..., before]
        return kept_XJ
