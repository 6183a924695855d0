"""Journals that earlier versions wrote are read, with every job as it was; others are
left as they are.

`journals/` holds rows as they wrote them: version 1 by commit d36d290 (a real `coadapt
up`, and a simulation with faults), version 2 by the first commit that had it, f505cf0.
"""

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from coadapt.core.scheduler import Scheduler
from coadapt.model import InputError
from coadapt.model.errors import StoreError
from coadapt.runtime.journal import Journal, checksum
from coadapt.runtime.journal_check import judge, read_all
from coadapt.runtime.upkeep.journal_upgrade import schema_of, upgrade
from coadapt.runtime.upkeep.schema_version import SCHEMA_VERSION

ROWS = Path(__file__).parent / "journals"
VERSION_1 = """
CREATE TABLE meta (schema_version INTEGER NOT NULL);
CREATE TABLE events (
    seq INTEGER NOT NULL PRIMARY KEY, at FLOAT NOT NULL, kind VARCHAR(40) NOT NULL, job VARCHAR(200),
    payload TEXT NOT NULL
);
CREATE INDEX ix_events_job ON events (job);
CREATE TABLE snapshots (upto INTEGER NOT NULL PRIMARY KEY, payload TEXT NOT NULL);
INSERT INTO meta VALUES (1);
"""


def version_1(path: Path, name: str) -> Path:
    rows = [json.loads(line) for line in (ROWS / name).read_text().splitlines()]
    with closing(sqlite3.connect(path)) as database:
        database.executescript(VERSION_1)
        database.executemany("INSERT INTO events VALUES (?, ?, ?, ?, ?)", rows)
        database.execute("INSERT INTO snapshots VALUES (2, '{}')")
        database.commit()
    return path


def states_in(path: Path) -> tuple[int, dict[str, str]]:
    """Return the number of the last event, and how each job stands after all of
    them.
    """
    journal = Journal.at_path(path)
    scheduler = Scheduler()
    for event in journal.events():
        scheduler.handle(event)
    last = journal.last_number
    journal.close()
    live = {job.id: job.state.value for job in scheduler.state.jobs.values()}
    ended = {job: state.value for job, state in scheduler.state.ended.items()}
    return last, {**live, **ended}


@pytest.mark.parametrize(
    ("name", "last", "states"),
    [
        (
            "version-1-up.jsonl",
            37,
            {
                "good-d69d82c8": "succeeded",
                # It failed four times. Jobs did not rest after a failure then, and a
                # replay keeps to that.
                "bad-74e12213": "failed",
                "gone-d9fa9b1c": "cancelled",
            },
        ),
        (
            "version-1-faults.jsonl",
            179,
            {
                "j0": "succeeded",
                "j1": "succeeded",
                "j2": "succeeded",
                "j3": "cancelled",
            },
        ),
    ],
)
def test_a_journal_of_version_1_is_brought_over_and_kept(
    tmp_path: Path, name: str, last: int, states: dict[str, str]
) -> None:
    path = version_1(tmp_path / "journal.sqlite", name)
    before = read_rows(path)
    with pytest.raises(InputError, match=r"got 1; .*`coadapt up` brings it over"):
        Journal.at_path(path)
    kept = upgrade(path)
    assert kept == tmp_path / "journal.sqlite.version-1"
    assert (schema_of(kept), schema_of(path)) == (1, SCHEMA_VERSION)
    assert read_rows(kept) == before
    assert judge(read_all(path)).findings() == []
    assert states_in(path) == (last, states)
    assert upgrade(path) is None


def read_rows(path: Path) -> list[tuple[object, ...]]:
    with closing(sqlite3.connect(path)) as database:
        return database.execute("SELECT * FROM events ORDER BY seq").fetchall()


def test_one_that_cannot_be_brought_over_stays_as_it_is(tmp_path: Path) -> None:
    path = version_1(tmp_path / "journal.sqlite", "version-1-up.jsonl")
    with closing(sqlite3.connect(path)) as database:
        database.execute("UPDATE events SET payload = '{}' WHERE seq = 5")
        database.commit()
    before = read_rows(path)
    with pytest.raises(StoreError, match="event 5 of version 1 cannot be read"):
        upgrade(path)
    assert (read_rows(path), list(tmp_path.iterdir())) == (before, [path])


def test_the_first_journal_of_version_2_is_read_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "journal.sqlite"
    Journal.at_path(path).close()
    text = (ROWS / "version-2-first.jsonl").read_text()
    rows = [json.loads(line) for line in text.splitlines()]
    events = [row for row in rows if len(row) == 6]
    with closing(sqlite3.connect(path)) as database:
        database.executemany("INSERT INTO events VALUES (?, ?, ?, ?, ?, ?)", events)
        database.execute("INSERT INTO snapshots VALUES (?, ?, ?)", rows[-1])
        head = (events[-1][0], events[-1][5])
        database.execute("UPDATE meta SET head_seq = ?, head_link = ?", head)
        database.commit()
    assert upgrade(path) is None
    assert judge(read_all(path)).findings() == []
    journal = Journal.at_path(path)
    snapshot = journal.latest_snapshot()
    assert snapshot is not None
    assert snapshot[1] == rows[-1][0]
    journal.close()
    last, states = states_in(path)
    assert (last, set(states.values())) == (184, {"succeeded", "cancelled"})


def test_a_later_version_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "journal.sqlite"
    Journal.at_path(path).close()
    with closing(sqlite3.connect(path)) as database:
        database.execute("UPDATE meta SET schema_version = 3")
        database.commit()
    assert upgrade(path) is None
    with pytest.raises(InputError, match="a newer coadapt wrote it; use that one"):
        Journal.at_path(path)


def test_an_event_of_another_version_is_no_damage(tmp_path: Path) -> None:
    path = tmp_path / "journal.sqlite"
    Journal.at_path(path).close()
    payload = '{"wire":1,"type":"TimerFired","data":{"at":1.0,"later":2}}'
    link = checksum("", 1, "1.0", "TimerFired", None, payload)
    with closing(sqlite3.connect(path)) as database:
        row = (1, 1.0, "TimerFired", None, payload, link)
        database.execute("INSERT INTO events VALUES (?, ?, ?, ?, ?, ?)", row)
        database.execute("UPDATE meta SET head_seq = 1, head_link = ?", (link,))
        database.commit()
    judgement = judge(read_all(path))
    assert (judgement.foreign, judgement.altered) == ([1], [])
    with pytest.raises(StoreError, match="event 1 is of another version of Coadapt"):
        list(Journal.at_path(path).events())


def test_what_is_no_journal_has_no_version(tmp_path: Path) -> None:
    path = tmp_path / "journal.sqlite"
    assert (schema_of(path), upgrade(path)) == (None, None)
    path.write_bytes(b"noise" * 1000)
    assert (schema_of(path), upgrade(path)) == (None, None)
