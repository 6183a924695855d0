"""The days, weeks and months for which a tenant's budget is granted, in UTC."""

# Times are s since 1970-01-01 00:00 UTC, a Thursday. Each period begins at midnight, so
# that no period ends before the day does. The model may not import datetime, because it
# has a clock.

import calendar
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

DAY_S = 86_400.0
DAYS_TO_MONDAY = 3  # from the last Monday to 1970-01-01
FIRST_YEAR = 1970
MONTH_S = 146_097 / 4_800 * DAY_S  # the mean: 400 years have 146,097 days


class BudgetPeriod(StrEnum):
    """How often a budget is granted again."""

    DAY = "day"
    WEEK = "week"
    MONTH = "month"

    def around(self, at: float) -> tuple[float, float]:
        """Return when the period begins that `at` (s) is in, and when the next one
        begins, s. An instant at which two periods meet is in the later one.
        """
        day = at // DAY_S
        match self:
            case BudgetPeriod.DAY:
                return day * DAY_S, (day + 1) * DAY_S
            case BudgetPeriod.WEEK:
                monday = day - (day + DAYS_TO_MONDAY) % 7
                return monday * DAY_S, (monday + 7) * DAY_S
            case BudgetPeriod.MONTH:
                month = _month(at)
                return _begin_of(month), _begin_of(month + 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class PeriodStart:
    """A period, and what each tenant's jobs had cost when it began."""

    period: BudgetPeriod
    begins_at: float
    """s since 1970."""
    ends_at: float
    """When the next period begins, s since 1970."""
    spent: Mapping[str, float]
    """By tenant."""


def midnight_text(at: float) -> str:
    """Return the midnight at `at` (s since 1970) in words, such as 2027-01-31 00:00
    UTC.
    """
    month = _month(at)
    day = int((at - _begin_of(month)) // DAY_S) + 1
    return f"{FIRST_YEAR + month // 12:04}-{month % 12 + 1:02}-{day:02} 00:00 UTC"


def _month(at: float) -> int:
    """Return the month of an instant (s), counted from January 1970."""
    month = int(at // MONTH_S)
    while _begin_of(month) > at:
        month -= 1
    while _begin_of(month + 1) <= at:
        month += 1
    return month


def _begin_of(month: int) -> float:
    """Return when a month begins, s; 0: January 1970."""
    first = (FIRST_YEAR + month // 12, month % 12 + 1, 1, 0, 0, 0)
    return float(calendar.timegm(first))
