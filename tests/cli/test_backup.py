"""A backup is a sound copy; a restore compares it with what is on disk and repeats
nothing that ended.
"""

import os
import sqlite3
import time
from contextlib import closing
from pathlib import Path

import pytest
import typer

from coadapt.cli.state_dir import StateDir
from coadapt.cli.upkeep.backup import backup, restore
from coadapt.cli.upkeep.doctor import doctor
from coadapt.cli.upkeep.restoring import state_of
from coadapt.core.events import CancelRequested, Event, JobSubmitted, Outcome
from coadapt.executors.processes.records.generation_dir import ExitRecord, JobDir
from coadapt.model import BatchLimits, InputError, JobSpec
from coadapt.model.errors import StoreError
from coadapt.runtime.journal import Journal
from tests.cli.live_cluster import call_cli

SPEC = JobSpec(name="job", batch=BatchLimits(initial=8))
BEFORE: list[Event] = [
    JobSubmitted(at=1.0, job="cancelled-later", spec=SPEC),
    JobSubmitted(at=2.0, job="goes-on", spec=SPEC),
    JobSubmitted(at=3.0, job="succeeded-later", spec=SPEC),
]


def write(directory: StateDir, events: list[Event]) -> None:
    journal = Journal.at_path(directory.journal)
    journal.append(events)
    journal.close()


@pytest.fixture
def directory(tmp_path: Path) -> StateDir:
    """A state directory with three jobs, their backup, and what happened after it."""
    directory = StateDir(tmp_path / "state")
    directory.prepare()
    write(directory, BEFORE)
    backup(tmp_path / "backup.sqlite", directory.path)
    later: list[Event] = [
        CancelRequested(at=4.0, job="cancelled-later"),
        JobSubmitted(at=5.0, job="unknown", spec=SPEC),
    ]
    write(directory, later)
    JobDir.of(directory.path, "unknown").generation(1).make()
    for job, outcome in (
        ("goes-on", Outcome.STOPPED),
        ("succeeded-later", Outcome.SUCCEEDED),
    ):
        generation = JobDir.of(directory.path, job).generation(2)
        generation.make()
        generation.write_exit_record(ExitRecord(outcome=outcome))
    return directory


def test_a_backup_is_private_whole_and_overwrites_nothing(
    directory: StateDir, tmp_path: Path
) -> None:
    copy = tmp_path / "backup.sqlite"
    assert copy.stat().st_mode & 0o777 == 0o600
    assert list(Journal.at_path(copy).events()) == BEFORE
    with pytest.raises(InputError, match="a file that does not exist yet"):
        backup(copy, directory.path)


def test_the_studies_are_in_a_backup_and_come_back(tmp_path: Path) -> None:
    directory = StateDir(tmp_path / "state")
    directory.prepare()
    write(directory, BEFORE)
    with closing(sqlite3.connect(directory.studies)) as storage:
        storage.execute("CREATE TABLE trials (number INTEGER)")
        storage.execute("INSERT INTO trials VALUES (7)")
        storage.commit()
    file = tmp_path / "backup.sqlite"
    backup(file, directory.path)
    with closing(sqlite3.connect(directory.studies)) as storage:
        storage.execute("DELETE FROM trials")
        storage.commit()

    restore(file, directory.path, anyway=True)

    with closing(sqlite3.connect(directory.studies)) as storage:
        assert storage.execute("SELECT number FROM trials").fetchall() == [(7,)]
    assert list(directory.path.glob("studies.sqlite.replaced-*"))


