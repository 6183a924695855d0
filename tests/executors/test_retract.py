"""Changes in place that are taken back, or fail, under the local executor: those who
train train on.
"""

import os
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from coadapt.core.commands import RetractRescale, Start, Stop
from coadapt.core.events import Outcome, ReplicasKept
from coadapt.executors.processes.executor import ProcessExecutor
from coadapt.executors.processes.in_place_rescale import (
    GONE_LIMIT_S,
    JOIN_LIMIT_S,
    InPlaceRescale,
)
from coadapt.executors.processes.job_processes import marked_processes
from coadapt.executors.processes.records.generation_dir import JobDir
from coadapt.executors.processes.replica import Replica
from coadapt.model.rescale import ORDER_FILE, decided_file
from tests.contracts.executor_contract import Inbox, exited, spec, started, until
from tests.executors.changes import RandomOrders
from tests.executors.elastic_site import Stage, staged
from tests.executors.processes.test_rank_map import launch_order
from tests.executors.test_local import end_of

pytestmark = pytest.mark.processes

RETRACT = RetractRescale(job="a", generation=2)


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stage]:
    with staged(tmp_path, monkeypatch) as site:
        yield site


def kept(generation: int = 2) -> ReplicasKept:
    return ReplicasKept(at=0.0, job="a", generation=generation)


def preparing(site: Stage, *counts: int) -> tuple[ProcessExecutor, Inbox]:
    """Return where one replica trains while others prepare to join it."""
    executor, inbox = site.start(1)
    site.set("slow")
    executor.execute(site.rescale(*counts), inbox.post)
    until(lambda: len(site.alive()) == 1 + sum(counts) - 1)
    return executor, inbox


def test_an_order_is_taken_back_and_the_next_one_works(site: Stage) -> None:
    executor, inbox = preparing(site, 2, 1)
    pid = site.pid("1-0")
    for _ in range(2):
        executor.execute(RETRACT, inbox.post)
    inbox.wait(kept())
    assert (site.alive(), site.pid("1-0")) == ({"1-0"}, pid)
    assert not (site.job().generation(1).control_dir / ORDER_FILE).exists()
    for repeated in (RETRACT, site.rescale(2, 1), Start(**site.terms(2, (1,)))):
        executor.execute(repeated, inbox.post)
        inbox.wait(kept())
    (site.folder / "slow").unlink()
    executor.execute(site.rescale(0, 2, generation=3), inbox.post)
    inbox.wait(started("a", 3))
    assert site.alive() == {"3-0", "3-1"}
    site.set("finish")
    inbox.wait(exited("a", 3, Outcome.SUCCEEDED))
    changes = [line for line in site.lives() if line[0] == "="]
    assert sorted(changes) == ["=3-0 3 0", "=3-1 3 1"]


def test_the_slots_of_an_order_are_free_once_it_was_taken_back(site: Stage) -> None:
    executor, inbox = preparing(site, 2)
    rival = Start(
        **{**site.terms(1, (1,)), "job": "b", "spec": spec("sleep 600", site.folder)}
    )
    executor.execute(rival, inbox.post)
    inbox.stays_empty()
    executor.execute(RETRACT, inbox.post)
    inbox.wait(kept(), started("b", 1))
    executor.execute(site.rescale(2, generation=3), inbox.post)
    inbox.stays_empty()


def test_one_that_comes_too_late_is_answered_by_the_change(site: Stage) -> None:
    executor, inbox = site.start(1)
    stuck = site.set("stuck")
    executor.execute(site.rescale(2), inbox.post)
    until((site.job().generation(1).control_dir / "2.begun").exists)
    executor.execute(RETRACT, inbox.post)
    inbox.stays_empty()
    stuck.unlink()
    inbox.wait(started("a", 2))
    executor.execute(RETRACT, inbox.post)
    inbox.wait(started("a", 2))
    assert site.alive() == {"1-0", "2-1"}


@pytest.mark.parametrize("how", ["fails", "is killed"])
def test_one_that_fails_before_it_joins_costs_the_others_nothing(
    site: Stage, how: str
) -> None:
    executor, inbox = preparing(site, 2)
    pid = site.pid("1-0")
    if how == "fails":
        site.set("broken")
    else:
        os.kill(site.pid("2-1"), signal.SIGKILL)
    event = inbox.one()
    assert isinstance(event, ReplicasKept)
    expected = (
        "exited with code 1: RuntimeError: boom"
        if how == "fails"
        else "was killed by SIGKILL"
    )
    assert f"replica 1, which was to join, {expected}" in event.detail
    assert event.joiner_failed is (how == "fails")
    assert [site.pid("1-0")] == [
        found for found in site.pids("replica") if found == pid
    ]
    executor.execute(site.rescale(2), inbox.post)
    assert replace(inbox.one(), at=event.at) == event
    for flag in ("slow", "broken"):
        (site.folder / flag).unlink(missing_ok=True)
    executor.execute(site.rescale(2, generation=3), inbox.post)
    inbox.wait(started("a", 3))
    assert site.pid("1-0") == pid


