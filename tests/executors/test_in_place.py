"""Replicas that change in place under the local executor: real processes of a script
without training.
"""

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from coadapt.core.commands import Start, Stop
from coadapt.core.events import Outcome
from coadapt.executors.processes import launcher
from coadapt.executors.processes.cluster import LOOPBACK
from coadapt.executors.processes.executor import ProcessOptions
from coadapt.executors.processes.job_processes import marked_processes
from coadapt.runtime.ports import LogPart
from tests.contracts.executor_contract import Inbox, exited, spec, started, until
from tests.executors.elastic_site import Stage, staged
from tests.executors.test_local import end_of

pytestmark = pytest.mark.processes


@pytest.fixture(params=["", LOOPBACK], ids=["by files", "over the network"])
def site(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Stage]:
    with staged(tmp_path, monkeypatch) as site:
        site.options = ProcessOptions(control_host=request.param)
        yield site


def test_replicas_stay_join_and_leave(site: Stage) -> None:
    executor, inbox = site.start(1)
    pid = site.pid("1-0")
    for generation, counts in ((2, (2, 1)), (3, (1, 1)), (4, (0, 2)), (5, (1, 0))):
        executor.execute(site.rescale(*counts, generation=generation), inbox.post)
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


def test_slots_of_those_who_left_are_free_and_of_those_who_stay_are_not(
    site: Stage,
) -> None:
    executor, inbox = site.start(2)
    other = Inbox()
    rival = Start(
        **{**site.terms(1, (1,)), "job": "b", "spec": spec("sleep 600", site.folder)}
    )
    executor.execute(rival, other.post)
    other.stays_empty()
    stuck = site.set("stuck")
    executor.execute(site.rescale(1), inbox.post)
    until(lambda: site.alive() == {"1-0"})
    other.stays_empty()
    stuck.unlink()
    inbox.wait(started("a", 2))
    other.wait(started("b", 1))
    executor.execute(site.rescale(2, generation=3), inbox.post)
    inbox.stays_empty()
    executor.execute(Stop(job="b", generation=1), other.post)
    other.wait(exited("b", 1, Outcome.STOPPED))
    inbox.wait(started("a", 3))
    assert site.alive() == {"1-0", "3-1"}


def test_a_change_is_over_when_those_who_left_are_gone(site: Stage) -> None:
    executor, inbox = site.start(2)
    linger = site.set("linger")
    executor.execute(site.rescale(1), inbox.post)
    until((site.job().generation(1).control_dir / "2.done").exists)
    inbox.stays_empty()
    linger.unlink()
    inbox.wait(started("a", 2))


def test_the_next_change_waits_for_the_one_under_way(site: Stage) -> None:
    executor, inbox = site.start(1)
    stuck = site.set("stuck")
    executor.execute(site.rescale(2), inbox.post)
    until((site.job().generation(1).control_dir / "2.begun").exists)
    executor.execute(site.rescale(1, generation=3), inbox.post)
    inbox.stays_empty()
    assert site.job().generation(3).order() is None
    stuck.unlink()
    inbox.wait(started("a", 2), started("a", 3))
    assert site.alive() == {"1-0"}


def test_a_run_that_ends_while_its_change_waits_for_slots_is_not_started_anew(
    site: Stage,
) -> None:
    executor, inbox = site.start(1)
    rival = Start(
        **{**site.terms(1, (1,)), "job": "b", "spec": spec("sleep 600", site.folder)}
    )
    executor.execute(rival, inbox.post)
    inbox.wait(started("b", 1))
    executor.execute(site.rescale(2), inbox.post)
    inbox.stays_empty()
    site.set("finish")
    inbox.wait(exited("a", 1, Outcome.SUCCEEDED), exited("a", 2, Outcome.SUCCEEDED))
    assert site.lives() == ["+1-0", "-1-0 0"]


def test_a_script_that_cannot_change_yet_is_stopped_and_started(site: Stage) -> None:
    site.set("incapable")
    executor = site.executor()
    inbox = Inbox()
    executor.execute(Start(**site.terms(1, (1,))), inbox.post)
    inbox.wait(started("a", 1))
    until(lambda: site.alive() == {"1-0"})
    executor.execute(site.rescale(2), inbox.post)
    inbox.wait(exited("a", 1, Outcome.STOPPED), started("a", 2))
    until(lambda: site.alive() == {"2-0", "2-1"})
    assert "-1-0 75" in site.lives()


def test_a_run_that_ends_before_its_change_needs_nobody_to_join(site: Stage) -> None:
    executor, inbox = site.start(1)
    site.set("slow")
    executor.execute(site.rescale(2), inbox.post)
    until(lambda: "+2-1" in site.lives())
    site.set("finish")
    inbox.wait(exited("a", 2, Outcome.SUCCEEDED))
    assert marked_processes(site.job().checkpoints) == []


def test_a_run_that_has_ended_when_its_change_is_ordered_tells_its_end(
    site: Stage,
) -> None:
    executor, inbox = site.start(1)
    site.close()
    site.set("finish")
    until(lambda: site.job().generation(1).exit_record() is not None)
    before = site.job().generation(1).path / "exit.json"
    fate = before.read_text()
    # as if it ended in the instant between the order and the launcher's next look
    before.unlink()
    executor = site.executor()
    with site.job().lock():
        executor.execute(site.rescale(2), inbox.post)
        until(lambda: site.job().generation(2).order() is not None)
        before.write_text(fate)
    inbox.wait(exited("a", 2, Outcome.SUCCEEDED))
    assert site.lives() == ["+1-0", "-1-0 0"]