def test_a_backup_is_taken_beside_a_writer(tmp_path: Path, directory: StateDir) -> None:
    with closing(sqlite3.connect(directory.journal, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        backup(tmp_path / "second.sqlite", directory.path)
    assert len(list(Journal.at_path(tmp_path / "second.sqlite").events())) == 5


def test_a_sound_journal_that_goes_further_is_not_replaced(
    directory: StateDir, tmp_path: Path
) -> None:
    with pytest.raises(
        InputError, match="is sound, and has all of it and 2 events more"
    ):
        restore(tmp_path / "backup.sqlite", directory.path)


def test_what_ended_since_is_not_run_again_and_all_is_told(
    directory: StateDir, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    restore(tmp_path / "backup.sqlite", directory.path, anyway=True)
    printed = capsys.readouterr().out.splitlines()
    assert printed[:4] == [
        (
            "  cancelled-later cancelled after the backup; it is not run again, and is "
            "shown as cancelled"
        ),
        (
            "  goes-on was started 2 times, 0 of them before the backup; it goes on "
            "from "
            "its checkpoint"
        ),
        (
            "  succeeded-later succeeded after the backup; it is not run again, and is "
            "shown as cancelled"
        ),
        "  unknown was submitted after the backup; its files stay",
    ]
    state = state_of(directory.journal)
    assert {job.id for job in state.jobs.values() if job.state.value == "pending"} == {
        "goes-on"
    }
    # The numbers of generations that the restored books give out again are free.
    assert JobDir.of(directory.path, "goes-on").generations() == []
    (kept,) = directory.path.glob("journal.sqlite.replaced-*[0-9]")
    assert len(list(Journal.at_path(kept).events())) == 5


def test_a_running_job_is_ended_only_if_asked(
    directory: StateDir, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    checkpoints = JobDir.of(directory.path, "unknown").checkpoints
    environ = {"COADAPT_CHECKPOINT_DIR": str(checkpoints)}
    process = os.spawnvpe(
        os.P_NOWAIT, "sleep", ["sleep", "60"], environ | {"PATH": os.environ["PATH"]}
    )
    while Path(f"/proc/{process}/comm").read_text() != "sleep\n":
        time.sleep(0.01)  # it is a copy of this process until it executes sleep
    before = list(Journal.at_path(directory.journal).events())
    try:
        with pytest.raises(typer.Exit):
            restore(tmp_path / "backup.sqlite", directory.path, anyway=True)
        assert list(Journal.at_path(directory.journal).events()) == before
        assert (
            "unknown runs, but was submitted after the backup"
            in capsys.readouterr().out
        )
        assert os.waitpid(process, os.WNOHANG) == (0, 0)
    finally:
        os.kill(process, 9)
        os.waitpid(process, 0)


def test_a_harmed_backup_is_refused_and_changes_nothing(
    directory: StateDir, tmp_path: Path
) -> None:
    harmed = tmp_path / "backup.sqlite"
    with closing(sqlite3.connect(harmed)) as database:
        database.execute("DELETE FROM events WHERE seq = 2")
        database.commit()
    with pytest.raises(StoreError, match="event 2 is missing"):
        restore(harmed, directory.path, anyway=True)
    names = sorted(path.name for path in directory.path.iterdir())
    assert names == ["jobs", "journal.sqlite", "lock", "runs"]
    assert len(list(Journal.at_path(directory.journal).events())) == 5


def test_a_backup_is_restored_on_a_machine_that_never_had_a_scheduler(
    directory: StateDir, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    new = tmp_path / "new"
    restore(tmp_path / "backup.sqlite", new)
    assert capsys.readouterr().out == "restored; start the scheduler with: coadapt up\n"
    assert new.stat().st_mode & 0o777 == 0o700
    assert set(state_of(StateDir(new).journal).jobs) == {
        "cancelled-later",
        "goes-on",
        "succeeded-later",
    }


@pytest.mark.parametrize(
    ("content", "printed"),
    [
        (b"", "backup.sqlite is not a journal of Coadapt"),
        (b"no database" * 500, r"backup.sqlite cannot be copied .*not a database"),
        (None, "is of version 99, this Coadapt's is 2: a later Coadapt wrote it"),
        ("half", r"backup.sqlite cannot be copied .*malformed"),
    ],
)
def test_what_is_no_whole_backup_of_this_version_is_refused_by_its_name(
    directory: StateDir, tmp_path: Path, content: bytes | str | None, printed: str
) -> None:
    file = tmp_path / "backup.sqlite"
    if content is None:
        with closing(sqlite3.connect(file)) as database:
            database.execute("UPDATE meta SET schema_version = 99")
            database.commit()
    elif content == "half":
        whole = file.read_bytes()
        file.write_bytes(whole[: len(whole) // 2])
    else:
        assert isinstance(content, bytes)
        file.write_bytes(content)
    with pytest.raises(StoreError, match=printed):
        restore(file, directory.path, anyway=True)
    assert len(list(Journal.at_path(directory.journal).events())) == 5


def test_a_restore_that_broke_off_is_named_and_can_be_repeated(
    directory: StateDir, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Killed after the old journal was put aside."""
    kept = directory.path / "journal.sqlite.replaced-20260101-000000"
    directory.journal.rename(kept)
    with pytest.raises(typer.Exit):
        doctor(state=directory.path)
    printed = capsys.readouterr().out
    assert "is not there, but the records of 3 jobs are" in printed
    assert f"coadapt restore {kept}" in printed
    _, *rest = call_cli("up", "--slots", "1", state=directory.path).stderr.split(
        "the journal is empty"
    )
    assert "a restore broke off" in rest[0]
    restore(kept, directory.path)
    restored = list(Journal.at_path(directory.journal).events())
    assert restored[:5] == list(Journal.at_path(kept).events())


def test_doctor_names_a_job_that_runs_and_is_in_no_journal(
    directory: StateDir, capsys: pytest.CaptureFixture[str]
) -> None:
    checkpoints = JobDir.of(directory.path, "stranger").checkpoints
    environ = {"COADAPT_CHECKPOINT_DIR": str(checkpoints), "PATH": os.environ["PATH"]}
    process = os.spawnvpe(os.P_NOWAIT, "sleep", ["sleep", "60"], environ)
    while Path(f"/proc/{process}/comm").read_text() != "sleep\n":
        time.sleep(0.01)
    try:
        with pytest.raises(typer.Exit):
            doctor(state=directory.path)
    finally:
        os.kill(process, 9)
        os.waitpid(process, 0)
    printed = capsys.readouterr().out
    assert "job        stranger runs, and the journal knows nothing of it" in printed
