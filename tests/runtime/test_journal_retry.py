"""A journal that another process locked, that was moved, or that was replaced: waited
for, or told at once.
"""

import logging
import sqlite3
import threading
import time
from contextlib import closing
from pathlib import Path

import pytest

from coadapt.core.events import TimerFired
from coadapt.model.errors import StoreAwayError, StoreError
from coadapt.runtime import journal as journal_module
from coadapt.runtime.journal import Journal
from coadapt.runtime.upkeep import journal_retry as retry_module
from coadapt.runtime.upkeep.journal_retry import JournalRetry

EVENT = TimerFired(at=1.0)
PATIENCE_S = 30.0


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal_module, "BUSY_MS", 20)
    monkeypatch.setattr(retry_module, "RETRY_S", 0.01)
    monkeypatch.setattr(retry_module, "WARN_AFTER_S", 0.0)


def appended(journal: Journal) -> threading.Thread:
    """Append an event in a thread of its own."""
    thread = threading.Thread(target=journal.append, args=([EVENT],))
    thread.start()
    return thread


def until_trouble(retry: JournalRetry) -> str:
    deadline = time.monotonic() + PATIENCE_S
    while not retry.trouble():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return retry.trouble()


def test_a_lock_is_waited_for_and_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    retry = JournalRetry()
    journal = Journal.at_path(tmp_path / "journal.sqlite", retry)
    with (
        caplog.at_level(logging.WARNING),
        closing(
            sqlite3.connect(tmp_path / "journal.sqlite", isolation_level=None)
        ) as other,
    ):
        other.execute("BEGIN IMMEDIATE")
        thread = appended(journal)
        assert "is in use by another process (database is locked)" in until_trouble(
            retry
        )
        assert retry.seconds() > 0.0
        assert (
            list(journal.events()) == []
        )  # a reader gets through, and ends no trouble
        assert retry.trouble()
        other.execute("ROLLBACK")
        thread.join(PATIENCE_S)
    assert (retry.trouble(), retry.seconds()) == ("", 0.0)
    assert list(journal.events()) == [EVENT]
    first = caplog.messages[0]
    last = caplog.messages[-1]
    assert "the scheduler waits for it, its jobs keep running" in first
    assert last.startswith("the journal is in use again, after")


def test_a_state_directory_that_was_moved_is_waited_for(tmp_path: Path) -> None:
    folder = tmp_path / "state"
    aside = tmp_path / "aside"
    folder.mkdir()
    retry = JournalRetry()
    journal = Journal.at_path(folder / "journal.sqlite", retry)
    journal.append([EVENT])
    folder.rename(aside)
    thread = appended(journal)
    assert "is not there (No such file or directory): bring it back" in until_trouble(
        retry
    )
    assert not folder.exists()
    aside.rename(folder)
    thread.join(PATIENCE_S)
    journal.close()
    assert list(Journal.at_path(folder / "journal.sqlite").events()) == [EVENT, EVENT]


def test_a_file_in_its_place_is_no_journal_to_go_on_with(tmp_path: Path) -> None:
    path = tmp_path / "journal.sqlite"
    journal = Journal.at_path(path, JournalRetry())
    journal.append([EVENT])
    path.rename(tmp_path / "old")
    Journal.at_path(path).close()
    with pytest.raises(StoreError, match="was replaced by another file"):
        journal.append([EVENT])


def test_who_waits_is_let_go_at_the_end(tmp_path: Path) -> None:
    retry = JournalRetry()
    retry.close()
    with pytest.raises(StoreError, match="locked"):
        retry.wait(StoreAwayError("locked"))


def test_without_patience_a_lock_is_an_error(tmp_path: Path) -> None:
    journal = Journal.at_path(tmp_path / "journal.sqlite")
    with closing(
        sqlite3.connect(tmp_path / "journal.sqlite", isolation_level=None)
    ) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreAwayError, match="in use by another process"):
            journal.append([EVENT])
    journal.append([EVENT])
    assert list(journal.events()) == [EVENT]


def test_a_commit_whose_answer_was_lost_is_not_written_twice(tmp_path: Path) -> None:
    path = tmp_path / "journal.sqlite"
    journal = Journal.at_path(path)
    before = journal._tip
    journal.append([EVENT])
    journal._tip = before
    journal.append([EVENT])
    assert list(journal.events()) == [EVENT]
    other = Journal.at_path(path)
    journal.append([TimerFired(at=2.0)])
    with pytest.raises(StoreError, match="was written by another process"):
        other.append([TimerFired(at=3.0)])
