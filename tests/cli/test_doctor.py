"""`coadapt doctor` as an operator meets it, and one line instead of a traceback
wherever a file is harmed.
"""

import os
import sqlite3
from pathlib import Path

import pytest

from coadapt.core.events import Event, TimerFired
from coadapt.runtime.journal import Journal
from tests.cli.live_cluster import call_cli

EVENTS: list[Event] = [TimerFired(at=float(at)) for at in range(100)]


@pytest.fixture
def state(tmp_path: Path) -> Path:
    state = tmp_path / "state"
    state.mkdir(mode=0o700)
    journal = Journal.at_path(state / "journal.sqlite")
    journal.append(EVENTS)
    journal.close()
    return state


def up(state: Path) -> str:
    """Try to start a scheduler, which must fail in one line; return it."""
    done = call_cli(
        "up", "--slots", "1", "--policy", "fifo", "--port", "0", state=state
    )
    assert done.returncode in (1, 2), done
    assert done.stderr.count("\n") == 1, done.stderr
    assert done.stderr.startswith("error: ")
    return done.stderr


def test_a_harmed_journal_is_refused_named_repaired_and_kept(state: Path) -> None:
    path = state / "journal.sqlite"
    with sqlite3.connect(path) as database:
        database.execute("DELETE FROM events WHERE seq BETWEEN 40 AND 42")
    assert "event 40 is missing; see what is wrong with: coadapt doctor" in up(state)
    told = call_cli("doctor", state=state)
    assert told.returncode == 1
    assert "events 40 to 42 are missing" in told.stdout
    assert "coadapt doctor --repair" in told.stdout
    repaired = call_cli("doctor", "--repair", state=state)
    assert repaired.returncode == 0, repaired
    (copy,) = state.glob("journal.sqlite.2*[0-9]")
    assert sqlite3.connect(copy).execute("SELECT count(*) FROM events").fetchone() == (
        97,
    )
    assert list(Journal.at_path(path).events()) == EVENTS[:39] + EVENTS[42:]
    assert call_cli("doctor", state=state).returncode == 0


def test_what_is_set_aside_is_named(state: Path) -> None:
    journal = Journal.at_path(state / "journal.sqlite")
    journal.refuse(7, "OverflowError: too large", "Traceback …")
    journal.close()
    assert (
        "event 7 is set aside: OverflowError: too large"
        in call_cli("doctor", state=state).stdout
    )


@pytest.mark.parametrize("content", [b"", b"noise" * 1000])
def test_a_file_that_is_no_journal_is_one_line(state: Path, content: bytes) -> None:
    for path in state.glob("journal.sqlite-*"):
        path.unlink()
    (state / "journal.sqlite").write_bytes(content)
    if content:
        assert "is no journal, or was harmed" in up(state)
        assert call_cli("doctor", state=state).returncode == 1


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_directory_that_may_not_be_written_is_one_line(state: Path) -> None:
    state.chmod(0o500)
    try:
        assert "Permission denied" in up(state)
    finally:
        state.chmod(0o700)


def test_a_directory_that_cannot_be_made_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    file = str(tmp_path / "file")
    allowed = "a directory, or a path that is free"
    line = f"error: --state: got {file!r}; allowed: {allowed}\n"
    assert up(tmp_path / "file" / "state") == line
    assert up(tmp_path / "file") == line


def test_a_directory_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    done = call_cli("doctor", state=tmp_path / "gone")
    assert done.returncode == 2
    assert done.stderr.startswith("error: --state: got")
