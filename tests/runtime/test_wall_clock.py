"""Real time goes forward, and callbacks come in order when somebody turns the loop."""

import time

from coadapt.runtime.wall_clock import WallClock


def test_time_is_the_systems_and_goes_forward() -> None:
    clock = WallClock()
    first = clock.now()
    assert abs(first - time.time()) < 1.0
    assert clock.now() >= first


def test_time_never_falls_behind_what_the_journal_knows() -> None:
    ahead = time.time() + 3600.0
    assert WallClock(not_before=ahead).now() >= ahead
    clock = WallClock()
    clock.advance(ahead)
    assert clock.now() >= ahead
    clock.advance(0.0)
    assert clock.now() >= ahead


def test_due_callbacks_run_in_order_and_alarms_come_last() -> None:
    clock = WallClock()
    log: list[str] = []
    past = clock.now() - 1.0
    clock.call_at(past, lambda: log.append("alarm"), last=True)
    clock.call_at(past, lambda: log.append("second"))
    clock.call_at(past - 1.0, lambda: log.append("first"))
    clock.call_at(past + 3600.0, lambda: log.append("later"))
    clock.run_due()
    assert log == ["first", "second", "alarm"]
    assert clock.next_at() == past + 3600.0


def test_a_cancelled_callback_is_neither_called_nor_waited_for() -> None:
    clock = WallClock()
    log: list[str] = []
    cancel = clock.call_at(clock.now() - 1.0, lambda: log.append("never"))
    cancel()
    cancel()
    clock.run_due()
    assert log == []
    assert clock.next_at() is None


def test_a_callback_may_ask_for_another_one_at_once() -> None:
    clock = WallClock()
    log: list[int] = []

    def again() -> None:
        log.append(len(log))
        if len(log) < 3:
            clock.call_at(clock.now(), again)

    clock.call_at(clock.now(), again)
    clock.run_due()
    assert log == [0, 1, 2]
