"""Virtual time: order within an instant, cancelling, and stopping on the way."""

import math
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coadapt.sim.clock import ClockStandsError, VirtualClock


class Log:
    """A clock, and what was called when."""

    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.entries: list[tuple[float, str]] = []

    def note(self, text: str) -> Callable[[], None]:
        return lambda: self.entries.append((self.clock.now(), text))


def test_order_is_by_instant_then_last_then_call() -> None:
    log = Log()
    log.clock.call_at(2.0, log.note("alarm"), last=True)
    log.clock.call_at(2.0, log.note("first"))
    log.clock.call_at(1.0, log.note("early"))
    log.clock.call_at(2.0, log.note("second"))
    log.clock.run()
    assert log.entries == [
        (1.0, "early"),
        (2.0, "first"),
        (2.0, "second"),
        (2.0, "alarm"),
    ]


def test_what_comes_up_in_an_instant_still_precedes_its_last_ones() -> None:
    log = Log()
    log.clock.call_at(1.0, log.note("alarm"), last=True)
    log.clock.call_at(1.0, lambda: log.clock.call_at(1.0, log.note("answer")) and None)
    log.clock.run()
    assert log.entries == [(1.0, "answer"), (1.0, "alarm")]


def test_the_past_is_called_at_once_and_time_never_goes_back() -> None:
    log = Log()
    log.clock.call_at(5.0, lambda: log.clock.call_at(1.0, log.note("late")) and None)
    log.clock.run()
    assert log.entries == [(5.0, "late")]


def test_cancelled_callbacks_do_not_happen() -> None:
    log = Log()
    cancel = log.clock.call_at(1.0, log.note("no"))
    log.clock.call_at(0.5, cancel)
    log.clock.call_at(2.0, log.note("yes"))
    log.clock.run()
    cancel()
    assert log.entries == [(2.0, "yes")]
    assert log.clock.idle


def test_run_until_includes_its_instant_and_stands_there() -> None:
    log = Log()
    for at in (1.0, 2.0, 3.0):
        log.clock.call_at(at, log.note("tick"))
    log.clock.run(until=2.0)
    assert log.entries == [(1.0, "tick"), (2.0, "tick")]
    assert (log.clock.now(), log.clock.idle) == (2.0, False)
    log.clock.run(until=1.0)
    assert log.clock.now() == 2.0
    log.clock.run()
    assert (log.clock.now(), log.clock.idle) == (3.0, True)


@given(st.lists(st.tuples(st.integers(0, 5), st.booleans())))
def test_any_calls_come_in_order(calls: list[tuple[int, bool]]) -> None:
    clock = VirtualClock()
    called: list[tuple[float, bool, int]] = []
    for index, (at, last) in enumerate(calls):
        clock.call_at(at, lambda key=(at, last, index): called.append(key), last=last)
    clock.run()
    assert called == sorted((at, last, index) for index, (at, last) in enumerate(calls))


def test_a_clock_that_stands_ends_with_the_name_of_what_calls() -> None:
    clock = VirtualClock(standing_max=2_000)

    def again() -> None:
        clock.call_at(clock.now(), again)

    clock.call_at(7.5, again)
    with pytest.raises(ClockStandsError, match=r"stands at 7\.5 s.*<locals>\.again"):
        clock.run()


def test_a_clock_that_creeps_by_the_last_digit_stands_too() -> None:
    clock = VirtualClock(start=1e6, standing_max=2_000)

    def creep() -> None:
        clock.call_at(math.nextafter(clock.now(), math.inf), creep)

    clock.call_at(1e6, creep)
    with pytest.raises(ClockStandsError, match="creep"):
        clock.run()


def test_any_number_of_calls_may_be_of_one_instant_if_asked_for_before() -> None:
    clock = VirtualClock(standing_max=2_000)
    called: list[float] = []
    for at in (1.0, 2.0):
        for _ in range(5_000):
            clock.call_at(at, lambda: called.append(clock.now()))
    clock.run()
    assert len(called) == 10_000
    # Nor are those of different instants counted together.
    for second in range(5_000):
        clock.call_at(3.0 + second, lambda: clock.call_at(clock.now(), list) and None)
    clock.run()
