"""Least squares with coefficients >= 0, for a few columns and many problems at once,
without a solver.
"""

from itertools import combinations

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]
# relative to the largest diagonal, so that columns that are alike can be solved
RIDGE = 1e-12


def least_squares(columns_GPK: FloatArray, target_GP: FloatArray) -> FloatArray:
    """Return the coefficients >= 0, (G, K), that bring columns_GPK times them closest
    to target_GP.

    G problems of P points and K columns; exact, by trying every set of columns: K up to
    about 4.
    Of equal fits the one with fewer, earlier columns.
    """
    num, _, width = columns_GPK.shape
    gram_GKK = np.einsum("gpi,gpj->gij", columns_GPK, columns_GPK)
    right_GK = np.einsum("gpi,gp->gi", columns_GPK, target_GP)
    # with no column at all
    best_GK = np.zeros((num, width))
    least_G = np.zeros(num)
    for size in range(1, width + 1):
        for chosen in combinations(range(width), size):
            pick = np.array(chosen)
            part_GSS = gram_GKK[:, pick[:, None], pick[None, :]]
            scale_G = np.maximum(
                np.einsum("gss->gs", part_GSS).max(axis=1), np.finfo(float).tiny
            )
            part_GSS = part_GSS + RIDGE * scale_G[:, None, None] * np.eye(size)
            found_GS = np.linalg.solve(part_GSS, right_GK[:, pick][:, :, None])[:, :, 0]
            # The sum of squares but for that of the targets.
            value_G = np.einsum("gs,gst,gt->g", found_GS, part_GSS, found_GS)
            value_G -= 2.0 * np.einsum("gs,gs->g", found_GS, right_GK[:, pick])
            better_G = (found_GS >= 0.0).all(axis=1) & (
                value_G < least_G - 1e-9 * np.abs(least_G)
            )
            least_G = np.where(better_G, value_G, least_G)
            filled_GK = np.zeros((num, width))
            filled_GK[:, pick] = found_GS
            best_GK = np.where(better_G[:, None], filled_GK, best_GK)
    return best_GK
