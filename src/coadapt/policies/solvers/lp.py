"""Sparse linear programmes through HiGHS (scipy), with a time limit."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

TIME_LIMIT_S = 10.0


class Lp(NamedTuple):
    """Maximise value_V @ x_V subject to A_RV @ x_V <= most_R and 0 <= x_V <= upper_V.

    V variables, R rows, N entries of A that are not zero: entry_N at (row_N, column_N).
    """

    value_V: FloatArray
    row_N: IntArray
    column_N: IntArray
    entry_N: FloatArray
    most_R: FloatArray
    upper_V: FloatArray


def solve_lp(problem: Lp, *, time_limit_s: float = TIME_LIMIT_S) -> FloatArray | None:
    """Return an optimal x_V; None if there is none within the limit. Deterministic for
    equal problems.

    Raises ValueError for a programme without an upper bound.
    """
    from scipy.optimize import (
        Bounds,
        LinearConstraint,
        milp,
    )  # half a second: only where one is solved
    from scipy.sparse import csr_array

    num_rows = len(problem.most_R)
    num_variables = len(problem.value_V)
    if not num_variables:
        return np.zeros(0)
    where = (problem.row_N, problem.column_N)
    matrix_RV = csr_array((problem.entry_N, where), shape=(num_rows, num_variables))
    result = milp(
        -problem.value_V,
        bounds=Bounds(np.zeros(num_variables), problem.upper_V),
        constraints=LinearConstraint(matrix_RV, -np.inf, problem.most_R),
        options={"time_limit": time_limit_s},
    )
    if result.status == 3:
        raise ValueError(f"a programme of {num_variables} variables has no upper bound")
    if result.status != 0 or result.x is None:
        return None
    x_V: FloatArray = np.clip(result.x, 0.0, problem.upper_V)
    return x_V
