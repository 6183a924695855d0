"""Where the days, weeks and months of budgets begin."""

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coadapt.model import Tenant
from coadapt.model.budget_period import BudgetPeriod, midnight_text


def at(text: str) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()


@pytest.mark.parametrize(
    ("period", "instant", "begins", "ends"),
    [
        ("day", "2026-12-31T23:59:59", "2026-12-31", "2027-01-01"),
        ("day", "2027-01-01T00:00:00", "2027-01-01", "2027-01-02"),
        ("week", "2027-01-03T23:59:59", "2026-12-28", "2027-01-04"),
        ("week", "2027-01-04T00:00:00", "2027-01-04", "2027-01-11"),
        ("month", "2028-02-29T12:00:00", "2028-02-01", "2028-03-01"),
        ("month", "2026-12-31T23:59:59", "2026-12-01", "2027-01-01"),
        ("month", "2027-01-01T00:00:00", "2027-01-01", "2027-02-01"),
        ("week", "1970-01-01T00:00:00", "1969-12-29", "1970-01-05"),
    ],
)
def test_a_period_begins_at_midnight_utc_a_week_on_monday(
    period: str, instant: str, begins: str, ends: str
) -> None:
    assert BudgetPeriod(period).around(at(instant)) == (at(begins), at(ends))
    assert midnight_text(at(ends)) == f"{ends} 00:00 UTC"


@given(st.floats(0.0, 1e11), st.sampled_from(list(BudgetPeriod)))
def test_each_instant_is_in_one_period_of_the_calendar(
    instant: float, period: BudgetPeriod
) -> None:
    begins_at, ends_at = period.around(instant)
    assert begins_at <= instant < ends_at
    assert period.around(begins_at) == (begins_at, ends_at)
    assert period.around(ends_at)[0] == ends_at
    begins = datetime.fromtimestamp(begins_at, UTC)
    assert (begins.hour, begins.minute, begins.second) == (0, 0, 0)
    if period is BudgetPeriod.MONTH:
        assert begins.day == 1
    if period is BudgetPeriod.WEEK:
        assert begins.weekday() == 0


def test_a_period_needs_a_budget() -> None:
    with pytest.raises(ValueError, match="needs a budget"):
        Tenant(budget_period=BudgetPeriod.DAY)
