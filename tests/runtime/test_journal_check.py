"""What `coadapt doctor` finds in a journal, and what it makes of it."""

import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coadapt.core.events import Event, TimerFired
from coadapt.core.scheduler import Scheduler
from coadapt.core.state import SchedulerState
from coadapt.model.errors import StoreError
from coadapt.runtime.journal import Journal
from coadapt.runtime.journal_check import judge, read_all, rewrite
from tests.runtime.test_journal import EVENTS

MANY: list[Event] = [*EVENTS, *(TimerFired(at=float(at)) for at in range(100, 200))]


def written(path: Path, snapshot_at: int = 0) -> Path:
    journal = Journal.at_path(path)
    journal.append(MANY)
    if snapshot_at:
        scheduler = Scheduler()
        for event in MANY[:snapshot_at]:
            scheduler.handle(event)
        journal.save_snapshot(scheduler.state, snapshot_at)
    journal.close()
    return path


def harm(path: Path, *statements: str) -> None:
    with sqlite3.connect(path) as database:
        for statement in statements:
            database.execute(statement)


def repaired(path: Path) -> Journal:
    found = read_all(path)
    rewrite(path, found, judge(found))
    again = read_all(path)
    assert judge(again).findings() == []
    return Journal.at_path(path)


def test_a_sound_journal_has_nothing_wrong(tmp_path: Path) -> None:
    path = written(tmp_path / "journal.db", 50)
    assert judge(read_all(path)).findings() == []


@pytest.mark.parametrize(
    ("damage", "findings", "left_out"),
    [
        ("UPDATE events SET at = 7 WHERE seq = 10", ["event 10 is altered"], [10]),
        (
            "UPDATE events SET payload = 'x' WHERE seq BETWEEN 3 AND 5",
            ["events 3 to 5 are altered"],
            [3, 4, 5],
        ),
        ("DELETE FROM events WHERE seq = 1", ["event 1 is missing"], [1]),
        (
            "DELETE FROM events WHERE seq BETWEEN 20 AND 29",
            ["events 20 to 29 are missing"],
            [*range(20, 30)],
        ),
        # only a checksum was harmed: the row after it says that its content is sound
        (
            "UPDATE events SET link = 'x' WHERE seq = 10",
            ["the checksum of event 10 was altered"],
            [],
        ),
        (
            "UPDATE meta SET head_seq = 90",
            ["by its own word it ends at event 90, but there are 14 more"],
            [],
        ),
        (
            "UPDATE meta SET head_link = 'x'",
            ["the checksum of its end was altered"],
            [],
        ),
    ],
)
def test_what_is_wrong_is_named_and_set_aside(
    tmp_path: Path, damage: str, findings: list[str], left_out: list[int]
) -> None:
    path = written(tmp_path / "journal.db")
    harm(path, damage)
    assert judge(read_all(path)).findings() == findings
    journal = repaired(path)
    kept = [
        event for number, event in enumerate(MANY, start=1) if number not in left_out
    ]
    assert list(journal.events()) == kept
    assert [refusal.number for refusal in journal.refusals()] == left_out
    journal.append(EVENTS[:1])
    assert journal.last_number == len(MANY) + 1


def test_a_torn_tail_is_cut_off(tmp_path: Path) -> None:
    path = written(tmp_path / "journal.db")
    harm(path, "DELETE FROM events WHERE seq > 100")
    assert judge(read_all(path)).findings() == ["the last 4 events are missing"]
    assert list(repaired(path).events()) == MANY[:100]


def test_a_snapshot_that_was_sound_stays_whatever_is_wrong_before_it(
    tmp_path: Path,
) -> None:
    path = written(tmp_path / "journal.db", snapshot_at=60)
    harm(
        path,
        "DELETE FROM events WHERE seq = 30",
        "UPDATE events SET at = 7 WHERE seq = 40",
    )
    snapshot = repaired(path).latest_snapshot()
    assert snapshot is not None
    assert snapshot[1] == 60
    assert "a" in snapshot[0].jobs


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE snapshots SET upto = 999",
        "UPDATE snapshots SET payload = 'noise'",
        """UPDATE snapshots SET payload = '{"wire":1,"type":"SchedulerState","data":{}}'""",
    ],
)
def test_a_bad_snapshot_is_dropped(tmp_path: Path, damage: str) -> None:
    path = written(tmp_path / "journal.db", snapshot_at=60)
    harm(path, damage)
    (line,) = judge(read_all(path)).findings()
    assert line.endswith("does not fit the events")
    journal = repaired(path)
    assert journal.latest_snapshot() is None
    assert list(journal.events()) == MANY


@pytest.mark.parametrize("share", [0.9, 0.5, 0.2])
def test_what_can_be_read_of_a_torn_file_is_kept(tmp_path: Path, share: float) -> None:
    path = tmp_path / "journal.db"
    journal = Journal.at_path(path)
    for _ in range(20):
        journal.append(EVENTS * 5)
    journal.close()
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * share)])
    with pytest.raises(StoreError):
        list(Journal.at_path(path).events())
    assert judge(read_all(path)).findings()
    kept = list(repaired(path).events())
    assert kept == (EVENTS * 100)[: len(kept)]


def test_a_refusal_stays_a_refusal(tmp_path: Path) -> None:
    path = written(tmp_path / "journal.db")
    journal = Journal.at_path(path)
    journal.refuse(2, "ValueError: no", "Traceback …")
    journal.close()
    harm(path, "DELETE FROM events WHERE seq = 7")
    assert [(r.number, r.why[:14]) for r in repaired(path).refusals()] == [
        (2, "ValueError: no"),
        (7, "was missing; `"),
    ]


def damages() -> st.SearchStrategy[list[str]]:
    number = st.integers(1, len(MANY))
    one: list[Callable[[int], str]] = [
        lambda seq: f"DELETE FROM events WHERE seq = {seq}",
        lambda seq: (
            f"UPDATE events SET payload = substr(payload, 1, 20) WHERE seq = {seq}"
        ),
        lambda seq: f"UPDATE events SET link = 'x' WHERE seq = {seq}",
        lambda seq: f"UPDATE events SET at = at + 1 WHERE seq = {seq}",
        lambda seq: f"UPDATE meta SET head_seq = {seq}",
        lambda seq: f"UPDATE snapshots SET upto = {seq}",
        lambda seq: f"DELETE FROM events WHERE seq > {seq}",
    ]
    return st.lists(
        st.builds(lambda make, seq: make(seq), st.sampled_from(one), number),
        min_size=1,
        max_size=5,
    )


@pytest.mark.long
@given(statements=damages())
@settings(max_examples=40, deadline=None)
def test_a_repaired_journal_opens_and_tells_only_what_was_written(
    tmp_path_factory: pytest.TempPathFactory, statements: list[str]
) -> None:
    path = written(tmp_path_factory.mktemp("journal") / "journal.db", snapshot_at=60)
    harm(path, *statements)
    journal = repaired(path)
    assert all(event in MANY for event in journal.events())
    snapshot = journal.latest_snapshot()
    assert snapshot is None or isinstance(snapshot[0], SchedulerState)
    journal.append(EVENTS)
    assert list(journal.events())[-4:] == EVENTS
