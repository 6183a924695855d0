"""When replicas talk: seldom where steps are short, and never past a measured step."""

import pytest

from coadapt.train import pace
from coadapt.train.pace import MEASURE_PERIOD, MEASURED_AT_FIRST, Pace, measures


def strides(monkeypatch: pytest.MonkeyPatch, step_s: float) -> list[int]:
    """Return the strides of the talks in 200 steps of `step_s` seconds."""
    now = [100.0]
    monkeypatch.setattr(pace.time, "monotonic", lambda: now[0])
    found, mine = [], Pace()
    for step in range(200):
        now[0] += step_s
        if mine.talks(step):
            mine.stride = mine.next(step + 1)
            found.append(mine.stride)
        else:
            assert not measures(step, compares=False)
    return found


@pytest.mark.parametrize(
    ("step_s", "stride"), [(0.01, 8), (0.051, 4), (0.15, 2), (0.21, 1), (2.0, 1), (1e-9, MEASURE_PERIOD)]
)
def test_the_stride_follows_the_step_time(
    monkeypatch: pytest.MonkeyPatch, step_s: float, stride: int
) -> None:
    found = strides(monkeypatch, step_s)
    assert found[: MEASURED_AT_FIRST - 1] == [1] * (MEASURED_AT_FIRST - 1)
    assert set(found[MEASURED_AT_FIRST:]) == {stride}


def test_a_run_that_went_back_talks_after_each_step_at_first() -> None:
    mine = Pace()
    mine.next(200)
    assert mine.next(150) == 1


def test_the_time_before_the_first_word_says_nothing_of_the_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that comes back after a million steps, on a machine that has just been switched on."""
    monkeypatch.setattr(pace.time, "monotonic", lambda: 60.0)
    assert Pace().next(1_000_000) == 1
