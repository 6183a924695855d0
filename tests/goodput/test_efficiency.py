"""Laws of statistical efficiency and gain (Pollux, OSDI'21, eq. 5-7)."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coadapt.goodput.efficiency import efficiency, gain
from tests.goodput.strategies import norms

totals = st.floats(1.0, 1e5)
ROUNDING = 1e-12


@given(totals, totals, norms, norms)
def test_efficiency_lies_in_0_1_from_the_initial_batch_on(
    initial: float, more: float, sqr: float, var: float
) -> None:
    assert 0.0 < efficiency(initial + more, initial, sqr, var) <= 1.0


@given(totals, norms, norms)
def test_efficiency_is_1_at_the_initial_batch(
    initial: float, sqr: float, var: float
) -> None:
    assert efficiency(initial, initial, sqr, var) == 1.0


@given(totals, totals, totals, norms, norms)
def test_efficiency_never_rises_with_the_batch(
    initial: float, total: float, more: float, sqr: float, var: float
) -> None:
    larger = efficiency(total + more, initial, sqr, var)
    assert larger <= efficiency(total, initial, sqr, var) * (1.0 + ROUNDING)


@given(totals, totals, st.floats(1e-6, 1e6), norms)
def test_efficiency_is_the_quotient_of_noise_scales(
    initial: float, total: float, sqr: float, var: float
) -> None:
    noise_scale = initial * var / sqr
    quotient = (noise_scale + initial) / (noise_scale + total)
    assert efficiency(total, initial, sqr, var) == pytest.approx(quotient, rel=1e-9)


@given(st.floats(1.0, 1e4), norms, norms)
def test_gain_lies_between_1_and_the_scale(
    scale: float, sqr: float, var: float
) -> None:
    assert 1.0 - ROUNDING <= gain(scale, sqr, var) <= scale * (1.0 + ROUNDING)


@given(st.floats(1.0, 1e4), norms, norms)
def test_gain_is_scale_times_efficiency(scale: float, sqr: float, var: float) -> None:
    assert gain(scale, sqr, var) == pytest.approx(
        scale * efficiency(scale, 1.0, sqr, var), rel=1e-12
    )


def test_without_any_gradient_a_larger_batch_loses_nothing() -> None:
    assert efficiency(256.0, 128.0, 0.0, 0.0) == 1.0


def test_arrays_broadcast_and_scalars_stay_scalars() -> None:
    initial = np.array([[10.0], [20.0]])
    found = efficiency(np.array([20.0, 40.0]), initial, 1.0, 3.0)
    np.testing.assert_allclose(found, [[4 / 5, 4 / 7], [1.0, 4 / 5]])
    assert isinstance(efficiency(20.0, 10.0, 1.0, 3.0), float)
    assert gain(2.0, 1.0, 3.0) == 1.6
