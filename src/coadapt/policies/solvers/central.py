"""A linear programme's optimum inside of all its optima, where the solvers of published
comparisons end.
"""

# Programmes over parts of the time often have many optima. A simplex method ends in a
# corner of them, where jobs that are alike get everything or nothing; an interior-point
# method ends inside, where these are treated alike, and what no constraint asks for is
# spread. Published figures come from such a solver, ECOS. HiGHS moves to a corner after
# its own (crossover), so the method of that solver, for linear programmes, is here:
#
#   min c x   with   G x + s = h, s >= 0          max -h z   with   G' z + c = 0, z >= 0
#
# are put into one self-dual programme with two scalars more, tau and kappa (Xu, Hung,
# Ye 1996), which is started outside and followed by Mehrotra's predictor and corrector
# (Domahidi, Chu, Boyd: ECOS, ECC 2013):
#
#   G' z + c tau = 0       G x + s = h tau        kappa + c x + h z = 0
#   s z = mu               kappa tau = mu -> 0
#
# The answer is x / tau. Which one of many is a property of this path: the start, the
# lengths of its steps and the scaling of the rows are part of the definition, so they
# are as published, constants too. Without an objective it is not quite the analytic
# centre, max sum log s: the embedding also bounds what s and tau are together, so that
# it ends nearer to the least that the constraints ask for.

# Tried: the limit of the logarithmic barrier, which is the analytic centre: with it the
# largest rho of `ossp` is 8.40, where the artifact has 7.74 and this method 7.75.

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from coadapt.policies.solvers.lp import Lp

FloatArray = NDArray[np.float64]

# As in ECOS: rounds of scaling, part of the way to the wall that a step goes, limits of
# that way and of the centring (sigma), and when residuals (relative) and gap are small
# enough.
SCALINGS = 3
TO_THE_WALL = 0.99
LENGTH_MAX = 0.999
CENTRING_MIN = 1e-4
TOLERANCE = 1e-8
STEPS_MAX = 100
# Of the answer, so that variables that are alike come out equal, whatever the
# processor's last digits.
DIGITS = 8


class _Form(NamedTuple):
    """G, h and c. G is minus diagonal `sign_V` (x >= 0), and under it the rows of the
    programme.

    L: both, V variables and R rows.
    """

    sign_V: FloatArray
    matrix_RV: FloatArray
    h_L: FloatArray
    c_V: FloatArray

    def times(self, x_V: FloatArray) -> FloatArray:
        """Return G x."""
        return np.concatenate([-self.sign_V * x_V, self.matrix_RV @ x_V])

    def back(self, z_L: FloatArray) -> FloatArray:
        """Return G' z."""
        num_variables = len(self.sign_V)
        back_V: FloatArray = (
            self.matrix_RV.T @ z_L[num_variables:] - self.sign_V * z_L[:num_variables]
        )
        return back_V


class _Point(NamedTuple):
    x_V: FloatArray
    s_L: FloatArray
    z_L: FloatArray
    tau: float
    kappa: float

    def moved(self, length: float, by: "_Point") -> "_Point":
        """Return the point `length` times `by` further."""
        return _Point(
            self.x_V + length * by.x_V,
            self.s_L + length * by.s_L,
            self.z_L + length * by.z_L,
            self.tau + length * by.tau,
            self.kappa + length * by.kappa,
        )


def solve_central(problem: Lp) -> FloatArray | None:
    """Return x_V of the largest value_V @ x_V; of several, one in the interior.
    `upper_V` is ignored.

    None: no solution, or no bounded one, was found. The method is dense, for hundreds
    of variables. With a value_V of zeros the result is an interior point of the
    feasible set. All x_V > 0, and variables that are alike have equal values.
    """
    if not len(problem.value_V):
        return np.zeros(0)
    form, unit_V = _scaled(problem)
    point = _start(form)
    for _ in range(STEPS_MAX):
        wrong = _residuals(form, point)
        if _done(form, point, wrong):
            # Not x_V: the s of x >= 0 is x, never below 0, and orders values near 0
            # too.
            return _rounded(point.s_L[: len(unit_V)] / form.sign_V / point.tau / unit_V)
        if point.tau < TOLERANCE * point.kappa:  # it follows a proof that there is none
            return None
        point = _step(form, point, wrong)
    return None


def _rounded(x_V: FloatArray) -> FloatArray:
    unit_V = 10.0 ** (np.floor(np.log10(x_V)) - (DIGITS - 1))
    return np.round(x_V / unit_V) * unit_V


def _scaled(problem: Lp) -> tuple[_Form, FloatArray]:
    """Return the programme with rows and columns of about one, and what its variables
    were multiplied by.
    """
    num_rows = len(problem.most_R)
    num_variables = len(problem.value_V)
    matrix_RV = np.zeros((num_rows, num_variables))
    np.add.at(matrix_RV, (problem.row_N, problem.column_N), problem.entry_N)
    binding_R = matrix_RV.any(axis=1)
    matrix_RV = matrix_RV[binding_R]
    most_R = problem.most_R[binding_R].copy()
    sign_V = np.ones(num_variables)
    unit_V = np.ones(num_variables)
    for _ in range(SCALINGS):
        row_R = np.sqrt(np.abs(matrix_RV).max(axis=1))
        row_V = np.sqrt(sign_V)
        column_V = np.sqrt(
            np.maximum(np.abs(matrix_RV).max(axis=0, initial=0.0), sign_V)
        )
        matrix_RV = matrix_RV / row_R[:, None] / column_V[None, :]
        sign_V = sign_V / row_V / column_V
        most_R = most_R / row_R
        unit_V = unit_V * column_V
    h_L = np.concatenate([np.zeros(num_variables), most_R])
    return _Form(sign_V, matrix_RV, h_L, -problem.value_V / unit_V), unit_V


