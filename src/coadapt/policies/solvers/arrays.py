"""Names of array types, and exp, log and power of arrays to the same bits on all
machines.
"""

# numpy has its own exp, log and power for processors with AVX-512, whose last bits
# differ from the C library's. Less than that decides between two similar sizes, and a
# run that takes the other size becomes another run. Compiled loops call the C library
# everywhere.

import numpy as np
from numpy.typing import NDArray

from coadapt.goodput.compiled import compiled_lean

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]
# Arrays with one entry per job: (J,).
JobFloats = FloatArray
JobInts = IntArray
JobBools = BoolArray


def median(values_N: FloatArray) -> float:
    """Return the median (numpy's takes eight times as long for 160 numbers)."""
    ordered = np.sort(values_N)
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
    """Return some numbers to the power of `exponent`."""
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
