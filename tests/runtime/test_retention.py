"""What a prune deletes, what it leaves, and that one that is cut off loses nothing."""

import fcntl
import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from coadapt.core.config import SchedulerConfig
from coadapt.core.events import (
    Event,
    NodeJoined,
    Outcome,
    PlanReady,
    ReplicasExited,
    ReplicasStarted,
)
from coadapt.core.scheduler import Scheduler
from coadapt.core.state import SchedulerState
from coadapt.executors.processes.records.generation_dir import JobDir
from coadapt.executors.processes.records.job_files import StateDirFiles
from coadapt.model import Node, Plan
from coadapt.model.errors import StoreError
from coadapt.runtime import journal as journal_module
from coadapt.runtime.index_writer import IndexWriter
from coadapt.runtime.job_history import story_of
from coadapt.runtime.job_index import JobIndex
from coadapt.runtime.journal import Journal
from coadapt.runtime.journal_check import judge, read_all, rewrite
from coadapt.runtime.retention import DAY_S, Keep, Retention
from tests.core.stage import Stage, on

CONFIG = SchedulerConfig()
NUM_JOBS = 30
ALL = Keep(days=36_500.0, logs_mib=1_000)


def events_of(num_jobs: int) -> list[Event]:
    """Return the events of jobs that run for a day each, one after the other; the last
    one lives.
    """
    stage = Stage(num_nodes=1)
    for number in range(num_jobs):
        name = f"j{number:02}"
        stage.at = (number + 1) * DAY_S
        stage.submit(name)
        stage.timer(stage.at)
        plan = Plan(allocations={name: on(n0=1)}, reasons={name: "it is the only one"})
        stage.handle(
            PlanReady(at=stage.at, round=stage.scheduler.state.round, plan=plan)
        )
        stage.handle(ReplicasStarted(at=stage.at, job=name, generation=1))
        if number < num_jobs - 1:
            end = stage.at + DAY_S - 1.0
            stage.handle(
                ReplicasExited(
                    at=end, job=name, generation=1, outcome=Outcome.SUCCEEDED
                )
            )
    return stage.journal


