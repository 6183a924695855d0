import numpy as np
import pytest

from coadapt.policies.solvers.milp import Milp, solve_milp


def knapsack(*, integral: bool) -> Milp:
    """The dearest of three things of weights 3, 4, 5 and values 4, 5, 7 within a weight
    of 7.
    """
    return Milp(
        cost_V=np.array([-4.0, -5.0, -7.0]),
        matrix_RV=np.array([[3.0, 4.0, 5.0]]),
        low_R=np.array([-np.inf]),
        high_R=np.array([7.0]),
        lower_V=np.zeros(3),
        upper_V=np.ones(3),
        integral_V=np.full(3, integral),
    )


def test_whole_things_are_taken_and_the_optimum_is_proven() -> None:
    found = solve_milp(knapsack(integral=True))
    assert found is not None
    assert found.x_V.tolist() == [1.0, 1.0, 0.0]
    assert found.proven
    assert found.value == pytest.approx(-9.0)
    assert found.bound == pytest.approx(-9.0)


def test_without_whole_numbers_it_is_the_relaxation() -> None:
    found = solve_milp(knapsack(integral=False))
    assert found is not None
    assert found.value == pytest.approx(-7.0 - 4.0 * 2.0 / 3.0)
    assert found.bound == found.value


def test_an_impossible_programme_has_no_solution_and_an_open_one_is_an_error() -> None:
    impossible = knapsack(integral=True)._replace(
        low_R=np.array([13.0]), high_R=np.array([20.0])
    )
    assert solve_milp(impossible) is None
    with pytest.raises(ValueError, match="3 variables has no lower bound"):
        solve_milp(
            knapsack(integral=False)._replace(
                upper_V=np.full(3, np.inf), high_R=np.array([np.inf])
            )
        )
