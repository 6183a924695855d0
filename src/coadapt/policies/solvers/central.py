"""The most central of a linear programme's optima, by the path of a logarithmic barrier."""

# Programmes over parts of the time often have many optima. A simplex method ends in a corner of them, where
# jobs that are alike get everything or nothing; an interior-point method ends near their analytic centre,
# where these are treated alike, and what no constraint asks for is spread. Published figures come from such a
# solver. HiGHS moves to a corner after its own (crossover), so the few lines of the path are here.
#
#   max  t value.v + sum_R log(most - A v) + sum_V log v          for t -> infinity, by Newton's method
#
# The centre depends on which constraints are written down, also on redundant ones.

import numpy as np
from numpy.typing import NDArray

from coadapt.policies.solvers.lp import Lp

FloatArray = NDArray[np.float64]

# t grows by this factor until its share of the objective is known to this part.
GROWTH, TOLERANCE = 20.0, 1e-7
NEWTON_MAX, NEWTON_DONE, SHRINK, PROMISED = 60, 1e-8, 0.5, 0.1
# Below this length steps are lost to rounding: the centre is as good as it gets.
STEP_MIN = 1e-10


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
    for _ in range(NEWTON_MAX):
        left_R = most_R - matrix_RV @ v_V
        # In units of v, so that the matrix is at least the identity however near the walls v is.
        scaled_RV = matrix_RV * v_V[None, :] / left_R[:, None]
        gradient_V = pull_V * v_V - scaled_RV.sum(axis=0) + 1.0
        try:
            move_V = np.linalg.solve(scaled_RV.T @ scaled_RV + np.eye(len(v_V)), gradient_V)
        except np.linalg.LinAlgError:  # so near a wall that the identity is lost to rounding: near enough
            break
        step_V = move_V * v_V
        decrement = float(gradient_V @ move_V)
        if not decrement > NEWTON_DONE:
            break
        length = 1.0
        moved_R = matrix_RV @ step_V
        while length > STEP_MIN:
            after_V, after_R = v_V + length * step_V, left_R - length * moved_R
            if after_V.min() > 0.0 and after_R.min() > 0.0:
                gained = length * float(pull_V @ step_V) + float(
                    np.log(after_R / left_R).sum() + np.log(after_V / v_V).sum()
                )
                if gained >= PROMISED * length * decrement:
                    break
            length *= SHRINK
        if length <= STEP_MIN:
            break
        v_V = v_V + length * step_V
    return v_V