class World:
    """A state directory with a journal, snapshots at two thirds and at the end, an
    index, and files.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.path = folder / "journal.db"
        events = events_of(NUM_JOBS)
        self.num_events = len(events)
        self.journal = Journal.at_path(self.path)
        self.index = JobIndex(folder / "jobs.sqlite")
        writer = IndexWriter(self.index, self.journal.whole, CONFIG)
        scheduler = Scheduler(CONFIG)
        writer.restored(scheduler.state, 0)
        self.older = 2 * len(events) // 3
        self.journal.append(events)
        for number, event in enumerate(events, start=1):
            writer.observe(number, event, scheduler.handle(event), scheduler.state)
            if number in (self.older, len(events) - 2):
                self.journal.save_snapshot(scheduler.state, number)
        self.index.flush()
        self.state = scheduler.state
        for job in [*scheduler.state.ended, *scheduler.state.jobs]:
            directory = JobDir.of(folder, job)
            directory.generation(1).make()
            directory.log("1-0").write_bytes(b"x" * 1_000)
            (directory.generation(1).path / "order.json").write_bytes(b"y" * 100)
            (directory.checkpoints / "model.pt").write_bytes(b"z")
        self.retention = Retention(self.index, self.journal, StateDirFiles(folder))
        self.at = scheduler.state.at

    def replayed(self) -> SchedulerState:
        """Return the state as a new process finds it; raise if anything is wrong with
        the journal.
        """
        journal = Journal.at_path(self.path)
        try:
            state, upto = journal.latest_snapshot() or (None, 0)
            scheduler = Scheduler(CONFIG, state)
            for event in journal.events(after=upto):
                scheduler.handle(event)
        finally:
            journal.close()
        assert judge(read_all(self.path)).findings() == []
        return scheduler.state


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def ids(first: int, last: int) -> list[str]:
    return [f"j{number:02}" for number in range(first, last)]


def test_nothing_is_deleted_by_default_before_it_is_old(world: World) -> None:
    assert list(world.retention.steps(Keep(days=90.0, logs_mib=1), world.at)) == []
    assert world.replayed() == world.state


def test_old_jobs_and_events_go_and_all_else_stays(world: World) -> None:
    keep = Keep(days=20.0, logs_mib=1)
    due = list(world.retention.due(keep, world.at))
    done = list(world.retention.steps(keep, world.at))
    assert done == due
    gone = [step.job for step in done if step.what == "job"]
    assert gone == ids(0, 9)
    assert all(step.num_bytes == 1_100 for step in done if step.what == "job")
    assert [job.id for job in world.index.ended_before(world.at + 1)] == ids(
        9, NUM_JOBS - 1
    )
    for job in ids(0, NUM_JOBS):
        directory = JobDir.of(world.folder, job)
        assert (directory.checkpoints / "model.pt").read_bytes() == b"z"
        assert directory.logs.exists() == (job not in gone)
        assert bool(story_of(world.index, job)) == (job not in gone)
    assert world.replayed() == world.state
    journal = Journal.at_path(world.path)
    assert 1 < journal.first_number <= world.older
    first = next(iter(journal.events()))
    assert first.at >= world.at - 20.0 * DAY_S
    journal.append([NodeJoined(at=world.at, node=Node(id="new", num_gpus=1))])
    assert [
        number for number, _ in journal.numbered_events(after=world.num_events)
    ] == [world.num_events + 1]
    assert list(world.retention.steps(keep, world.at)) == []


def test_events_after_the_older_snapshot_stay_whatever_their_age(world: World) -> None:
    list(world.retention.steps(Keep(days=0.0, logs_mib=1), world.at))
    assert Journal.at_path(world.path).first_number == world.older + 1
    assert world.replayed() == world.state
    # The last snapshot is harmed: the one before it carries the books.
    with closing(sqlite3.connect(world.path)) as database, database:
        database.execute(
            "UPDATE snapshots SET payload = 'x' WHERE upto > ?", (world.older,)
        )
    journal = Journal.at_path(world.path)
    state, upto = journal.latest_snapshot() or (None, 0)
    assert upto == world.older
    scheduler = Scheduler(CONFIG, state)
    for event in journal.events(after=upto):
        scheduler.handle(event)
    assert scheduler.state == world.state


def test_without_a_snapshot_a_pruned_journal_is_refused(world: World) -> None:
    list(world.retention.steps(Keep(days=0.0, logs_mib=1), world.at))
    with closing(sqlite3.connect(world.path)) as database, database:
        database.execute("DELETE FROM snapshots")
    with pytest.raises(StoreError, match=f"before event {world.older + 1} were pruned"):
        Journal.at_path(world.path).latest_snapshot()


def test_a_job_that_lives_is_not_touched(world: World) -> None:
    lock = os.open(
        JobDir.of(world.folder, "j03").records / "lock", os.O_RDWR | os.O_CREAT
    )
    fcntl.flock(lock, fcntl.LOCK_EX)
    try:
        gone = {
            step.job
            for step in world.retention.steps(Keep(days=0.0, logs_mib=0), world.at)
        }
    finally:
        os.close(lock)
    assert "j03" not in gone
    assert f"j{NUM_JOBS - 1}" not in gone
    for job in ("j03", f"j{NUM_JOBS - 1}"):
        assert JobDir.of(world.folder, job).log("1-0").read_bytes() == b"x" * 1_000
        assert story_of(world.index, job)


def test_logs_beyond_the_total_go_the_oldest_first(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("coadapt.runtime.retention.MEBIBYTE", 1_000)
    steps = list(world.retention.steps(Keep(days=90.0, logs_mib=25), world.at))
    assert [(step.what, step.job, step.num_bytes) for step in steps] == [
        ("logs", job, 1_000) for job in ids(0, 5)
    ]
    assert len(world.index.ended_before(world.at + 1)) == NUM_JOBS - 1
    assert not JobDir.of(world.folder, "j04").logs.exists()
    assert JobDir.of(world.folder, "j04").generation(1).path.exists()


def test_a_job_without_checkpoints_leaves_nothing(world: World) -> None:
    directory = JobDir.of(world.folder, "j00")
    (directory.checkpoints / "model.pt").unlink()
    list(world.retention.steps(Keep(days=28.0, logs_mib=1), world.at))
    assert not directory.path.exists()


def test_a_link_in_a_jobs_directory_leads_nowhere(world: World) -> None:
    precious = world.folder / "precious"
    precious.mkdir()
    (precious / "file").write_bytes(b"p")
    (JobDir.of(world.folder, "j00").path / "link").symlink_to(precious)
    list(world.retention.steps(Keep(days=0.0, logs_mib=1), world.at))
    assert (precious / "file").read_bytes() == b"p"


@pytest.mark.parametrize("column", ["seq", "link", "check"])
def test_what_says_where_the_journal_begins_is_checked_and_repaired(
    world: World, column: str
) -> None:
    list(world.retention.steps(Keep(days=0.0, logs_mib=1), world.at))
    world.journal.close()
    with closing(sqlite3.connect(world.path)) as database, database:
        value = 7 if column == "seq" else "0" * 32
        database.execute(f'UPDATE anchor SET "{column}" = ?', (value,))
    with pytest.raises(StoreError, match="was harmed"):
        Journal.at_path(world.path)
    found = read_all(world.path)
    judgement = judge(found)
    assert judgement.findings() == [
        "what says where the journal begins was altered",
        # it hung on that alone
        f"the snapshot after event {world.older} does not fit the events",
    ]
    rewrite(world.path, found, judgement)
    assert world.replayed() == world.state


def test_a_row_that_is_missing_after_the_anchor_is_found(world: World) -> None:
    list(world.retention.steps(Keep(days=0.0, logs_mib=1), world.at))
    first = world.older + 1
    with closing(sqlite3.connect(world.path)) as database, database:
        database.execute("DELETE FROM events WHERE seq = ?", (first,))
    with pytest.raises(StoreError, match=f"event {first} is missing"):
        Journal.at_path(world.path)


KILLED = """
import os, sys
from pathlib import Path
from coadapt.executors.processes.records.job_files import StateDirFiles
from coadapt.runtime import journal
from coadapt.runtime.job_index import JobIndex
from coadapt.runtime.retention import Keep, Retention