def test_one_that_does_not_listen_is_ended(site: Stage) -> None:
    executor, inbox = preparing(site, 2)
    site.set("deaf")
    executor.execute(RETRACT, inbox.post)
    inbox.wait(kept())
    assert len(site.pids("replica")) == 1


def test_an_order_that_waits_for_slots_is_taken_back_at_once(site: Stage) -> None:
    executor, inbox = site.start(1)
    rival = Start(
        **{**site.terms(1, (1,)), "job": "b", "spec": spec("sleep 600", site.folder)}
    )
    executor.execute(rival, inbox.post)
    inbox.wait(started("b", 1))
    executor.execute(site.rescale(2), inbox.post)
    inbox.stays_empty()
    executor.execute(RETRACT, inbox.post)
    inbox.wait(kept())
    executor.execute(site.rescale(0, 1, generation=3), inbox.post)
    inbox.wait(started("a", 3))


def test_an_order_that_comes_after_its_retraction_is_not_followed(site: Stage) -> None:
    executor, inbox = site.start(1)
    executor.execute(RETRACT, inbox.post)
    executor.execute(site.rescale(2), inbox.post)
    inbox.wait(kept())
    inbox.stays_empty()
    assert site.alive() == {"1-0"}
    executor.execute(Stop(job="a", generation=2), inbox.post)
    inbox.wait(exited("a", 2, Outcome.STOPPED))
    assert site.lives() == ["+1-0", "-1-0 75"]


def test_a_stop_beats_a_retraction(site: Stage) -> None:
    executor, inbox = site.start(1)
    executor.execute(Stop(job="a", generation=2), inbox.post)
    executor.execute(RETRACT, inbox.post)
    inbox.wait(exited("a", 1, Outcome.STOPPED), exited("a", 2, Outcome.STOPPED))


def test_a_change_that_became_a_restart_is_not_taken_back(site: Stage) -> None:
    site.set("incapable")
    executor = site.executor()
    inbox = Inbox()
    executor.execute(Start(**site.terms(1, (1,))), inbox.post)
    inbox.wait(started("a", 1))
    until(lambda: site.alive() == {"1-0"})
    executor.execute(site.rescale(2), inbox.post)
    until(site.job().generation(1).stop_file.exists)
    executor.execute(RETRACT, inbox.post)
    inbox.wait(exited("a", 1, Outcome.STOPPED), started("a", 2))


def test_what_has_ended_before_its_retraction_tells_its_end(site: Stage) -> None:
    executor, inbox = site.start(1)
    site.set("finish")
    inbox.wait(exited("a", 1, Outcome.SUCCEEDED))
    executor.execute(RETRACT, inbox.post)
    inbox.wait(exited("a", 2, Outcome.SUCCEEDED))


def test_a_run_that_ends_while_those_who_were_to_join_are_seen_off(site: Stage) -> None:
    executor, inbox = preparing(site, 2)
    site.set("deaf")
    executor.execute(RETRACT, inbox.post)
    until((site.job().generation(1).control_dir / decided_file(2)).exists)
    site.set("finish")
    inbox.wait(exited("a", 2, Outcome.SUCCEEDED))
    assert marked_processes(site.job().checkpoints) == []


def test_a_new_executor_finds_what_was_taken_back(site: Stage) -> None:
    executor, before = preparing(site, 2)
    executor.execute(RETRACT, before.post)
    until(site.job().generation(2).retract_file.exists)
    executor = site.executor()
    inbox = Inbox()
    assert executor.adopted() == [("a", 2)]
    until(lambda: site.job().generation(2).kept() is not None)
    executor.execute(RETRACT, inbox.post)
    inbox.wait(kept())
    executor = site.executor()
    inbox = Inbox()
    assert executor.adopted() == [("a", 2)]
    (site.folder / "slow").unlink()
    executor.execute(site.rescale(1, 1, generation=3), inbox.post)
    inbox.wait(started("a", 3))
    assert site.alive() == {"1-0", "3-1"}
    executor.execute(RetractRescale(job="a", generation=4), inbox.post)
    inbox.wait(kept(4))
    executor = site.executor()
    inbox = Inbox()
    assert executor.adopted() == [("a", 4)]
    executor.execute(site.rescale(1, generation=5), inbox.post)
    inbox.wait(started("a", 5))
    assert site.alive() == {"1-0"}


