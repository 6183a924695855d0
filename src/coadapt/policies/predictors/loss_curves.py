"""How far a job's loss has to fall: curves through what it logs (Optimus, EuroSys'18;
SLAQ, SoCC'17).
"""

# The family, with q = 0 for Optimus (§3.1) and q >= 0 for SLAQ's sub-linear algorithms:
#
#   loss(x) = 1 / (q x^2 + a x + b) + c,   q, a, b >= 0
#
# For a given c it is linear in 1 / (loss - c): non-negative least squares, as in both
# papers. c is tried on a grid below the least loss. An error of 1 / (loss - c) is (loss
# - c)^2 times as large in the loss, which weighs the points; late ones count more, as
# in Optimus's code: by 1, 4 and 16 in three equal parts.
#
# Measures that rise, accuracy for one, are turned round; losses are divided by the
# range seen so far, so that jobs compare. A point that is farther from its neighbours
# than their range is left out.

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from coadapt.policies.predictors.nonnegative import least_squares

FloatArray = NDArray[np.float64]

POINTS_MIN = 3  # both papers need as many
LATE_WEIGHTS = (1.0, 4.0, 16.0)
# Distance of c below the least loss, in ranges: from a curve that is at its end to one
# far from it.
GAPS_G: FloatArray = np.concatenate([[1e-6], np.geomspace(1e-3, 8.0, 40)])


@dataclass(frozen=True, slots=True, kw_only=True)
class LossCurve:
    """loss(x) = 1 / (quad x^2 + slope x + start) + floor, in ranges of the losses that
    it was fitted to.
    """

    quad: float
    slope: float
    start: float
    floor: float

    def at(self, x: float | NDArray[np.floating]) -> FloatArray:
        """Return the loss at x, in the unit of the points' x; never rising."""
        x = np.asarray(x, dtype=np.float64)
        curve: FloatArray = (
            1.0 / (self.quad * x * x + self.slope * x + self.start) + self.floor
        )
        return curve


def fit_curve(
    points: Sequence[tuple[float, float]], *, quadratic: bool = False
) -> LossCurve | None:
    """Return the curve through points (x >= 0 ascending, loss); None with too few, or
    if they are level.
    """
    if len(points) < POINTS_MIN:
        return None
    x_P, raw_P = np.array(points, dtype=np.float64).T
    loss_P = normalised(raw_P)
    if loss_P is None or x_P[-1] <= 0.0:
        return None
    kept_P = ~_outliers(loss_P)
    if kept_P.sum() < POINTS_MIN:
        return None
    x_P = x_P[kept_P] / x_P[-1]
    loss_P = loss_P[kept_P]
    found = _best_fit(x_P, loss_P, quadratic=quadratic)
    if found is None:
        return None
    coefficients_K, floor = found
    quad, slope, start = ([0.0] * (not quadratic) + coefficients_K.tolist())[:3]
    last = float(points[-1][0])
    return LossCurve(quad=quad / last**2, slope=slope / last, start=start, floor=floor)


def _best_fit(
    x_P: FloatArray, loss_P: FloatArray, *, quadratic: bool
) -> tuple[FloatArray, float] | None:
    """Return the polynomial (highest power first) whose inverse fits the losses over a
    floor, and that floor; None if none is positive at all points.

    One linear least-squares problem for each floor that is tried (G).
    """
    weight_P = np.sqrt(np.repeat(LATE_WEIGHTS, -(-len(x_P) // 3))[: len(x_P)])
    floor_G = loss_P.min() - GAPS_G
    above_GP = loss_P[None, :] - floor_G[:, None]
    powers = (x_P**2, x_P, np.ones_like(x_P)) if quadratic else (x_P, np.ones_like(x_P))
    powers_PK = np.stack(powers, axis=1)
    scale_GP = weight_P[None, :] * above_GP**2
    columns_GPK = scale_GP[:, :, None] * powers_PK[None, :, :]
    found_GK = least_squares(columns_GPK, scale_GP / above_GP)
    below_GP = np.einsum("pk,gk->gp", powers_PK, found_GK)
    usable_G = (below_GP > 0.0).all(axis=1) & (found_GK[:, -1] > 0.0)
    error_GP = 1.0 / np.where(below_GP > 0.0, below_GP, 1.0) - above_GP
    error_G = np.where(usable_G, ((weight_P * error_GP) ** 2).sum(axis=1), np.inf)
    best = int(np.argmin(error_G))
    if not np.isfinite(error_G[best]):
        return None
    return found_GK[best], float(floor_G[best])


def normalised(loss_P: FloatArray) -> FloatArray | None:
    """Return the losses from 1 downwards in ranges, turned round if they rise; None if
    they are level.
    """
    spread = float(np.ptp(loss_P))
    if not spread > 0.0:
        return None
    third = max(len(loss_P) // 3, 1)
    falls = np.median(loss_P[-third:]) <= np.median(loss_P[:third])
    turned_P = (loss_P if falls else -loss_P) / spread
    level_P: FloatArray = turned_P - turned_P.min()
    return level_P


def _outliers(loss_P: FloatArray) -> NDArray[np.bool_]:
    """Return which points are outside of the range of the five around them, by more
    than that range.
    """
    out_P = np.zeros(len(loss_P), dtype=bool)
    for index in range(1, len(loss_P) - 1):
        near = np.delete(loss_P[max(index - 2, 0) : index + 3], min(index, 2))
        spread = float(np.ptp(near))
        out_P[index] = not near.min() - spread <= loss_P[index] <= near.max() + spread
    return out_P