journal.ROWS_PER_PRUNE = 5
folder, last, at = Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
files = StateDirFiles(folder)
if last < 0:
    remove = files.remove
    files.remove = lambda job, *, logs_only: remove(job, logs_only=logs_only) and os.kill(os.getpid(), 9)
index, journal = JobIndex(folder / "jobs.sqlite"), journal.Journal.at_path(folder / "journal.db")
steps = Retention(index, journal, files).steps(Keep(days=0.0, logs_mib=1), at)
for number, _ in enumerate(steps):
    if number == last:
        os.kill(os.getpid(), 9)
"""


@pytest.mark.processes
@pytest.mark.parametrize("last", [-1, NUM_JOBS + 3])
def test_a_prune_that_is_killed_loses_nothing_and_is_finished_by_the_next(
    world: World, last: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed between the files of a job and its rows in the index, and among the
    events.
    """
    world.journal.close()
    world.index.close()
    arguments = [
        sys.executable,
        "-c",
        KILLED,
        str(world.folder),
        str(last),
        repr(world.at),
    ]
    assert subprocess.run(arguments, timeout=120, check=False).returncode == -9
    assert world.replayed() == world.state
    journal = Journal.at_path(world.path)
    index = JobIndex(world.folder / "jobs.sqlite")
    if last > 0:
        assert journal.first_number == world.older + 1
    monkeypatch.setattr(journal_module, "ROWS_PER_PRUNE", 5)
    list(
        Retention(index, journal, StateDirFiles(world.folder)).steps(
            Keep(days=0.0, logs_mib=1), world.at
        )
    )
    assert world.replayed() == world.state
    assert index.ended_before(world.at + 1) == []
    with closing(sqlite3.connect(world.path)) as database:
        numbers = [
            row[0] for row in database.execute("SELECT seq FROM events ORDER BY seq")
        ]
    assert numbers == list(range(world.older + 1, world.num_events + 1))


def test_a_lost_index_begins_anew_at_the_snapshot_of_a_pruned_journal(
    world: World,
) -> None:
    list(world.retention.steps(Keep(days=0.0, logs_mib=1), world.at))
    index = JobIndex(":memory:")
    journal = Journal.at_path(world.path)
    state, upto = journal.latest_snapshot() or (SchedulerState(), 0)
    writer = IndexWriter(index, journal.whole, CONFIG)
    scheduler = Scheduler(CONFIG, state)
    writer.restored(scheduler.state, upto)
    for number, event in journal.numbered_events(after=upto):
        writer.observe(number, event, scheduler.handle(event), scheduler.state)
    assert index.upto == world.num_events
    assert story_of(index, f"j{NUM_JOBS - 1}")


def test_the_file_becomes_smaller(tmp_path: Path) -> None:
    journal = Journal.at_path(tmp_path / "journal.db")
    journal.append([NodeJoined(at=1.0, node=Node(id="n" * 500, num_gpus=1))] * 5_000)
    for upto in (4_000, 5_000):
        journal.save_snapshot(SchedulerState(), upto)
    journal.close()
    journal = Journal.at_path(tmp_path / "journal.db")
    before = (tmp_path / "journal.db").stat().st_size
    assert [*journal.prune(journal.prunable(2.0))] == [2_000, 4_000]
    journal.close()
    assert (tmp_path / "journal.db").stat().st_size < before / 2
