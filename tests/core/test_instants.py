"""The next multiple of a period is later than now, and the first one, whatever the
digits.
"""

import math
from fractions import Fraction

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from coadapt.core.instants import next_multiple

PERIODS = (
    st.floats(1e-6, 1e9)
    | st.integers(1, 10**6).map(lambda tenths: tenths / 10)
    | st.integers(1, 10**6).map(lambda parts: 1 / parts)
)
INSTANTS = st.floats(0.0, 2e9)


@given(PERIODS, INSTANTS)
@example(59.9, 1976.7)
@example(7.3, 43.8)
@example(1.1, 16.5)
def test_it_is_the_first_multiple_after(period_s: float, after: float) -> None:
    found = next_multiple(period_s, after=after)
    index = round(found / period_s)
    assert found > after
    assert found == index * period_s
    assert (index - 1) * period_s <= after


@given(PERIODS, st.integers(0, 10**6))
def test_from_one_multiple_to_the_next_none_is_left_out(
    period_s: float, index: int
) -> None:
    assert next_multiple(period_s, after=index * period_s) == (index + 1) * period_s


@given(PERIODS, INSTANTS, INSTANTS)
def test_it_may_be_that_very_instant_only_where_it_is_not_before(
    period_s: float, after: float, not_before: float
) -> None:
    found = next_multiple(period_s, after=after, not_before=not_before)
    assert found > after
    assert found >= not_before
    before = (round(found / period_s) - 1) * period_s
    assert before <= after or before < not_before


@given(st.floats(5e-324, 1e300), st.floats(-1e300, 1e300))
def test_no_period_is_too_short_nor_any_instant_too_late(
    period_s: float, after: float
) -> None:
    assert next_multiple(period_s, after=after) > after


@given(PERIODS, INSTANTS)
def test_it_is_within_a_rounding_of_the_true_multiple(
    period_s: float, after: float
) -> None:
    exact = Fraction(period_s) * (math.floor(Fraction(after) / Fraction(period_s)) + 1)
    found = next_multiple(period_s, after=after)
    # A product rounds; where it rounds down to `after`, the next one is meant.
    near = {
        float(exact),
        float(exact + Fraction(period_s)),
        float(exact - Fraction(period_s)),
    }
    assert any(abs(found - each) <= math.ulp(found) for each in near)


@pytest.mark.parametrize(
    ("period_s", "after"),
    [
        (0.0, 1.0),
        (-1.0, 1.0),
        (math.nan, 1.0),
        (math.inf, 1.0),
        (1.0, math.nan),
        (1.0, math.inf),
    ],
)
def test_what_is_no_period_is_refused(period_s: float, after: float) -> None:
    with pytest.raises(ValueError, match="a period > 0"):
        next_multiple(period_s, after=after)
