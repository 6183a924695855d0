"""When rounds are: time goes on, whatever their length."""

import math

from hypothesis import given
from hypothesis import strategies as st

from coadapt.core.config import ROUND_S_MIN, SchedulerConfig
from coadapt.core.scheduler import Scheduler
from coadapt.core.state import SchedulerState
from tests.core.stage import Stage

LENGTHS = st.floats(ROUND_S_MIN, 1e5) | st.integers(1, 2000).map(
    lambda tenths: tenths / 10
)


@given(LENGTHS, st.floats(0.0, 2e9), st.floats(0.0, 2e9))
def test_the_next_round_is_after_the_last_and_not_before_now(
    round_s: float, at: float, round_at: float
) -> None:
    scheduler = Scheduler(
        SchedulerConfig(round_s=round_s), SchedulerState(at=at, round_at=round_at)
    )
    due_at = scheduler._next_round_at()
    assert due_at > round_at
    assert due_at >= at
    # It is a whole multiple, and the first one that will do.
    index = round(due_at / round_s)
    assert due_at == index * round_s
    before = (index - 1) * round_s
    assert before < at or before <= round_at


@given(LENGTHS, st.integers(0, 10**6))
def test_a_round_at_a_whole_multiple_is_followed_by_the_next_multiple(
    round_s: float, index: int
) -> None:
    at = index * round_s
    scheduler = Scheduler(
        SchedulerConfig(round_s=round_s), SchedulerState(at=at, round_at=at)
    )
    assert scheduler._next_round_at() == (index + 1) * round_s


def test_rounds_of_eleven_tenths_of_a_second_reach_the_end_of_an_hour() -> None:
    """Virtual time stood still at 16.5 s: 15 * 1.1 / 1.1 is less than 15."""
    stage = Stage(SchedulerConfig(round_s=1.1))
    stage.submit()
    due_at = stage.scheduler.state.round_due_at
    for _ in range(math.ceil(3600 / 1.1)):
        assert due_at is not None
        stage.timer(due_at)
        stage.plan({})
        assert (stage.scheduler.state.round_due_at or 0.0) > due_at
        due_at = stage.scheduler.state.round_due_at
    assert due_at is not None
    assert due_at > 3600.0
