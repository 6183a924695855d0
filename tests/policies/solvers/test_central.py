"""Where the interior-point method of published comparisons ends among many optima."""

import numpy as np
import pytest

from coadapt.policies.solvers.central import solve_central
from coadapt.policies.solvers.lp import Lp


def programme(value_V: list[float], rows: list[list[float]], most_R: list[float]) -> Lp:
    matrix_RV = np.array(rows, dtype=np.float64)
    row_N, column_N = np.nonzero(matrix_RV)
    entry_N = matrix_RV[row_N, column_N]
    num_variables = len(value_V)
    return Lp(
        np.array(value_V),
        row_N,
        column_N,
        entry_N,
        np.array(most_R),
        np.ones(num_variables),
    )


def parts(floor_V: list[float], width_V: list[float], num_gpus: float) -> Lp:
    """Return the programme of parts of the time that are at least `floor_V`, without an
    objective.
    """
    one = np.eye(len(floor_V)).tolist()
    least = (-np.eye(len(floor_V))).tolist()
    most_R = [num_gpus, *([1.0] * len(floor_V)), *(-floor for floor in floor_V)]
    return programme([0.0] * len(floor_V), [width_V, *one, *least], most_R)


@pytest.mark.parametrize(
    ("floor_V", "width_V", "num_gpus", "ecos_V"),
    [
        (
            [0.1, 0.3, 0.8, 0.05],
            [1.0, 2.0, 1.0, 4.0],
            4.0,
            [0.44997685, 0.5191407, 0.87761473, 0.27830581],
        ),
        (
            [0.1, 0.1, 0.3, 0.8],
            [1.0, 1.0, 2.0, 4.0],
            8.0,
            [0.54524687, 0.54524687, 0.68400726, 0.85401948],
        ),
    ],
)
def test_without_an_objective_it_ends_where_ecos_does(
    floor_V: list[float], width_V: list[float], num_gpus: float, ecos_V: list[float]
) -> None:
    """What ECOS 2.0.14 answered to these; it stops at 1e-8 as we do, at an answer known
    to about 1e-5.
    """
    found_V = solve_central(parts(floor_V, width_V, num_gpus))
    assert found_V == pytest.approx(np.array(ecos_V), abs=2e-5)


def test_those_that_are_alike_are_equal_and_those_that_lose_are_told_apart() -> None:
    """One GPU for the best; of the others, who is nearer to it has more of the nothing
    that they get.
    """
    found_V = solve_central(programme([3.0, 3.0, 2.0, 1.0], [[1.0] * 4], [1.0]))
    assert found_V is not None
    assert found_V[0] == found_V[1] == pytest.approx(0.5, abs=1e-6)
    assert 1e-6 > found_V[2] > found_V[3] > 0.0


def test_what_cannot_be_has_no_answer() -> None:
    assert solve_central(parts([0.9, 0.9], [1.0, 1.0], 1.0)) is None
    assert solve_central(programme([1.0, 1.0], [[1.0, 0.0]], [1.0])) is None


def test_nothing_has_an_answer_of_nothing() -> None:
    nothing = solve_central(programme([], [[]], [1.0]))
    assert nothing is not None
    assert not len(nothing)