@pytest.mark.parametrize(
    ("moment", "victim"), [("slow", "1-0"), ("stuck", "1-0"), ("stuck", "2-1")]
)
def test_a_replica_killed_during_a_change_ends_all(
    site: Stage, moment: str, victim: str
) -> None:
    executor, inbox = site.start(1)
    site.set(moment)
    executor.execute(site.rescale(2), inbox.post)
    until(lambda: "+2-1" in site.lives())
    if moment == "stuck":
        until((site.job().generation(1).control_dir / "2.begun").exists)
    began = time.monotonic()
    os.kill(site.pid(victim), signal.SIGKILL)
    end = end_of(inbox)
    assert (end.generation, end.outcome) == (2, Outcome.LOST)
    assert f"replica {'01'[victim == '2-1']} was killed by SIGKILL" in end.detail
    assert time.monotonic() - began < launcher.PEER_GRACE_S + 3.0
    assert marked_processes(site.job().checkpoints) == []
    assert "-1-0 75" not in site.lives()


@pytest.mark.parametrize("moment", ["slow", "stuck"])
def test_a_killed_launcher_ends_all(site: Stage, moment: str) -> None:
    executor, inbox = site.start(1)
    site.set(moment)
    executor.execute(site.rescale(2), inbox.post)
    until(lambda: "+2-1" in site.lives())
    os.kill(site.pids("launcher")[0], signal.SIGKILL)
    end = end_of(inbox)
    assert (end.generation, end.outcome) == (2, Outcome.LOST)
    assert marked_processes(site.job().checkpoints) == []


def test_a_stop_during_a_change_lets_those_who_train_save(site: Stage) -> None:
    executor, inbox = site.start(2)
    site.set("slow")
    executor.execute(site.rescale(2, 1), inbox.post)
    until(lambda: "+2-2" in site.lives())
    (site.folder / "slow").rename(site.folder / "stuck")
    until((site.job().generation(1).control_dir / "2.begun").exists)
    executor.execute(Stop(job="a", generation=2), inbox.post)
    until(site.job().generation(2).stop_file.exists)
    time.sleep(2 * launcher.POLL_S)
    (site.folder / "stuck").unlink()
    inbox.wait(exited("a", 2, Outcome.STOPPED))
    assert sorted(site.lives()[-3:]) == ["-1-0 75", "-1-1 75", "-2-2 75"]


def test_all_may_be_replaced_at_once(site: Stage) -> None:
    executor, inbox = site.start(1)
    stuck = site.set("stuck")
    executor.execute(site.rescale(0, 2), inbox.post)
    until(lambda: site.alive() == {"2-0", "2-1"})
    inbox.stays_empty()
    stuck.unlink()
    inbox.wait(started("a", 2))


def test_a_stop_while_all_are_replaced_is_no_success(site: Stage) -> None:
    """The old ones have left with code 0, and the new ones, told to stop, end in the
    same way.
    """
    executor, inbox = site.start(1)
    site.set("stuck")
    executor.execute(site.rescale(0, 1), inbox.post)
    until(lambda: site.alive() == {"2-0"})
    executor.execute(Stop(job="a", generation=2), inbox.post)
    inbox.wait(exited("a", 2, Outcome.STOPPED))
    assert site.lives() == ["+1-0", "+2-0", "-1-0 0", "-2-0 0"]


def test_a_stop_before_a_change_begins_ends_those_who_wait_last(site: Stage) -> None:
    executor, inbox = site.start(1)
    site.set("slow")
    executor.execute(site.rescale(2), inbox.post)
    until(lambda: "+2-1" in site.lives())
    executor.execute(Stop(job="a", generation=2), inbox.post)
    until(lambda: "-1-0 75" in site.lives())
    (site.folder / "slow").unlink()
    inbox.wait(exited("a", 2, Outcome.STOPPED))
    assert site.lives()[-1] == "-2-1 0"


def test_a_new_executor_takes_a_change_over(site: Stage) -> None:
    executor, before = site.start(1)
    site.set("slow")
    executor.execute(site.rescale(2), before.post)
    until(lambda: "+2-1" in site.lives())
    executor = site.executor()
    inbox = Inbox()
    assert executor.adopted() == [("a", 2)]
    executor.execute(site.rescale(2), inbox.post)
    inbox.stays_empty()
    (site.folder / "slow").unlink()
    inbox.wait(started("a", 2))
    site.close()
    executor = site.executor()
    executor.execute(site.rescale(1, generation=3), inbox.post)
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
    executor.execute(site.rescale(2), inbox.post)
    until(heard.exists)
    site.close()
    heard.unlink()
    os.kill(pid, signal.SIGCONT)
    site.executor().execute(site.rescale(2), inbox.post)
    inbox.wait(started("a", 2))
    assert site.alive() == {"1-0", "2-1"}


def test_logs_follow_the_rank(site: Stage) -> None:
    executor, inbox = site.start(1, 1)
    executor.execute(site.rescale(0, 1), inbox.post)
    inbox.wait(started("a", 2))
    for name in ("1-0", "1-1"):
        site.job().log(name).write_text(f"of {name}\n")
    assert executor.log("a", 0, 0).data == b"of 1-0\n"
    assert executor.log("a", 0, 7).data == b"of 1-1\n"
    assert executor.log("a", 0, 14) == LogPart(data=b"", next_offset=14)
