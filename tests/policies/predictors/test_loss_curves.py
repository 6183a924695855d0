"""Laws of the curves that are fitted to losses, and of the least squares below them."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coadapt.policies.predictors.learning import fit_steps
from coadapt.policies.predictors.loss_curves import POINTS_MIN, fit_curve, normalised
from coadapt.policies.predictors.nonnegative import least_squares

positive = st.floats(0.05, 5.0)
lengths = st.integers(6, 60)


def points(
    slope: float, start: float, floor: float, num: int
) -> list[tuple[float, float]]:
    return [(float(k), 1.0 / (slope * k + start) + floor) for k in range(1, num + 1)]


@given(
    slope=positive,
    start=positive,
    floor=st.floats(0.0, 10.0),
    num=lengths,
    quadratic=st.booleans(),
)
@settings(max_examples=60, deadline=None)
def test_a_curve_of_the_family_is_found_again(
    slope: float, start: float, floor: float, num: int, quadratic: bool
) -> None:
    reported = points(slope, start, floor, num)
    curve = fit_curve(reported, quadratic=quadratic)
    assert curve is not None
    x_P, loss_P = np.array(reported).T
    expected = normalised(loss_P)
    assert expected is not None
    assert np.abs(curve.at(x_P) - expected).max() < 0.06  # of the range seen


@given(
    losses=st.lists(st.floats(-100.0, 100.0), min_size=POINTS_MIN, max_size=40),
    quadratic=st.booleans(),
)
@settings(max_examples=80, deadline=None)
def test_whatever_was_logged_the_curve_never_rises_and_stays_finite(
    losses: list[float], quadratic: bool
) -> None:
    curve = fit_curve(
        [(float(k), loss) for k, loss in enumerate(losses, 1)], quadratic=quadratic
    )
    if curve is None:
        return
    there = curve.at(np.linspace(0.0, 5.0 * len(losses), 50))
    assert np.isfinite(there).all()
    assert (np.diff(there) <= 1e-9 * np.abs(there[0])).all()
    assert min(curve.quad, curve.slope) >= 0.0 < curve.start


@given(
    num=lengths,
    scale=st.floats(0.01, 100.0),
    shift=st.floats(-10.0, 10.0),
    stretch=st.floats(1.0, 1e5),
)
@settings(max_examples=40, deadline=None)
def test_units_of_loss_and_of_x_do_not_matter_nor_which_way_it_goes(
    num: int, scale: float, shift: float, stretch: float
) -> None:
    reported = points(0.3, 0.7, 0.2, num)
    one = fit_curve(reported)
    other = fit_curve([(stretch * k, scale * loss + shift) for k, loss in reported])
    turned = fit_curve([(k, -loss) for k, loss in reported])
    assert one is not None
    assert other is not None
    assert turned is not None
    at = np.array([1.0, num / 2.0, 2.0 * num])
    assert other.at(stretch * at) == pytest.approx(one.at(at), abs=1e-3)
    assert turned.at(at) == pytest.approx(one.at(at), abs=1e-6)


def test_too_few_points_and_level_ones_give_no_curve() -> None:
    assert fit_curve([(1.0, 3.0), (2.0, 2.0)]) is None
    assert fit_curve([(float(k), 1.0) for k in range(1, 9)]) is None


def test_an_outlier_is_left_out() -> None:
    reported = points(0.5, 0.5, 0.0, 20)
    spoilt = [(x, 50.0 if x == 10.0 else loss) for x, loss in reported]
    curve = fit_curve(spoilt)
    clean = fit_curve(reported)
    assert curve is not None
    assert clean is not None
    fall = (curve.at(10.0) - curve.at(20.0)) / (curve.at(1.0) - curve.at(20.0))
    expected = (clean.at(10.0) - clean.at(20.0)) / (clean.at(1.0) - clean.at(20.0))
    assert fall == pytest.approx(expected, abs=0.05)


@given(seed=st.integers(0, 10_000), num=st.integers(1, 12), width=st.integers(1, 3))
@settings(max_examples=60, deadline=None)
def test_least_squares_are_scipy_s(seed: int, num: int, width: int) -> None:
    from scipy.optimize import nnls

    rng = np.random.default_rng(seed)
    columns = rng.uniform(-1.0, 1.0, (num, width))
    target = rng.uniform(-1.0, 1.0, num)
    found = least_squares(columns[None], target[None])[0]
    assert (found >= 0.0).all()
    error = float(np.linalg.norm(columns @ found - target))
    assert error == pytest.approx(nnls(columns, target)[1], abs=1e-5)


@given(p=st.floats(0.1, 10.0), q=st.floats(0.0, 1.0), r=st.floats(0.0, 0.1))
@settings(max_examples=40, deadline=None)
def test_step_times_of_the_family_are_found_again(p: float, q: float, r: float) -> None:
    seen = {n: p / n + q + r * n for n in (1, 2, 4, 8, 16)}
    found = fit_steps(seen)
    assert found[0] / 12 + found[1] + found[2] * 12 == pytest.approx(
        p / 12 + q + r * 12, rel=1e-3
    )


def test_a_job_seen_on_one_count_is_taken_to_scale() -> None:
    assert fit_steps({4: 2.0}) == pytest.approx((8.0, 0.0, 0.0))
    assert fit_steps({}) == (1.0, 0.0, 0.0)
