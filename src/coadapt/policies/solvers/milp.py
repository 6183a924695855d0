"""Mixed-integer linear programmes through HiGHS (scipy): with a time limit, a gap, and
the bound proved.
"""

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]
BoolArray = NDArray[np.bool_]


class Milp(NamedTuple):
    """Minimise cost_V @ x_V subject to low_R <= matrix_RV @ x_V <= high_R and lower_V
    <= x_V <= upper_V.

    V variables, R rows. integral_V: whole numbers only; none of them makes it a linear
    programme.
    """

    cost_V: FloatArray
    matrix_RV: FloatArray
    low_R: FloatArray
    high_R: FloatArray
    lower_V: FloatArray
    upper_V: FloatArray
    integral_V: BoolArray


class MilpSolution(NamedTuple):
    """value: of x_V. bound: no solution has a lower value. proven: the gap that was
    asked for was reached.
    """

    x_V: FloatArray
    value: float
    bound: float
    proven: bool


def solve_milp(
    problem: Milp,
    *,
    time_limit_s: float = 10.0,
    gap: float = 1e-4,
    presolve: bool = True,
) -> MilpSolution | None:
    """Return the best solution found within the limits; None if none was found, or
    there is none.

    gap: relative, between value and bound. presolve: False where HiGHS would often
    write diagnostics to stdout, as it does when a presolved solution is off by a
    rounding error. Raises ValueError for a programme without a lower bound.
    """
    from scipy.optimize import (
        Bounds,
        LinearConstraint,
        milp,
    )  # half a second: only where one is solved

    result = milp(
        problem.cost_V,
        integrality=problem.integral_V.astype(np.int64),
        bounds=Bounds(problem.lower_V, problem.upper_V),
        constraints=LinearConstraint(problem.matrix_RV, problem.low_R, problem.high_R),
        options={"time_limit": time_limit_s, "mip_rel_gap": gap, "presolve": presolve},
    )
    if result.status == 3:
        raise ValueError(
            f"a programme of {len(problem.cost_V)} variables has no lower bound"
        )
    if result.x is None:
        return None
    bound = getattr(result, "mip_dual_bound", None)
    # A programme without whole numbers is solved to the end: its value is its bound.
    proven_bound = (
        float(result.fun) if bound is None or not math.isfinite(bound) else float(bound)
    )
    x_V: FloatArray = np.where(problem.integral_V, np.round(result.x), result.x)
    return MilpSolution(x_V, float(result.fun), proven_bound, result.status == 0)