def test_a_new_executor_passes_over_what_was_taken_back_before(site: Stage) -> None:
    """A later order is under way when it comes, and is taken back as well: the first
    one's slots are held.
    """
    executor, before = preparing(site, 2, 1)
    executor.execute(RETRACT, before.post)
    before.wait(kept())
    executor.execute(site.rescale(1, 1, generation=3), before.post)
    until(lambda: "+3-1" in site.lives())
    executor = site.executor()
    inbox = Inbox()
    assert executor.adopted() == [("a", 3)]
    executor.execute(RetractRescale(job="a", generation=3), inbox.post)
    inbox.wait(kept(3))
    rival = {
        **site.terms(1, (1, 2)),
        "job": "b",
        "spec": spec("sleep 600", site.folder),
    }
    executor.execute(Start(**rival), inbox.post)
    inbox.wait(started("b", 1))
    executor.execute(site.rescale(1, generation=4), inbox.post)
    inbox.wait(started("a", 4))


def test_after_an_order_was_taken_back_replicas_have_the_ranks_of_before(
    site: Stage,
) -> None:
    executor, inbox = site.start(1, 1)
    site.set("slow")
    executor.execute(site.rescale(0, 2), inbox.post)
    until(lambda: "+2-1" in site.lives())
    executor.execute(RETRACT, inbox.post)
    inbox.wait(kept())
    os.kill(site.pid("1-1"), signal.SIGKILL)
    assert "replica 1 was killed by SIGKILL" in end_of(inbox).detail


def test_an_order_kept_before_its_launcher_heard_of_it_is_handed_over_again(
    site: Stage,
) -> None:
    """The executor died before it could tell the launcher under which number the
    replicas go on.
    """
    executor, inbox = site.start(1)
    (launcher,) = site.pids("launcher")
    os.kill(launcher, signal.SIGSTOP)
    executor.execute(RETRACT, inbox.post)
    inbox.wait(kept())
    site.close()
    (site.job().generation(1).path / "successor").unlink()
    os.kill(launcher, signal.SIGCONT)
    site.executor().execute(Stop(job="a", generation=2), inbox.post)
    end = end_of(inbox)
    assert (end.generation, end.outcome) == (2, Outcome.STOPPED)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_any_order_is_answered_in_one_way_only(site: Stage, seed: int) -> None:
    RandomOrders(site, seed).run()


@pytest.fixture
def under_way(tmp_path: Path) -> Iterator[InPlaceRescale]:
    """A change of one replica that lives."""
    directory = JobDir.of(tmp_path, "a").generation(1)
    directory.control_dir.mkdir(parents=True)
    following = directory.job.generation(2)
    following.path.mkdir(parents=True)
    order = launch_order(2)
    old = Replica(name="1-0", log="", process=subprocess.Popen(["sleep", "60"]))
    yield InPlaceRescale(
        lead=directory, directory=following, before=order, order=order, old=(old,)
    )
    old.process.kill()
    old.process.wait()


def test_those_who_join_are_waited_for_a_long_time_but_not_for_ever(
    under_way: InPlaceRescale,
) -> None:
    assert under_way.unwanted() is None
    under_way.began_at -= JOIN_LIMIT_S
    assert under_way.unwanted() == "it did not come about within 600 s"
    (under_way.lead.control_dir / "2.begun").touch()
    assert under_way.unwanted() is None


def test_one_that_ends_instead_of_joining_is_not_waited_for(
    under_way: InPlaceRescale,
) -> None:
    under_way.joiners.append(
        Replica(name="2-1", log="", process=subprocess.Popen(["true"]))
    )
    under_way.joiners[0].process.wait()
    assert under_way.unwanted() is None
    assert under_way.gone_at is not None
    under_way.gone_at -= GONE_LIMIT_S
    assert under_way.unwanted() == "a replica that was to join has ended"
    under_way.old[0].process.kill()
    under_way.old[0].process.wait()
    assert under_way.unwanted() is None


def test_what_could_not_be_started_is_told(under_way: InPlaceRescale) -> None:
    under_way.trouble = "no memory"
    assert under_way.unwanted() == "no memory"
    under_way.directory.request_retraction()
    assert under_way.unwanted() == ""


def test_whoever_decides_first_has_decided(under_way: InPlaceRescale) -> None:
    assert not under_way.decided
    assert under_way.take_back("why")
    assert (under_way.decided, under_way.taken_back) == (True, "why")
    other = replace(
        under_way, directory=under_way.lead.job.generation(3), taken_back=None
    )
    (under_way.lead.control_dir / decided_file(3)).touch()
    assert not other.take_back("late")
    assert (other.decided, other.taken_back) == (True, None)
