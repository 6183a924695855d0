"""Intervals that are corrected by how far past ones lay off."""

import math

import numpy as np
import pytest

from coadapt.sim.ahead.calibration import (
    MOMENTS_MIN,
    SCORES_MIN,
    Calibration,
)
from coadapt.sim.ahead.estimate import Range

HOUR_S = 3_600.0
SAID = Range(low=1_000.0, median=2_000.0, high=3_000.0)


def test_few_scores_change_nothing() -> None:
    known = Calibration()
    for number in range(SCORES_MIN - 1):
        known.add(SAID, 50_000.0, number * HOUR_S)
    assert known.corrected(SAID) == SAID


@pytest.mark.parametrize("late", [0.2, 1.0, 5.0])
def test_of_truths_that_come_late_or_early_nine_in_ten_lie_within(late: float) -> None:
    random = np.random.default_rng(1)
    known = Calibration()
    within = 0
    for number in range(1_200):
        median = float(random.uniform(600.0, 20_000.0))
        said = Range(low=0.9 * median, median=median, high=1.1 * median)
        truth = late * median * math.exp(0.5 * float(random.standard_normal()))
        found = known.corrected(said)
        within += number >= 200 and found.low <= truth <= found.high
        known.add(said, truth, number * HOUR_S)
    assert 0.87 <= within / 1_000 <= 0.93


def test_an_interval_that_is_too_wide_narrows() -> None:
    known = Calibration()
    for number, truth in enumerate(np.linspace(1_900.0, 2_100.0, 100)):
        known.add(SAID, float(truth), number * HOUR_S)
    found = known.corrected(SAID)
    assert 1_400.0 < found.low <= found.median <= found.high < 2_200.0


def test_outcomes_of_few_moments_do_not_narrow_it() -> None:
    known = Calibration()
    for number in range(100):
        known.add(SAID, 2_000.0, (number % (MOMENTS_MIN - 1)) * HOUR_S)
    assert known.corrected(SAID) == SAID
    for _ in range(100):
        known.add(SAID, 9_000.0, 0.0)
    found = known.corrected(SAID)
    assert found.low < SAID.low
    assert found.high > 8_000.0


def test_what_does_not_end_stays_so() -> None:
    never = Range(low=1_000.0, median=math.inf, high=math.inf)
    known = Calibration()
    for number in range(SCORES_MIN):
        known.add(never, 2_000.0, number * HOUR_S)
    assert known.corrected(never).high == math.inf
