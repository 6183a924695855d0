"""Whatever a job does to its own directory ends at most that job, and what is told as
ended is gone.
"""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from coadapt.core.commands import Start, Stop
from coadapt.core.events import Outcome
from coadapt.executors.processes.job_processes import (
    launchers_of,
    marked_jobs,
    marked_processes,
)
from coadapt.executors.processes.records.generation_dir import JobDir
from coadapt.executors.processes.records.own_files import OwnFiles, damage_of
from coadapt.executors.processes.records.taking_over import take_over_layout
from coadapt.model import Allocation
from coadapt.model.contract_env import ENV_CHECKPOINT_DIR
from tests.contracts.executor_contract import NODES, Inbox, exited, spec, started, until
from tests.executors.processes.attacks import run as attack
from tests.executors.processes.test_rank_map import launch_order
from tests.executors.test_local import LocalSite, end_of, order, site
from tests.marked import pids_of

__all__ = ["site"]

pytestmark = pytest.mark.processes

OWN = '"$(dirname "$COADAPT_CHECKPOINT_DIR")"'


def test_forty_random_attacks_harm_nobody_else() -> None:
    assert attack(40, seed=3).num_attacks >= 40


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        (f"rm -rf {OWN}", "was removed"),
        (f"rm -rf {OWN}/checkpoints", "checkpoints was removed"),
        (f"D={OWN}; rm -rf $D; touch $D", "was replaced by a file"),
        (f"D={OWN}; rm -rf $D; mkfifo $D", "was replaced by a pipe"),
        (f"rm -rf {OWN}/logs; ln -s /nowhere {OWN}/logs", "by a link to nothing"),
    ],
)
def test_what_became_of_its_directory_is_told_with_its_end(
    site: LocalSite, made: str, expected: str
) -> None:
    inbox = Inbox()
    executor = site.executor()
    executor.execute(order(site, f"{made}; exit 3"), inbox.post)
    end = end_of(inbox)
    assert end.outcome is Outcome.FAILED
    assert expected in end.detail.partition("\n")[0]
    assert str(site.job().path) in end.detail


def test_a_directory_that_was_replaced_by_a_file_fails_the_next_start_alone(
    site: LocalSite,
) -> None:
    """It kept the scheduler from starting, for ever."""
    inbox = Inbox()
    first = order(site, f"D={OWN}; rm -rf $D; touch $D")
    site.executor().execute(first, inbox.post)
    assert end_of(inbox).outcome is Outcome.SUCCEEDED
    executor = site.executor()
    executor.execute(order(site, "true", generation=2), inbox.post)
    end = end_of(inbox)
    assert (end.outcome, end.detail) == (
        Outcome.FAILED,
        (
            "could not be started: [Errno 20] a file where a directory of the job "
            "belongs: "
            f"'{site.job().path}'"
        ),
    )
    other = Start(
        job="b",
        generation=1,
        spec=spec("true", site.folder),
        allocation=Allocation(slots=((NODES[1], 1),)),
    )
    executor.execute(other, inbox.post)
    inbox.wait(started("b", 1), exited("b", 1, Outcome.SUCCEEDED))


def test_one_that_removed_its_directory_is_gone_once_it_is_told_as_stopped(
    site: LocalSite,
) -> None:
    """It was told as cancelled after a restart of the scheduler, and held its GPU for
    ever.
    """
    inbox = Inbox()
    run = (
        f"rm -rf {OWN}; touch up; trap 'exit 75' TERM; while true; do sleep 0.05; done"
    )
    site.executor().execute(order(site, run), inbox.post)
    until((site.folder / "up").exists)
    executor = site.executor()
    executor.execute(Stop(job="a", generation=1), inbox.post)
    assert end_of(inbox).outcome is Outcome.STOPPED
    assert marked_processes(site.job().checkpoints) == []


def test_one_that_is_missing_a_directory_gets_it_back_while_it_runs(
    site: LocalSite,
) -> None:
    inbox = Inbox()
    run = f"rm -rf {OWN}; until [ -d $COADAPT_CHECKPOINT_DIR ]; do sleep 0.05; done"
    site.executor().execute(order(site, f"{run}; echo back"), inbox.post)
    end = end_of(inbox)
    assert end.outcome is Outcome.SUCCEEDED
    assert end.detail == f"{site.job().path} was removed"


def test_a_job_that_ends_while_the_state_directory_is_away_removed_nothing(
    site: LocalSite,
) -> None:
    """The user was shown that the job had removed its own directory."""
    inbox = Inbox()
    run = "touch up; until [ -e away ]; do sleep 0.05; done; sleep 3; exit 3"
    site.executor().execute(order(site, run), inbox.post)
    until((site.folder / "up").exists)
    elsewhere = site.state_dir.with_name("elsewhere")
    site.state_dir.rename(elsewhere)
    (site.folder / "away").touch()
    time.sleep(6.0)
    elsewhere.rename(site.state_dir)
    end = end_of(inbox)
    assert end.outcome is Outcome.FAILED
    assert "removed" not in end.detail


