"""Intervals that are corrected by how far past ones lay off."""

import math
from collections.abc import Sequence

import numpy as np
import pytest

from coadapt.sim.ahead import calibration
from coadapt.sim.ahead.calibration import (
    MOMENTS_HALF,
    SCORES_MIN,
    Calibration,
    Past,
)
from coadapt.sim.ahead.estimate import Range

HOUR_S = 3_600.0
LATER_S = 1e9
SAID = Range(low=1_000.0, median=2_000.0, high=3_000.0)


def each_hour(
    came_s: Sequence[float], said: Range = SAID, together: int = 1
) -> list[Past]:
    """Return an estimate for each outcome, `together` of them in each hour."""
    return [
        Past(said=said, at=number // together * HOUR_S, came_s=each)
        for number, each in enumerate(came_s)
    ]


def covered(past: Sequence[Past], since: float) -> float:
    """Return which part of the estimates from `since` (s) on held what came, each
    corrected by what was known at its instant.
    """
    within = []
    for at in sorted({each.at for each in past if each.at >= since}):
        known = Calibration.of([each for each in past if each.at < at], at)
        for each in past:
            if each.at == at:
                found = known.corrected(each.said)
                within.append(found.low <= each.came_s <= found.high)
    return sum(within) / len(within)


def test_few_scores_change_nothing() -> None:
    known = Calibration.of(each_hour([50_000.0] * (SCORES_MIN - 1)), LATER_S)
    assert known.corrected(SAID) == SAID


@pytest.mark.parametrize("late", [0.2, 1.0, 5.0])
def test_of_truths_that_come_late_or_early_nine_in_ten_lie_within(late: float) -> None:
    random = np.random.default_rng(1)
    past = []
    for number in range(700):
        median = float(random.uniform(600.0, 20_000.0))
        said = Range(low=0.8 * median, median=median, high=1.2 * median)
        truth = late * median * math.exp(0.5 * float(random.standard_normal()))
        past.append(Past(said=said, at=number // 10 * HOUR_S, came_s=truth))
    assert 0.87 <= covered(past, 40 * HOUR_S) <= 0.93


def test_the_level_follows_days_that_become_worse(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each estimate is a little further off than the one before, so that nine in ten of
    the past scores would hold too few.
    """
    random = np.random.default_rng(2)
    far = 0.2 + 0.002 * np.arange(1_000)
    came_s = 2_000.0 * np.exp(far * np.abs(random.standard_normal(1_000)))
    past = each_hour([float(each) for each in came_s], together=10)
    adaptive = covered(past, 40 * HOUR_S)
    monkeypatch.setattr(calibration, "STEP", 0.0)
    assert covered(past, 40 * HOUR_S) < adaptive - 0.1
    assert adaptive >= 0.78


def test_what_is_late_counts_before_it_comes() -> None:
    """The quick jobs have ended; as many others are late, and still run."""
    quick = [Past(said=SAID, at=at, came_s=1_500.0) for at in each_instant(0.0)]
    slow = [Past(said=SAID, at=at, came_s=90_000.0) for at in each_instant(1.0)]
    at = 30 * HOUR_S
    alone = Calibration.of(quick, at).corrected(SAID)
    both = Calibration.of([*quick, *slow], at).corrected(SAID)
    assert alone.high <= SAID.high
    assert both.high > 2.0 * SAID.high


def each_instant(after_s: float) -> list[float]:
    return [number * HOUR_S + after_s for number in range(22)]


def test_a_later_outcome_teaches_nothing_yet() -> None:
    past = each_hour([50_000.0] * 60)
    assert Calibration.of(past, 900.0) == Calibration()
    early = each_hour([1_500.0] * 60)
    assert Calibration.of(early, 900.0) == Calibration()


def test_an_interval_that_is_too_wide_narrows() -> None:
    past = each_hour([float(each) for each in np.linspace(1_900.0, 2_100.0, 100)])
    found = Calibration.of(past, LATER_S).corrected(SAID)
    assert 1_400.0 < found.low <= found.median <= found.high < 2_200.0


def test_outcomes_of_few_moments_move_it_less() -> None:
    many = each_hour([9_000.0] * 100)
    together = [Past(said=SAID, at=0.0, came_s=9_000.0)] * 100
    all_of_it = Calibration.of(many, LATER_S).moves_by
    part = Calibration.of(together, LATER_S).moves_by
    assert part == pytest.approx(
        all_of_it / 100 * (100 + MOMENTS_HALF) / (1 + MOMENTS_HALF)
    )
    assert 0.0 < part < all_of_it / 5


def test_what_is_sure_moves_less_than_what_is_not() -> None:
    known = Calibration(moves_by=1.0)
    sure = Range(low=1_950.0, median=2_000.0, high=2_050.0)
    assert known.corrected(sure).high - sure.high < 600.0
    assert known.corrected(SAID).high - SAID.high > 2_000.0


def test_what_does_not_end_stays_so() -> None:
    never = Range(low=1_000.0, median=math.inf, high=math.inf)
    past = each_hour([2_000.0] * SCORES_MIN, never)
    assert Calibration.of(past, LATER_S) == Calibration()
    found = Calibration(moves_by=1.0).corrected(never)
    assert found.low < never.low
    assert found.high == math.inf
