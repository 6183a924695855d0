"""Snapshots that are written beside the events: of the right moment, one at a time, and
no error is lost.
"""

import threading
from dataclasses import fields

import pytest

from coadapt.core.events import PlanReady, ReplicasStarted
from coadapt.core.scheduler import Scheduler
from coadapt.core.state import SchedulerState
from coadapt.model import Plan
from coadapt.model.errors import StoreAwayError, StoreError
from coadapt.model.wire import dumps
from coadapt.runtime.background_snapshots import (
    BackgroundSnapshots,
    copy_of,
    picture_of,
)
from coadapt.runtime.memory_store import MemoryStore
from coadapt.sim.faults.bought import draw_bought
from coadapt.sim.faults.fault_run import FaultRun
from coadapt.sim.faults.scenario import Scenario, draw_scenario
from tests.core.stage import Stage, on

FULL = "the journal cannot be written: the disk is full (database or disk is full)"


class Slow(MemoryStore):
    """Writes a snapshot once it is let; keeps what it was given as text."""

    def __init__(self) -> None:
        super().__init__()
        self.let = threading.Event()
        self.written: list[tuple[int, str]] = []
        self.error: Exception | None = None

    def save_snapshot(self, state: SchedulerState, upto: int) -> None:
        assert self.let.wait(60.0)
        if self.error is not None:
            raise self.error
        self.written.append((upto, dumps(state)))


def test_a_snapshot_is_of_its_moment_and_nobody_waits_for_it() -> None:
    stage = Stage()
    slow = Slow()
    aside = BackgroundSnapshots(slow)
    stage.submit("a")
    before = dumps(stage.scheduler.state)
    aside.save_snapshot(stage.scheduler.state, 4)
    stage.timer(60.0)
    stage.handle(PlanReady(at=60.0, round=1, plan=Plan(allocations={"a": on(n0=1)})))
    stage.handle(ReplicasStarted(at=61.0, job="a", generation=1))
    stage.submit("b")
    aside.save_snapshot(
        stage.scheduler.state, 8
    )  # left out: the one before is still being written
    assert slow.written == []
    slow.let.set()
    aside.finish()
    assert slow.written == [(4, before)]
    aside.save_snapshot(stage.scheduler.state, 9)
    aside.close()
    assert slow.written[1:] == [(9, dumps(stage.scheduler.state))]


def test_an_error_is_raised_with_the_next_snapshot() -> None:
    slow = Slow()
    slow.error = StoreError("the journal cannot be written: no access")
    slow.let.set()
    aside = BackgroundSnapshots(slow)
    aside.save_snapshot(SchedulerState(), 1)
    aside.close()
    with pytest.raises(StoreError, match="no access"):
        aside.save_snapshot(SchedulerState(), 2)


def test_a_snapshot_that_finds_no_room_is_left_out() -> None:
    slow = Slow()
    slow.error = StoreAwayError(FULL)
    slow.let.set()
    aside = BackgroundSnapshots(slow)
    aside.save_snapshot(SchedulerState(), 1)
    aside.finish()
    slow.error = None
    aside.save_snapshot(SchedulerState(), 2)
    aside.close()
    assert [upto for upto, _ in slow.written] == [2]


@pytest.mark.parametrize(
    "scenario", [draw_scenario(0), draw_scenario(1), draw_bought(0), draw_bought(1)]
)
def test_no_event_changes_a_picture(scenario: Scenario) -> None:
    run = FaultRun(scenario, Scheduler, None)
    run.run()
    scheduler = Scheduler()
    for number, event in enumerate(run.host.store.events()):
        if number % 50 == 0:
            picture = picture_of(scheduler.state)
            text = dumps(scheduler.state)
        scheduler.handle(event)
        if number % 50 == 49:
            assert dumps(picture) == text


def test_a_copy_has_every_field_of_the_record() -> None:
    stage = Stage()
    stage.running()
    record = stage.scheduler.state.jobs["a"]
    record.ended_at = 5.0
    record.heard_at = 6.0
    copied = copy_of(record)
    assert copied is not record
    assert all(
        getattr(copied, each.name) is getattr(record, each.name)
        for each in fields(record)
    )
