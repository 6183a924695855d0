"""The programmes over parts of the time: closed forms on one GPU type, and laws of
optima.
"""

import numpy as np
import pytest

from coadapt.policies.solvers.lp import Lp, solve_lp
from coadapt.policies.solvers.time_shares import (
    Base,
    central_max_min,
    central_max_total,
    equal_parts,
    least_worst,
    max_min,
    max_total,
)


def draw(seed: int, num_types: int) -> tuple[Base, np.ndarray, np.random.Generator]:
    rng = np.random.default_rng(seed)
    num_jobs = int(rng.integers(1, 12))
    base = Base(
        rate_JT=rng.uniform(0.1, 10.0, (num_jobs, num_types))
        * (rng.random((num_jobs, num_types)) < 0.8),
        width_J=rng.choice([1, 2, 4], num_jobs),
        gpus_T=rng.integers(4, 9, num_types),
    )
    return base, rng.uniform(1.0, 1000.0, num_jobs), rng


def lawful(base: Base, x_JT: np.ndarray) -> bool:
    return bool(
        (x_JT >= -1e-9).all()
        and (x_JT.sum(axis=1) <= 1 + 1e-7).all()
        and ((base.width_J[:, None] * x_JT).sum(axis=0) <= base.gpus_T + 1e-6).all()
        and not x_JT[~base.can].any()
    )


@pytest.mark.parametrize("seed", range(20))
def test_on_one_type_the_least_makespan_is_the_longest_job_or_the_work_over_the_gpus(
    seed: int,
) -> None:
    base, left_J, _ = draw(seed, 1)
    can_J = base.can.any(axis=1)
    x_JT = max_min(base, left_J)
    assert x_JT is not None
    assert lawful(base, x_JT)
    run_s_J = np.where(can_J, left_J / np.where(can_J, base.rate_JT[:, 0], 1.0), 0.0)
    closed = max(run_s_J.max(), (base.width_J * run_s_J).sum() / base.gpus_T[0])
    rate_J = base.rates(x_JT)
    assert np.max(left_J[can_J] / rate_J[can_J], initial=0.0) == pytest.approx(
        closed, rel=1e-5
    )


@pytest.mark.parametrize("seed", range(20))
def test_what_an_optimum_leaves_over_is_used(seed: int) -> None:
    """No job can run more on any type without another running less."""
    base, left_J, _ = draw(seed, 2)
    x_JT = max_min(base, left_J)
    assert x_JT is not None
    idle_T = base.gpus_T - (base.width_J[:, None] * x_JT).sum(axis=0)
    idle_J = 1.0 - x_JT.sum(axis=1)
    more_JT = (
        np.minimum(idle_T[None, :] / base.width_J[:, None], idle_J[:, None]) * base.can
    )
    assert (more_JT < 1e-5).all()


@pytest.mark.parametrize("seed", range(10))
def test_the_most_central_optimum_is_an_optimum_and_treats_equals_alike(
    seed: int,
) -> None:
    base, left_J, _ = draw(seed, 2)
    twins = Base(np.vstack([base.rate_JT] * 2), np.tile(base.width_J, 2), base.gpus_T)
    left_J = np.tile(left_J, 2)
    corner = max_min(twins, left_J)
    central = central_max_min(twins, left_J)
    can_J = twins.can.any(axis=1)
    assert corner is not None
    assert central is not None
    assert lawful(twins, central)
    if can_J.any():
        reached = [
            float((twins.rates(x) / left_J)[can_J].min()) for x in (corner, central)
        ]
        assert reached[1] == pytest.approx(reached[0], rel=1e-4)
    half = len(base.width_J)
    assert central[:half] == pytest.approx(central[half:], abs=1e-5)
    value_JT = twins.rate_JT * twins.width_J[:, None]
    best = max_total(twins, value_JT)
    middle = central_max_total(twins, value_JT)
    assert best is not None
    assert middle is not None
    assert (value_JT * middle).sum() == pytest.approx((value_JT * best).sum(), rel=1e-4)
    assert middle[:half] == pytest.approx(middle[half:], abs=1e-4)


@pytest.mark.parametrize("seed", range(20))
def test_the_worst_finish_time_ratio_is_that_of_the_closed_form(seed: int) -> None:
    base, left_J, rng = draw(seed, 1)
    can_J = base.can[:, 0]
    if not can_J.any():
        return
    age_J = rng.uniform(0.0, 100.0, len(left_J))
    equal_J = base.rates(equal_parts(base))
    ideal_J = age_J / 2.0 + left_J / np.where(can_J, equal_J, 1.0)
    x_JT = least_worst(base, age_J, left_J, ideal_J)
    assert x_JT is not None
    assert lawful(base, x_JT)
    rho_J = (age_J + left_J / np.where(can_J, base.rates(x_JT), 1.0))[can_J] / ideal_J[
        can_J
    ]

    def possible(rho: float) -> bool:
        spare_J = rho * ideal_J[can_J] - age_J[can_J]
        part_J = left_J[can_J] / base.rate_JT[can_J, 0] / np.maximum(spare_J, 1e-12)
        return bool(
            (spare_J > 0).all()
            and (part_J <= 1).all()
            and (part_J * base.width_J[can_J]).sum() <= base.gpus_T[0]
        )

    assert possible(float(rho_J.max()) * 1.001)
    assert not possible(float(rho_J.max()) * 0.999)


def test_an_impossible_floor_has_no_solution_and_an_open_programme_is_an_error() -> (
    None
):
    base = Base(np.ones((2, 1)), np.array([1, 1]), np.array([1]))
    assert max_total(base, np.ones((2, 1)), np.array([0.8, 0.8])) is None
    none = np.zeros(0, dtype=np.int64)
    with pytest.raises(ValueError, match="1 variables has no upper bound"):
        solve_lp(
            Lp(np.ones(1), none, none, np.zeros(0), np.ones(1), np.full(1, np.inf))
        )
