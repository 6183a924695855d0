"""The most central of a linear programme's optima, by the path of a logarithmic barrier."""

# Programmes over parts of the time often have many optima. A simplex method ends in a corner of them, where
# jobs that are alike get everything or nothing; an interior-point method ends near their analytic centre,
# where these are treated alike, and what no constraint asks for is spread. Published figures come from such a
# solver. HiGHS moves to a corner after its own (crossover), so the few lines of the path are here.
#
#   max  t value.v + sum_R log(most - A v) + sum_V log v          for t -> infinity, by Newton's method
#
# The centre depends on which constraints are written down, also on redundant ones.
#
# The barrier is self-concordant, so damped Newton steps of length 1 / (1 + decrement) need no line search; at
# large t the values that one compares are lost to cancellation. Nor are the normal equations formed. Near
# a wall their entries are 1e18, beside which the curvature along the face of optima, all that the centre is
# chosen by, is lost to rounding (alike jobs then differed by 4 %, on some processors). The step and the
# multipliers are solved for together instead, from a matrix whose entries stay near one.

import math

import numpy as np
from numpy.typing import NDArray

from coadapt.policies.solvers.lp import Lp

FloatArray = NDArray[np.float64]

# t grows by this factor until its share of the objective is known to this part.
GROWTH, TOLERANCE = 20.0, 1e-7
NEWTON_MAX, NEWTON_DONE = 60, 1e-4
# Below this decrement the whole step converges quadratically (and stays inside below 1).
WHOLE_STEP = 0.25


def solve_central(problem: Lp, start_V: FloatArray) -> FloatArray:
    """Return x_V of the largest value_V @ x_V, the most central of them. `upper_V` is not heeded.

    start_V: strictly inside of all constraints. Dense: for hundreds of variables. A value_V of zeros asks for
    the centre of all that is allowed.
    """
    num_rows, num_variables = len(problem.most_R), len(problem.value_V)
    matrix_RV = np.zeros((num_rows, num_variables))
    np.add.at(matrix_RV, (problem.row_N, problem.column_N), problem.entry_N)
    binding_R = matrix_RV.any(axis=1)
    matrix_RV, most_R = matrix_RV[binding_R], problem.most_R[binding_R]
    scale = float(np.abs(problem.value_V).max(initial=0.0))
    if not scale:
        return _centred(matrix_RV, most_R, problem.value_V, start_V)
    value_V, t, v_V = problem.value_V / scale, 1.0, start_V
    while True:
        v_V = _centred(matrix_RV, most_R, t * value_V, v_V)
        if (num_rows + num_variables) / t <= TOLERANCE * max(float(value_V @ v_V), TOLERANCE):
            return v_V
        t *= GROWTH


def _centred(matrix_RV: FloatArray, most_R: FloatArray, pull_V: FloatArray, v_V: FloatArray) -> FloatArray:
    """Return the v that maximises pull.v + sum log(most - A v) + sum log v, from a v inside."""
    num_rows, num_variables = matrix_RV.shape
    system = np.eye(num_rows + num_variables)
    wanted = np.zeros(num_rows + num_variables)
    for _ in range(NEWTON_MAX):
        left_R = most_R - matrix_RV @ v_V
        # In units of v, so that the curvature of log v is the identity however near the walls v is.
        scaled_RV = matrix_RV * v_V[None, :]
        gradient_V = pull_V * v_V - (scaled_RV / left_R[:, None]).sum(axis=0) + 1.0
        np.fill_diagonal(system[:num_rows, :num_rows], -(left_R**2))
        system[:num_rows, num_rows:], system[num_rows:, :num_rows] = scaled_RV, scaled_RV.T
        wanted[num_rows:] = gradient_V
        try:
            move_V = np.linalg.solve(system, wanted)[num_rows:]
        except np.linalg.LinAlgError:  # on a wall, as far as can be told: near enough
            break
        decrement = math.sqrt(max(float(gradient_V @ move_V), 0.0))
        if not decrement > NEWTON_DONE:
            break
        length = 1.0 if decrement < WHOLE_STEP else 1.0 / (1.0 + decrement)
        after_V = v_V * (1.0 + length * move_V)
        if after_V.min() <= 0.0 or (most_R - matrix_RV @ after_V).min() <= 0.0:
            break  # by rounding only: the centre is as good as it gets
        v_V = after_V
    return v_V
