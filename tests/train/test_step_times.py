"""What a run keeps of its step times: means for reports, typical times for the choice
of a batch.
"""

import math

import numpy as np
import pytest

from coadapt.goodput.profile import ProfileKey
from coadapt.model import Placement
from coadapt.train.step_times import KEPT, StepTimes

ONE, TWO = Placement((1,)), Placement((2,))


def test_means_count_every_pass() -> None:
    times = StepTimes()
    for seconds in (1.0, 2.0, 6.0):
        times.add(TWO, 32, seconds, 2.0 * seconds)
    times.add(ONE, 64, 5.0, 5.0)
    profile = times.build()
    assert profile.compute_s.tolist() == pytest.approx([3.0, 5.0])
    assert profile.step_s.tolist() == pytest.approx([6.0, 5.0])
    assert times.num_replicas_profiled == 2


def test_slow_passes_of_a_busy_machine_leave_the_typical_time_as_it_is() -> None:
    draw, times = np.random.default_rng(0), StepTimes()
    for atomic, count in ((4, 6), (8, 42)):
        for _ in range(count):
            delay_s = draw.exponential(0.01) * (draw.random() < 0.4)
            times.add(ONE, atomic, 0.01 + delay_s, 0.01 + delay_s)
    assert times.typical().compute_s.tolist() == pytest.approx([0.01, 0.01], rel=0.05)
    assert max(times.build().compute_s) > 0.0125


def test_a_wait_for_data_counts_by_its_mean() -> None:
    """Four fetch processes: one pass waits for all, and the next three for none."""
    times = StepTimes()
    for number in range(40):
        fetch_s = 0.4 * (number % 4 == 0)
        times.add(ONE, 8, 0.01 + fetch_s, 0.02 + fetch_s, fetch_s)
    typical = times.typical()
    assert typical.compute_s.tolist() == pytest.approx([0.11])
    assert typical.step_s.tolist() == pytest.approx([0.12])


def test_a_larger_pass_is_slower_once_its_times_show_it() -> None:
    times = StepTimes()
    for number in range(6):
        times.add(ONE, 4, 0.010 + 0.001 * number, 0.010 + 0.001 * number)
    for number in range(42):
        times.add(ONE, 8, 0.011 + 0.0001 * number, 0.011 + 0.0001 * number)
    typical = times.typical().step_s.tolist()
    assert typical[0] == typical[1] == pytest.approx(0.012, rel=0.01)
    for _ in range(42):
        times.add(ONE, 16, 0.020, 0.020)
    assert times.typical().step_s.tolist() == pytest.approx(
        [0.01125, 0.012, 0.020], rel=0.01
    )


def test_old_passes_are_forgotten_but_not_by_the_mean() -> None:
    times = StepTimes()
    for seconds in [4.0] * KEPT + [1.0] * KEPT:
        times.add(ONE, 8, seconds, seconds)
    assert times.typical().compute_s.tolist() == [1.0]
    assert times.build().compute_s.tolist() == pytest.approx([2.5])


def test_what_only_a_checkpoint_knows_is_its_mean() -> None:
    times = StepTimes(means={ProfileKey.of(TWO, 32): (7, 1.5, 2.0)})
    assert times.typical().step_s.tolist() == [2.0]
    times.add(TWO, 32, 3.0, 4.0)
    assert times.typical().step_s.tolist() == [4.0]
    assert times.means[ProfileKey.of(TWO, 32)] == (8, 1.6875, 2.25)


@pytest.mark.parametrize(
    ("compute_s", "step_s"),
    [(0.0, 1.0), (1.0, 0.0), (-1.0, 1.0), (math.nan, 1.0), (1.0, math.inf)],
)
def test_times_must_be_positive_and_finite(compute_s: float, step_s: float) -> None:
    times = StepTimes()
    with pytest.raises(ValueError, match="must be finite and > 0"):
        times.add(ONE, 32, compute_s, step_s)
    assert times.means == {}
