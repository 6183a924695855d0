"""The SQLite journal: order, durability settings, snapshots, damage, versions, and a killed writer."""

import json
import os
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from coadapt.core.events import Event, JobSubmitted, NodeJoined, PlanReady, ReplicasKept, TimerFired
from coadapt.core.lifecycle import JobState
from coadapt.core.scheduler import Scheduler
from coadapt.model import Allocation, BatchLimits, InputError, JobSpec, Node, Plan
from coadapt.runtime.journal import Journal
from coadapt.runtime.memory_store import MemoryStore
from coadapt.runtime.ports import Store
from tests.core.stage import Stage, on

SPEC = JobSpec(name="job", batch=BatchLimits(initial=8))
EVENTS: list[Event] = [
    NodeJoined(at=0.0, node=Node(id="n0", num_gpus=4)),
    JobSubmitted(at=1.0, job="a", spec=SPEC),
    TimerFired(at=60.0),
    PlanReady(
        at=60.0,
        round=1,
        plan=Plan(
            allocations={"a": Allocation(slots=(("n0", 1),))},
            reasons={"a": "runs: “all” GPUs are free"},
            diagnostics={"gap": float("inf")},
        ),
    ),
]

WRITER = """
import sys
from pathlib import Path
from coadapt.core.events import TimerFired
from coadapt.runtime.journal import Journal
journal = Journal.at_path(Path(sys.argv[1]))
at = 0.0
while True:
    at += 1.0
    journal.append([TimerFired(at=at)])
    print(at, flush=True)
"""


@pytest.fixture(params=["memory", "sqlite"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    return MemoryStore() if request.param == "memory" else Journal.at_path(tmp_path / "journal.db")


def test_events_come_back_equal_and_in_order(store: Store) -> None:
    store.append(EVENTS[:1])
    store.append([])
    store.append(EVENTS[1:])
    assert list(store.events()) == EVENTS
    assert list(store.events(after=2)) == EVENTS[2:]
    assert list(store.events(after=4)) == []


def test_the_latest_snapshot_comes_back_equal(store: Store) -> None:
    assert store.latest_snapshot() is None
    scheduler = Scheduler()
    for upto, event in enumerate(EVENTS, start=1):
        scheduler.handle(event)
        store.save_snapshot(scheduler.state, upto)
    assert store.latest_snapshot() == (scheduler.state, 4)


def test_a_snapshot_is_not_changed_by_what_happens_later(store: Store) -> None:
    scheduler = Scheduler()
    scheduler.handle(EVENTS[0])
    store.save_snapshot(scheduler.state, 1)
    scheduler.handle(EVENTS[1])
    snapshot = store.latest_snapshot()
    assert snapshot is not None
    assert snapshot[0].jobs == {}


def test_a_reopened_journal_goes_on_where_it_ended(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    first = Journal.at_path(path)
    first.append(EVENTS[:2])
    first.close()
    second = Journal.at_path(path)
    second.append(EVENTS[2:])
    assert list(second.events()) == EVENTS


def test_the_file_is_private_and_the_database_durable(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    journal = Journal.at_path(path)
    assert path.stat().st_mode & 0o777 == 0o600
    with journal._engine.connect() as connection:
        assert connection.exec_driver_sql("PRAGMA journal_mode").scalar() == "wal"
        assert connection.exec_driver_sql("PRAGMA synchronous").scalar() == 2


def test_only_two_snapshots_are_kept_and_a_damaged_one_is_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    journal = Journal.at_path(path)
    scheduler = Scheduler()
    for upto in (1, 2, 3):
        scheduler.handle(EVENTS[upto - 1])
        journal.save_snapshot(scheduler.state, upto)
    with sqlite3.connect(path) as database:
        assert database.execute("SELECT upto FROM snapshots ORDER BY upto").fetchall() == [(2,), (3,)]
        database.execute("UPDATE snapshots SET payload = substr(payload, 1, 50) WHERE upto = 3")
    snapshot = journal.latest_snapshot()
    assert snapshot is not None
    assert snapshot[1] == 2


def test_a_journal_of_another_version_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    Journal.at_path(path).close()
    with sqlite3.connect(path) as database:
        database.execute("UPDATE meta SET schema_version = 99")
    with pytest.raises(InputError, match="journal schema: got 99"):
        Journal.at_path(path)


def test_an_event_written_before_a_field_existed_still_loads(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    journal = Journal.at_path(path)
    journal.append(EVENTS[1:2])
    with sqlite3.connect(path) as database:
        database.execute("UPDATE events SET payload = replace(payload, ',\"forecast\":null', '')")
        assert "forecast" not in database.execute("SELECT payload FROM events").fetchone()[0]
    assert list(journal.events()) == EVENTS[1:2]


def test_a_snapshot_written_before_changes_could_be_taken_back_still_loads(tmp_path: Path) -> None:
    stage = Stage()
    stage.running()
    stage.round(120.0, {"a": on(n0=4)})
    path = tmp_path / "journal.db"
    journal = Journal.at_path(path)
    journal.save_snapshot(stage.scheduler.state, 1)
    added = ("trained", "allocation_batch", "retracting", "waits_for_plan", "num_resizes_failed")
    with sqlite3.connect(path) as database:
        (payload,) = database.execute("SELECT payload FROM snapshots").fetchone()
        snapshot = json.loads(payload)
        for key in added:
            del snapshot["data"]["jobs"]["a"][key]
        database.execute("UPDATE snapshots SET payload = ?", (json.dumps(snapshot),))
    loaded = journal.latest_snapshot()
    assert loaded is not None
    old = Scheduler(state=loaded[0])
    old.handle(ReplicasKept(at=130.0, job="a", generation=2, detail="boom"))
    assert old.state.jobs["a"].ordered == on(n0=2)
    assert old.state.jobs["a"].state is JobState.RUNNING


@pytest.mark.processes
def test_what_append_returned_from_survives_a_killed_writer(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    command = [sys.executable, "-c", WRITER, str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None
        told = [writer.stdout.readline() for _ in range(20)]
        os.kill(writer.pid, signal.SIGKILL)
        told += writer.stdout.readlines()
    instants = [event.at for event in Journal.at_path(path).events()]
    assert instants == [float(index) for index in range(1, len(instants) + 1)]
    assert len(instants) >= len([line for line in told if line.endswith("\n")])
