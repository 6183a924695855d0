"""The SQLite journal: order, durability settings, snapshots, damage, versions, and a
killed writer.
"""

import os
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coadapt.core.events import Event, JobSubmitted, NodeJoined, PlanReady, TimerFired
from coadapt.core.scheduler import Scheduler
from coadapt.model import Allocation, BatchLimits, InputError, JobSpec, Node, Plan, wire
from coadapt.model.errors import StoreError
from coadapt.runtime.journal import Journal
from coadapt.runtime.memory_store import MemoryStore
from coadapt.runtime.ports import Store

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
    return (
        MemoryStore()
        if request.param == "memory"
        else Journal.at_path(tmp_path / "journal.db")
    )


def test_events_come_back_equal_and_in_order(store: Store) -> None:
    store.append(EVENTS[:1])
    store.append([])
    store.append(EVENTS[1:])
    assert list(store.events()) == EVENTS
    assert list(store.events(after=2)) == EVENTS[2:]
    assert list(store.events(after=4)) == []


def test_the_latest_snapshot_comes_back_equal(store: Store) -> None:
    assert store.latest_snapshot() is None
    store.append(EVENTS)
    scheduler = Scheduler()
    for upto, event in enumerate(EVENTS, start=1):
        scheduler.handle(event)
        store.save_snapshot(scheduler.state, upto)
    assert store.latest_snapshot() == (scheduler.state, 4)


def test_a_snapshot_is_not_changed_by_what_happens_later(store: Store) -> None:
    store.append(EVENTS)
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


def test_only_two_snapshots_are_kept_and_a_damaged_one_is_passed_over(
    tmp_path: Path,
) -> None:
    path = tmp_path / "journal.db"
    journal = Journal.at_path(path)
    journal.append(EVENTS)
    scheduler = Scheduler()
    for upto in (1, 2, 3):
        scheduler.handle(EVENTS[upto - 1])
        journal.save_snapshot(scheduler.state, upto)
    with sqlite3.connect(path) as database:
        assert database.execute(
            "SELECT upto FROM snapshots ORDER BY upto"
        ).fetchall() == [(2,), (3,)]
        database.execute(
            "UPDATE snapshots SET payload = substr(payload, 1, 50) WHERE upto = 3"
        )
    snapshot = journal.latest_snapshot()
    assert snapshot is not None
    assert snapshot[1] == 2


def test_the_snapshot_before_the_latest_is_needed_once_there_are_two(
    tmp_path: Path,
) -> None:
    journal = Journal.at_path(tmp_path / "journal.db")
    journal.append(EVENTS)
    scheduler = Scheduler()
    earlier = []
    for upto in (1, 2, 3):
        scheduler.handle(EVENTS[upto - 1])
        journal.save_snapshot(scheduler.state, upto)
        found = journal.earlier_snapshot()
        earlier.append(None if found is None else found[1])
    assert earlier == [None, 1, 2]


def test_a_journal_of_another_version_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    Journal.at_path(path).close()
    with sqlite3.connect(path) as database:
        database.execute("UPDATE meta SET schema_version = 99")
    with pytest.raises(InputError, match="journal schema: got 99"):
        Journal.at_path(path)


def refusal_of(path: Path) -> str:
    """Read the whole journal, which must be refused; return the line."""
    with pytest.raises(StoreError) as caught:
        list(Journal.at_path(path).events())
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("damage", "what"),
    [
        ("UPDATE events SET at = at + 1 WHERE seq = 2", "event 2 was altered"),
        (
            (
                "UPDATE events SET payload = replace(payload, '60.0', '61.0') WHERE seq "
                "= 3"
            ),
            "event 3 was altered",
        ),
        (
            "UPDATE events SET payload = substr(payload, 1, 40) WHERE seq = 4",
            "event 4 was altered",
        ),
        ("UPDATE events SET kind = 'TimerFired' WHERE seq = 1", "event 1 was altered"),
        ("UPDATE events SET job = 'b' WHERE seq = 2", "event 2 was altered"),
        ("UPDATE events SET link = 'x' WHERE seq = 2", "event 2 was altered"),
        ("DELETE FROM events WHERE seq = 1", "event 1 is missing"),
        ("DELETE FROM events WHERE seq IN (2, 3)", "event 2 is missing"),
        ("DELETE FROM events WHERE seq = 4", "event 4 is missing"),
        ("DELETE FROM events", "event 1 is missing"),
        (
            "UPDATE meta SET head_link = 'x'",
            "event 4 is not the one that the journal ended with",
        ),
        ("UPDATE meta SET head_seq = 3", "event 4 is one too many"),
        (
            (
                "INSERT INTO events SELECT 5, at, kind, job, payload, link FROM events "
                "WHERE seq = 4"
            ),
            "event 5 is one too many",
        ),
        (
            "INSERT INTO refusals VALUES (2, 'no reason', '', 'x')",
            "event 2 is set aside by a row that was altered",
        ),
    ],
)
def test_a_harmed_journal_is_refused_with_the_place_and_what_to_do(
    tmp_path: Path, damage: str, what: str
) -> None:
    path = tmp_path / "journal.db"
    journal = Journal.at_path(path)
    journal.append(EVENTS[:2])
    journal.append(EVENTS[2:])
    journal.close()
    with sqlite3.connect(path) as database:
        database.execute(damage)
    assert (
        refusal_of(path)
        == f"{path} was harmed: {what}; see what is wrong with: coadapt doctor"
    )