def test_a_stop_that_cannot_be_written_comes_by_a_signal(site: LocalSite) -> None:
    inbox = Inbox()
    executor = site.executor()
    run = "trap 'exit 75' TERM; touch up; while true; do sleep 0.05; done"
    executor.execute(order(site, run), inbox.post)
    inbox.wait(started("a", 1))  # no more of its start is written down later
    until((site.folder / "up").exists)
    records = site.job().generation(1).path
    until((records / "leaders.json").exists)
    records.rename(records.with_name("moved"))
    records.touch()  # no note can be written below a file
    executor.execute(Stop(job="a", generation=1), inbox.post)
    until(lambda: pids_of(site.job().checkpoints, launcher=False) == [])
    # The launcher goes on trying to write down how they ended, for a minute.
    records.unlink()
    records.with_name("moved").rename(records)
    assert end_of(inbox).outcome is Outcome.STOPPED
    until(lambda: launchers_of(site.job().checkpoints) == [])
    assert marked_processes(site.job().checkpoints) == []


def test_a_launcher_whose_lock_was_removed_is_not_taken_for_dead(
    site: LocalSite,
) -> None:
    inbox = Inbox()
    run = "touch up; while true; do sleep 0.05; done"
    site.executor().execute(order(site, run), inbox.post)
    until((site.folder / "up").exists)
    (site.job().records / "lock").unlink()
    other = Inbox()
    executor = site.executor()
    executor.execute(order(site, run), other.post)
    other.wait(started("a", 1))
    other.stays_empty()
    executor.execute(Stop(job="a", generation=1), other.post)
    assert end_of(other).outcome is Outcome.STOPPED


def test_processes_of_which_no_record_says_that_they_run_are_ended(
    site: LocalSite,
) -> None:
    envs = {**os.environ, ENV_CHECKPOINT_DIR: str(site.job("lost").checkpoints)}
    stranger = subprocess.Popen(["sleep", "600"], env=envs, start_new_session=True)
    until(lambda: marked_jobs(site.state_dir / "jobs") == {"lost": [stranger.pid]})
    site.executor()
    assert stranger.wait(10.0) == -signal.SIGKILL


def test_the_records_of_an_earlier_version_are_moved_out_of_the_jobs_reach(
    tmp_path: Path,
) -> None:
    job = JobDir.of(tmp_path, "a")
    old = job.path / "generations" / "7"
    old.mkdir(parents=True)
    (old / "exit.json").write_text('{"outcome": "succeeded"}')
    (job.path / "setup.done").touch()
    take_over_layout(tmp_path)
    record = job.generation(7).exit_record()
    assert record is not None
    assert record.outcome is Outcome.SUCCEEDED
    assert job.setup_done.exists()
    assert not (job.path / "generations").exists()


def test_a_job_that_an_earlier_version_started_is_taken_over(site: LocalSite) -> None:
    """Its launcher holds a lock, and writes, where earlier versions did; here a
    stand-in that does so.
    """
    job = site.job()
    old = job.path / "generations" / "1"
    old.mkdir(parents=True)
    launch = launch_order(1, ("1-0",), (0,), lead=1)
    job.records.parent.mkdir(exist_ok=True)
    job.records.symlink_to(job.path)  # only to write the order there
    job.generation(1).write_order(launch)
    job.records.unlink()
    stand_in = (
        "import fcntl, json, pathlib, sys, time; old = pathlib.Path(sys.argv[1]);"
        "lock = open(old.parents[1] / 'lock', 'a'); fcntl.flock(lock, fcntl.LOCK_EX);"
        "(old / 'started').touch()\n"
        "while not (old / 'stop').exists(): time.sleep(0.02)\n"
        "(old / 'exit.json').write_text(json.dumps({'outcome': 'stopped'}))"
    )
    envs = {**os.environ, ENV_CHECKPOINT_DIR: str(job.checkpoints)}
    launcher = subprocess.Popen([sys.executable, "-c", stand_in, str(old)], env=envs)
    until((old / "started").exists)
    inbox = Inbox()
    executor = site.executor()
    assert executor.adopted() == [("a", 1)]
    executor.execute(order(site, "true"), inbox.post)
    inbox.wait(started("a", 1))
    executor.execute(Stop(job="a", generation=1), inbox.post)
    launcher.wait(10.0)
    inbox.wait(exited("a", 1, Outcome.STOPPED))
    executor.execute(order(site, "true", generation=2), inbox.post)
    inbox.wait(started("a", 2), exited("a", 2, Outcome.SUCCEEDED))
    assert not job.records.is_symlink()


KINDS = ("nothing", "a file", "a directory", "a pipe", "a link to nothing")


def put(kind: str, path: Path) -> None:
    """Make `kind` stand at `path`, whose folder is there."""
    match kind:
        case "a file":
            path.write_text("x")
        case "a directory":
            path.mkdir()
        case "a pipe":
            os.mkfifo(path)
        case "a link to nothing":
            path.symlink_to("/nowhere/at/all")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["", "checkpoints", "generations/1/listeners"])
def test_a_look_at_own_files_never_raises_nor_waits(
    tmp_path: Path, name: str, kind: str
) -> None:
    own = OwnFiles(tmp_path / "jobs" / "a", 1)
    path = own.job / name
    path.parent.mkdir(parents=True, exist_ok=True)
    put(kind, path)
    began = time.monotonic()
    assert own.said() == {}
    assert not own.has("capable")
    assert not own.create("2.decided") or kind == "a directory"
    own.remove("order.json")
    expected = damage_of(own.job)
    assert (
        time.monotonic() - began < 10.0
    )  # a pipe that nobody writes to would hold it for ever
    assert (str(own.job) in expected) or (name, kind) == ("", "a directory")