def _start(form: _Form) -> _Point:
    """Return the least-squares x, s and z, pushed inside."""
    system = _System(form, np.ones(len(form.h_L)))
    x_V, minus_s_L = system.solve(np.zeros(len(form.c_V)), form.h_L)
    _, z_L = system.solve(-form.c_V, np.zeros(len(form.h_L)))
    return _Point(x_V, _inside(-minus_s_L), _inside(z_L), 1.0, 1.0)


def _inside(v_L: FloatArray) -> FloatArray:
    least = float(v_L.min(initial=np.inf))
    inside_L: FloatArray = v_L + 1.0 + (-least if least <= 0.0 else -TO_THE_WALL)
    return inside_L


def _residuals(form: _Form, point: _Point) -> tuple[FloatArray, FloatArray, float]:
    """Return by how much the three equations are missed."""
    x_V, s_L, z_L, tau, kappa = point
    dual_V = -form.back(z_L) - form.c_V * tau
    primal_L = s_L + form.times(x_V) - form.h_L * tau
    return dual_V, primal_L, kappa + float(form.c_V @ x_V + form.h_L @ z_L)


def _done(
    form: _Form, point: _Point, wrong: tuple[FloatArray, FloatArray, float]
) -> bool:
    dual = _norm(wrong[0]) / max(1.0, _norm(form.c_V))
    primal = _norm(wrong[1]) / max(1.0, _norm(form.h_L))
    gap = float(point.s_L @ point.z_L)
    value = abs(float(form.c_V @ point.x_V))
    small = max(dual, primal) < TOLERANCE * point.tau
    return small and gap < TOLERANCE * point.tau * max(point.tau, value)


def _norm(vector: FloatArray) -> float:
    return float(np.linalg.norm(vector))


def _step(
    form: _Form, point: _Point, wrong: tuple[FloatArray, FloatArray, float]
) -> _Point:
    """Return the point after a predictor step and a corrector step that uses it."""
    _, s_L, z_L, tau, kappa = point
    system = _System(form, s_L / z_L)
    per_tau = system.solve(-form.c_V, form.h_L)
    mu = (float(s_L @ z_L) + tau * kappa) / (len(s_L) + 1)

    def towards(sigma: float, product_L: FloatArray, product: float) -> _Point:
        """Return the way that leaves `sigma` of what is wrong, and takes `product` off
        s z and tau kappa.
        """
        rest = 1.0 - sigma
        x_V, z_by_L = system.solve(rest * wrong[0], product_L / z_L - rest * wrong[1])
        seen = float(form.c_V @ x_V + form.h_L @ z_by_L)
        slope = kappa / tau - float(form.c_V @ per_tau[0] + form.h_L @ per_tau[1])
        by_tau = (rest * wrong[2] - product / tau + seen) / slope
        z_by_L = z_by_L + by_tau * per_tau[1]
        s_by_L = -(product_L + s_L * z_by_L) / z_L
        return _Point(
            x_V + by_tau * per_tau[0],
            s_by_L,
            z_by_L,
            by_tau,
            -(product + kappa * by_tau) / tau,
        )

    ahead = towards(0.0, s_L * z_L, tau * kappa)
    sigma = float(np.clip((1.0 - _length(point, ahead)) ** 3, CENTRING_MIN, 1.0))
    bent_L = s_L * z_L + ahead.s_L * ahead.z_L - sigma * mu
    way = towards(sigma, bent_L, tau * kappa + ahead.tau * ahead.kappa - sigma * mu)
    return point.moved(TO_THE_WALL * _length(point, way), way)


def _length(point: _Point, way: _Point) -> float:
    """Return how far one can go, at most LENGTH_MAX, before s, z, tau or kappa is 0."""
    s_L = way.s_L / point.s_L
    z_L = way.z_L / point.z_L
    steepest = max(
        -float(s_L.min()),
        -float(z_L.min()),
        -way.tau / point.tau,
        -way.kappa / point.kappa,
    )
    return min(1.0 / steepest, LENGTH_MAX) if steepest > 0.0 else LENGTH_MAX


class _System:
    """The equations G' z = a, G x - w z = b of a step, factorised; w_L: s over z.

    Nor are the normal equations formed: near a wall their entries are 1e18, beside
    which what tells one optimum from another is lost. The rows of x >= 0 are put into
    the others, which are brought near one.
    """

    def __init__(self, form: _Form, w_L: FloatArray) -> None:
        from scipy.linalg import lu_factor

        self._form = form
        self._w_L = w_L
        num_variables = len(form.sign_V)
        diagonal = np.concatenate(
            [form.sign_V**2 / w_L[:num_variables], -w_L[num_variables:]]
        )
        system = np.diag(diagonal)
        system[num_variables:, :num_variables] = form.matrix_RV
        system[:num_variables, num_variables:] = form.matrix_RV.T
        self._unit = 1.0 / np.sqrt(np.maximum(np.abs(diagonal), 1.0))
        system *= self._unit[:, None] * self._unit[None, :]
        self._factors = lu_factor(system, overwrite_a=True, check_finite=False)

    def solve(self, a_V: FloatArray, b_L: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return x_V and z_L."""
        from scipy.linalg import lu_solve

        sign_V = self._form.sign_V
        num_variables = len(a_V)
        w_V = self._w_L[:num_variables]
        b_V = b_L[:num_variables]
        wanted = np.concatenate([a_V - sign_V * b_V / w_V, b_L[num_variables:]])
        found = self._unit * lu_solve(
            self._factors, self._unit * wanted, check_finite=False
        )
        x_V = found[:num_variables]
        return x_V, np.concatenate([-(b_V + sign_V * x_V) / w_V, found[num_variables:]])