@pytest.mark.long
@given(place=st.integers(0, 10**6), value=st.integers(0, 255))
@settings(max_examples=300, deadline=None)
def test_no_byte_of_a_row_changes_without_notice(place: int, value: int) -> None:
    """The law behind the table: what a row says, and that it is read as it was written
    or not at all.
    """
    journal = Journal("sqlite://")
    journal.append(EVENTS)
    with journal._engine.begin() as connection:
        number = place % len(EVENTS) + 1
        payload = connection.exec_driver_sql(
            f"SELECT payload FROM events WHERE seq = {number}"
        ).scalar()
        assert payload is not None
        where = place // len(EVENTS) % len(payload)
        changed = payload[:where] + chr(value) + payload[where + 1 :]
        connection.exec_driver_sql(
            f"UPDATE events SET payload = ? WHERE seq = {number}", (changed,)
        )
    if changed == payload:
        assert list(journal.events()) == EVENTS
    else:
        with pytest.raises(StoreError, match=f"event {number} was altered"):
            list(journal.events())


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE snapshots SET upto = 99 WHERE upto = 3",
        (
            "UPDATE snapshots SET payload = (SELECT payload FROM snapshots WHERE "
            "upto = "
            "2) WHERE upto = 3"
        ),
        (
            "UPDATE snapshots SET payload = "
            '\'{"wire":1,"type":"SchedulerState","data":{}}\' WHERE upto = 3'
        ),
        "UPDATE snapshots SET link = '' WHERE upto = 3",
    ],
)
def test_a_snapshot_that_does_not_fit_is_passed_over(
    tmp_path: Path, damage: str
) -> None:
    path = tmp_path / "journal.db"
    journal = Journal.at_path(path)
    journal.append(EVENTS)
    scheduler = Scheduler()
    for upto in (1, 2, 3):
        scheduler.handle(EVENTS[upto - 1])
        journal.save_snapshot(scheduler.state, upto)
    with sqlite3.connect(path) as database:
        database.execute(damage)
    snapshot = journal.latest_snapshot()
    assert snapshot is not None
    assert snapshot[1] == 2


@pytest.mark.parametrize("size", [0.5, 0.9])
def test_a_file_that_is_no_database_any_more_is_one_line(
    tmp_path: Path, size: float
) -> None:
    path = tmp_path / "journal.db"
    journal = Journal.at_path(path)
    journal.append(EVENTS * 100)
    journal.close()
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * size)])
    assert "see what is wrong with: coadapt doctor" in refusal_of(path)
    path.write_bytes(b"noise" * 1000)
    assert "is no journal, or was harmed" in refusal_of(path)


def test_what_is_set_aside_is_not_seen_again_and_can_be_looked_at(store: Store) -> None:
    store.append(EVENTS)
    store.refuse(2, "ValueError: no", "Traceback …")
    assert list(store.events()) == [EVENTS[0], *EVENTS[2:]]
    assert [number for number, _ in store.numbered_events()] == [1, 3, 4]
    assert store.last_number == 4


def test_a_refusal_outlives_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    first = Journal.at_path(path)
    first.append(EVENTS)
    first.refuse(2, "ValueError: no", "Traceback …")
    first.close()
    second = Journal.at_path(path)
    assert list(second.events()) == [EVENTS[0], *EVENTS[2:]]
    (refusal,) = second.refusals()
    assert (refusal.number, refusal.kind, refusal.job, refusal.why) == (
        2,
        "JobSubmitted",
        "a",
        "ValueError: no",
    )


def test_a_journal_that_cannot_be_written_says_so_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(
        StoreError, match=r"journal\.db cannot be written: No such file or directory"
    ):
        Journal.at_path(tmp_path / "gone" / "journal.db")
    journal = Journal.at_path(tmp_path / "journal.db")
    with journal._engine.connect() as connection:
        connection.exec_driver_sql("PRAGMA query_only = 1")
        connection.commit()
    with pytest.raises(
        StoreError, match="cannot be written: this user needs write access"
    ):
        journal.append(EVENTS)


@pytest.mark.processes
def test_what_append_returned_from_survives_a_killed_writer(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    command = [sys.executable, "-c", WRITER, str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None
        lines = [writer.stdout.readline() for _ in range(20)]
        os.kill(writer.pid, signal.SIGKILL)
        lines += writer.stdout.readlines()
    instants = [event.at for event in Journal.at_path(path).events()]
    assert instants == [float(index) for index in range(1, len(instants) + 1)]
    assert len(instants) >= len([line for line in lines if line.endswith("\n")])


def test_no_text_of_all_jobs_is_made_in_one_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It held all other threads for 0.4 s at 10,000 jobs: the encoder is one call into
    C.
    """
    longest = 0
    encode = wire._WRITER.encode

    def note(value: object) -> str:
        nonlocal longest
        text = encode(value)
        longest = max(longest, len(text))
        return text

    monkeypatch.setattr(wire._WRITER, "encode", note)
    names = [f"j{index}" for index in range(300)]
    allocation = Allocation(slots=(("n0", 1),))
    plan = Plan(
        allocations=dict.fromkeys(names, allocation),
        reasons=dict.fromkeys(names, "runs"),
    )
    scheduler = Scheduler()
    for name in names:
        scheduler.handle(JobSubmitted(at=1.0, job=name, spec=SPEC))
    journal = Journal.at_path(tmp_path / "journal.db")
    journal.append([PlanReady(at=2.0, round=1, plan=plan)])
    journal.save_snapshot(scheduler.state, 1)
    assert longest < 5_000
    assert journal.latest_snapshot() == (scheduler.state, 1)
