"""Replicas that change in place under the local executor: real processes of a script without training."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from coadapt.core.commands import Resize, Start, Stop
from coadapt.core.events import Outcome
from coadapt.executors import launcher
from coadapt.executors.change import GONE_LIMIT_S, JOIN_LIMIT_S, Change
from coadapt.executors.generation_dir import JobDir, LaunchOrder
from coadapt.executors.job_processes import kill_marked, marked_processes
from coadapt.executors.local import LocalExecutor
from coadapt.executors.replica import Replica
from coadapt.model import Allocation
from coadapt.model.rescale import CAPABLE_FILE
from tests.contracts.executor_contract import NODES, Inbox, exited, spec, started, until
from tests.executors.test_local import LocalSite, end_of

pytestmark = pytest.mark.processes

TRAINER = f"exec {sys.executable} {Path(__file__).parent / 'fake_trainer.py'}"


class Stage(LocalSite):
    """One job of the fake trainer, and who lives in it."""

    def start(self, *counts: int, generation: int = 1) -> tuple[LocalExecutor, Inbox]:
        executor, inbox = self.executor(), Inbox()
        executor.execute(Start(**self.terms(generation, counts)), inbox.post)
        inbox.wait(started("a", generation))
        until((self.job().generation(generation).switchboard / CAPABLE_FILE).exists)
        until(lambda: len(self.alive()) == sum(counts))
        return executor, inbox

    def resize(self, *counts: int, generation: int = 2) -> Resize:
        return Resize(**self.terms(generation, counts))

    def terms(self, generation: int, counts: tuple[int, ...]) -> dict[str, object]:
        slots = tuple((node, count) for node, count in zip(NODES, counts, strict=False) if count)
        return {
            "job": "a",
            "generation": generation,
            "spec": spec(TRAINER, self.folder),
            "allocation": Allocation(slots=slots),
        }

    def lives(self) -> list[str]:
        path = self.folder / "lives"
        return path.read_text().splitlines() if path.exists() else []

    def alive(self) -> set[str]:
        names = [line[1:].split()[0] for line in self.lives() if line[0] == "+"]
        return {name for name in names if not any(line.startswith(f"-{name} ") for line in self.lives())}

    def set(self, flag: str) -> Path:
        path = self.folder / flag
        path.touch()
        return path

    def pid(self, name: str) -> int:
        """Return the process of a replica, by its start."""
        generation, rank = name.split("-")
        for pid in self.pids("replica"):
            environ = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
            if {f"COADAPT_GENERATION={generation}".encode(), f"RANK={rank}".encode()} <= set(environ):
                return pid
        raise AssertionError(f"{name} does not live")


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stage]:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(path for path in sys.path if path))
    site = Stage(tmp_path)
    yield site
    site.close()
    for job in (site.state_dir / "jobs").glob("*"):
        kill_marked(job / "checkpoints")


def test_replicas_stay_join_and_leave(site: Stage) -> None:
    executor, inbox = site.start(1)
    pid = site.pid("1-0")
    for generation, counts in ((2, (2, 1)), (3, (1, 1)), (4, (0, 2)), (5, (1, 0))):
        executor.execute(site.resize(*counts, generation=generation), inbox.post)
        inbox.wait(started("a", generation))
        until(lambda counts=counts: len(site.alive()) == sum(counts))  # type: ignore[misc]
        if generation < 4:
            assert site.pid("1-0") == pid
    site.set("finish")
    inbox.wait(exited("a", 5, Outcome.SUCCEEDED))
    assert marked_processes(site.job().checkpoints) == []
    changes = [line for line in site.lives() if line[0] == "="]
    assert sorted(changes) == [
        *("=1-0 2 0", "=1-0 3 0"),
        *("=2-1 2 1", "=2-2 2 2", "=2-2 3 1", "=2-2 4 0"),
        "=4-1 4 1",
        "=5-0 5 0",
    ]
    left = [line for line in site.lives() if line[0] == "-"]
    assert sorted(left) == ["-1-0 0", "-2-1 0", "-2-2 0", "-4-1 0", "-5-0 0"]


def test_slots_of_those_who_left_are_free_and_of_those_who_stay_are_not(site: Stage) -> None:
    executor, inbox = site.start(2)
    other = Inbox()
    rival = Start(**{**site.terms(1, (1,)), "job": "b", "spec": spec("sleep 60", site.folder)})
    executor.execute(rival, other.post)
    other.stays_empty()
    stuck = site.set("stuck")
    executor.execute(site.resize(1), inbox.post)
    until(lambda: site.alive() == {"1-0"})
    other.stays_empty()
    stuck.unlink()
    inbox.wait(started("a", 2))
    other.wait(started("b", 1))
    executor.execute(site.resize(2, generation=3), inbox.post)
    inbox.stays_empty()
    executor.execute(Stop(job="b", generation=1), other.post)
    other.wait(exited("b", 1, Outcome.STOPPED))
    inbox.wait(started("a", 3))
    assert site.alive() == {"1-0", "3-1"}


def test_a_change_is_over_when_those_who_left_are_gone(site: Stage) -> None:
    executor, inbox = site.start(2)
    linger = site.set("linger")
    executor.execute(site.resize(1), inbox.post)
    until((site.job().generation(1).switchboard / "2.done").exists)
    inbox.stays_empty()
    linger.unlink()
    inbox.wait(started("a", 2))


def test_the_next_change_waits_for_the_one_under_way(site: Stage) -> None:
    executor, inbox = site.start(1)
    stuck = site.set("stuck")
    executor.execute(site.resize(2), inbox.post)
    until((site.job().generation(1).switchboard / "2.begun").exists)
    executor.execute(site.resize(1, generation=3), inbox.post)
    inbox.stays_empty()
    assert site.job().generation(3).order() is None
    stuck.unlink()
    inbox.wait(started("a", 2), started("a", 3))
    assert site.alive() == {"1-0"}


def test_a_run_that_ends_while_its_change_waits_for_slots_is_not_started_anew(site: Stage) -> None:
    executor, inbox = site.start(1)
    rival = Start(**{**site.terms(1, (1,)), "job": "b", "spec": spec("sleep 60", site.folder)})
    executor.execute(rival, inbox.post)
    inbox.wait(started("b", 1))
    executor.execute(site.resize(2), inbox.post)
    inbox.stays_empty()
    site.set("finish")
    inbox.wait(exited("a", 1, Outcome.SUCCEEDED), exited("a", 2, Outcome.SUCCEEDED))
    assert site.lives() == ["+1-0", "-1-0 0"]


def test_a_script_that_cannot_change_yet_is_stopped_and_started(site: Stage) -> None:
    site.set("incapable")
    executor, inbox = site.executor(), Inbox()
    executor.execute(Start(**site.terms(1, (1,))), inbox.post)
    inbox.wait(started("a", 1))
    until(lambda: site.alive() == {"1-0"})
    executor.execute(site.resize(2), inbox.post)
    inbox.wait(exited("a", 1, Outcome.STOPPED), started("a", 2))
    until(lambda: site.alive() == {"2-0", "2-1"})
    assert "-1-0 75" in site.lives()


def test_a_run_that_ends_before_its_change_needs_nobody_to_join(site: Stage) -> None:
    executor, inbox = site.start(1)
    site.set("slow")
    executor.execute(site.resize(2), inbox.post)
    until(lambda: "+2-1" in site.lives())
    site.set("finish")
    inbox.wait(exited("a", 2, Outcome.SUCCEEDED))
    assert marked_processes(site.job().checkpoints) == []


def test_a_run_that_has_ended_when_its_change_is_ordered_tells_its_end(site: Stage) -> None:
    executor, inbox = site.start(1)
    site.close()
    site.set("finish")
    until(lambda: site.job().generation(1).fate() is not None)
    before = site.job().generation(1).path / "exit.json"
    fate = before.read_text()
    before.unlink()  # as if it ended in the instant between the order and the launcher's next look
    executor = site.executor()
    (site.job().path / "lock").touch()
    with site.job().lock():
        executor.execute(site.resize(2), inbox.post)
        until(lambda: site.job().generation(2).order() is not None)
        before.write_text(fate)
    inbox.wait(exited("a", 2, Outcome.SUCCEEDED))
    assert site.lives() == ["+1-0", "-1-0 0"]


@pytest.mark.parametrize("moment", ["slow", "stuck"])
@pytest.mark.parametrize("victim", ["1-0", "2-1"])
def test_a_replica_killed_during_a_change_ends_all(site: Stage, moment: str, victim: str) -> None:
    executor, inbox = site.start(1)
    site.set(moment)
    executor.execute(site.resize(2), inbox.post)
    until(lambda: "+2-1" in site.lives())
    if moment == "stuck":
        until((site.job().generation(1).switchboard / "2.begun").exists)
    began = time.monotonic()
    os.kill(site.pid(victim), signal.SIGKILL)
    end = end_of(inbox)
    assert (end.generation, end.outcome) == (2, Outcome.LOST)
    assert f"replica {'01'[victim == '2-1']} was killed by SIGKILL" in end.detail
    assert time.monotonic() - began < launcher.PEER_GRACE_S + 3.0
    assert marked_processes(site.job().checkpoints) == []
    assert ("-1-0 75" in site.lives()) is (moment == "slow" and victim == "2-1")


@pytest.mark.parametrize("moment", ["slow", "stuck"])
def test_a_killed_launcher_ends_all(site: Stage, moment: str) -> None:
    executor, inbox = site.start(1)
    site.set(moment)
    executor.execute(site.resize(2), inbox.post)
    until(lambda: "+2-1" in site.lives())
    os.kill(site.pids("launcher")[0], signal.SIGKILL)
    end = end_of(inbox)
    assert (end.generation, end.outcome) == (2, Outcome.LOST)
    assert marked_processes(site.job().checkpoints) == []


def test_a_stop_during_a_change_lets_those_who_train_save(site: Stage) -> None:
    executor, inbox = site.start(2)
    site.set("slow")
    executor.execute(site.resize(2, 1), inbox.post)
    until(lambda: "+2-2" in site.lives())
    (site.folder / "slow").rename(site.folder / "stuck")
    until((site.job().generation(1).switchboard / "2.begun").exists)
    executor.execute(Stop(job="a", generation=2), inbox.post)
    until(site.job().generation(2).stop_file.exists)
    time.sleep(2 * launcher.POLL_S)
    (site.folder / "stuck").unlink()
    inbox.wait(exited("a", 2, Outcome.STOPPED))
    assert sorted(site.lives()[-3:]) == ["-1-0 75", "-1-1 75", "-2-2 75"]


def test_all_may_be_replaced_at_once(site: Stage) -> None:
    executor, inbox = site.start(1)
    stuck = site.set("stuck")
    executor.execute(site.resize(0, 2), inbox.post)
    until(lambda: site.alive() == {"2-0", "2-1"})
    inbox.stays_empty()
    stuck.unlink()
    inbox.wait(started("a", 2))


def test_a_stop_while_all_are_replaced_is_no_success(site: Stage) -> None:
    """The old ones have left with code 0, and the new ones, told to stop, end in the same way."""
    executor, inbox = site.start(1)
    site.set("stuck")
    executor.execute(site.resize(0, 1), inbox.post)
    until(lambda: site.alive() == {"2-0"})
    executor.execute(Stop(job="a", generation=2), inbox.post)
    inbox.wait(exited("a", 2, Outcome.STOPPED))
    assert site.lives() == ["+1-0", "+2-0", "-1-0 0", "-2-0 0"]


def test_a_stop_before_a_change_begins_ends_those_who_wait_last(site: Stage) -> None:
    executor, inbox = site.start(1)
    site.set("slow")
    executor.execute(site.resize(2), inbox.post)
    until(lambda: "+2-1" in site.lives())
    executor.execute(Stop(job="a", generation=2), inbox.post)
    until(lambda: "-1-0 75" in site.lives())
    (site.folder / "slow").unlink()
    inbox.wait(exited("a", 2, Outcome.STOPPED))
    assert site.lives()[-1] == "-2-1 0"


def test_a_new_executor_takes_a_change_over(site: Stage) -> None:
    executor, before = site.start(1)
    site.set("slow")
    executor.execute(site.resize(2), before.post)
    until(lambda: "+2-1" in site.lives())
    executor, inbox = site.executor(), Inbox()
    assert executor.running() == [("a", 2)]
    executor.execute(site.resize(2), inbox.post)
    inbox.stays_empty()
    (site.folder / "slow").unlink()
    inbox.wait(started("a", 2))
    site.close()
    executor = site.executor()
    executor.execute(site.resize(1, generation=3), inbox.post)
    inbox.wait(started("a", 3))
    assert site.alive() == {"1-0"}
    site.set("finish")
    inbox.wait(exited("a", 3, Outcome.SUCCEEDED))


def test_an_order_that_no_launcher_heard_of_is_handed_over_again(site: Stage) -> None:
    """The executor died between writing the order and telling the launcher."""
    executor, inbox = site.start(1)
    (pid,) = site.pids("launcher")
    os.kill(pid, signal.SIGSTOP)
    heard = site.job().generation(1).path / "successor"
    executor.execute(site.resize(2), inbox.post)
    until(heard.exists)
    site.close()
    heard.unlink()
    os.kill(pid, signal.SIGCONT)
    site.executor().execute(site.resize(2), inbox.post)
    inbox.wait(started("a", 2))
    assert site.alive() == {"1-0", "2-1"}


def test_logs_follow_the_rank(site: Stage) -> None:
    executor, inbox = site.start(1, 1)
    executor.execute(site.resize(0, 1), inbox.post)
    inbox.wait(started("a", 2))
    names = [path.name for path in executor.log_files("a", 0)]
    assert names == ["1-0.log", "1-1.log"]


@pytest.fixture
def under_way(tmp_path: Path) -> Iterator[Change]:
    """A change of one replica that lives."""
    directory = JobDir(tmp_path).generation(1)
    directory.switchboard.mkdir(parents=True)
    order = LaunchOrder(run="", setup="", workdir="", envs={}, replicas=(), slots={}, stop_grace_s=1.0)
    old = Replica(name="1-0", log="", process=subprocess.Popen(["sleep", "60"]))
    yield Change(root=directory, directory=directory.job.generation(2), order=order, old=(old,))
    old.process.kill()
    old.process.wait()


def test_those_who_join_are_waited_for_a_long_time_but_not_for_ever(under_way: Change) -> None:
    assert under_way.hopeless() == ""
    under_way.began_at -= JOIN_LIMIT_S
    assert under_way.hopeless() == "it did not come about within 600 s"
    (under_way.root.switchboard / "2.begun").touch()
    assert under_way.hopeless() == ""


def test_one_that_ends_instead_of_joining_is_not_waited_for(under_way: Change) -> None:
    under_way.joiners.append(Replica(name="2-1", log="", process=subprocess.Popen(["true"])))
    under_way.joiners[0].process.wait()
    assert under_way.hopeless() == ""
    assert under_way.gone_at is not None
    under_way.gone_at -= GONE_LIMIT_S
    assert under_way.hopeless() == "a replica that was to join has ended"
    under_way.old[0].process.kill()
    under_way.old[0].process.wait()
    assert under_way.hopeless() == ""
