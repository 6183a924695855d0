"""The local executor keeps the executor contract, and what is particular to processes
on one machine.
"""

import os
import signal
import stat
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from coadapt.core.commands import Start, Stop
from coadapt.core.events import Event, OfferChanged, Outcome, ReplicasExited
from coadapt.executors.host import Host
from coadapt.executors.machine import Machine
from coadapt.executors.processes import launcher
from coadapt.executors.processes.cluster import LOOPBACK
from coadapt.executors.processes.executor import ProcessExecutor, ProcessOptions
from coadapt.executors.processes.job_processes import kill_marked, marked_processes
from coadapt.executors.processes.live_generation import Launch, LiveGeneration
from coadapt.executors.processes.records.generation_dir import (
    ExitRecord,
    JobDir,
    ReplicaOrder,
)
from coadapt.executors.slot_nodes import SlotNodes
from coadapt.model import Allocation, BatchConfig, Node
from coadapt.model.offer import Offer
from tests.contracts.executor_contract import (
    NODES,
    SLOTS_PER_NODE,
    ExecutorContract,
    Inbox,
    Site,
    exited,
    spec,
    started,
    until,
)
from tests.executors.processes.test_rank_map import launch_order
from tests.marked import kill_of, pids_of

pytestmark = pytest.mark.processes


class LocalSite:
    """Two nodes that are this machine, and executors over one state directory."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.state_dir = folder / "state"
        self.state_dir.mkdir()
        self.options = ProcessOptions()
        self.now: Callable[[], float] = time.time
        self.node_events: list[Event] = []
        self._running: list[tuple[ProcessExecutor, threading.Thread]] = []

    def executor(
        self,
        stop_grace_s: float = 10.0,
        devices: dict[str, tuple[str, ...]] | None = None,
        options: ProcessOptions | None = None,
    ) -> ProcessExecutor:
        self.close()
        options = options or self.options
        nodes = tuple(
            Node(id=name, num_gpus=SLOTS_PER_NODE, gpu_type="cpu") for name in NODES
        )
        host = Host(
            state_dir=self.state_dir,
            url="http://here",
            job_token=lambda job: f"token-of-{job}",
            stop_grace_s=stop_grace_s,
            now=self.now,
        )
        executor = ProcessExecutor(
            Machine(nodes=nodes, devices=devices or {}), host, options
        )
        executor.announce({node.id: node for node in nodes}, self.node_events.append)
        thread = threading.Thread(target=executor.run, args=(self.node_events.append,))
        thread.start()
        self._running.append((executor, thread))
        return executor

    def close(self) -> None:
        while self._running:
            executor, thread = self._running.pop()
            executor.close()
            thread.join()

    def job(self, name: str = "a") -> JobDir:
        return JobDir(self.state_dir / "jobs" / name)

    def pids(self, kind: str, job: str = "a") -> list[int]:
        """Return the job's processes that are its launcher, or all others."""
        return pids_of(self.job(job).checkpoints, launcher=kind == "launcher")

    def kill_replicas(self, job: str) -> None:
        kill_of(self.job(job).checkpoints, launcher=False)


def test_an_offer_that_changes_is_told_once(tmp_path: Path) -> None:
    offer = Offer(id="firm", num_gpus=1, price_per_h=2.0, most=3, gpu_type="cpu")
    nodes = SlotNodes(Machine(nodes=()), [offer], tmp_path)
    executor = ProcessExecutor(nodes, Host(state_dir=tmp_path, now=lambda: 7.0))
    posted: list[Event] = []
    executor.announce({}, posted.append)
    assert posted == []
    nodes.offers = (replace(offer, most=0),)
    executor.announce({}, posted.append)
    executor.announce({}, posted.append)
    assert posted == [OfferChanged(at=7.0, offer=replace(offer, most=0))]


@pytest.fixture
def site(tmp_path: Path) -> Iterator[LocalSite]:
    site = LocalSite(tmp_path)
    yield site
    site.close()
    for job in (site.state_dir / "jobs").glob("*"):
        kill_marked(JobDir(job).checkpoints)


class TestLocalContract(ExecutorContract):
    pass


def test_a_start_is_told_of_what_ended_between_two_looks(
    site: LocalSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    exit_record = LiveGeneration.exit_record

    def late(running: LiveGeneration, launch: Launch) -> ExitRecord | None:
        assert running.process is not None
        running.process.wait()
        return exit_record(running, launch)

    monkeypatch.setattr(LiveGeneration, "exit_record", late)
    inbox = Inbox()
    one = Allocation(slots=((NODES[0], 1),))
    command = Start(
        job="a", generation=1, spec=spec("true", site.folder), allocation=one
    )
    site.executor().execute(command, inbox.post)
    inbox.wait(started("a", 1), exited("a", 1, Outcome.SUCCEEDED))


class TestLocalContractOverTheNetwork(ExecutorContract):
    """The same where replicas hear of rescales from their launcher's server, by no
    file.
    """

    @pytest.fixture
    def site(self, site: LocalSite) -> LocalSite:
        site.options = ProcessOptions(control_host=LOOPBACK)
        return site


def order(site: Site, run: str, count: int = 1, generation: int = 1) -> Start:
    allocation = Allocation(slots=((NODES[0], count),))
    return Start(
        job="a",
        generation=generation,
        spec=spec(run, site.folder),
        allocation=allocation,
    )


def end_of(inbox: Inbox) -> ReplicasExited:
    event = inbox.one()
    while not isinstance(event, ReplicasExited):
        event = inbox.one()
    return event


def test_a_killed_launcher_takes_its_replicas_with_it(site: LocalSite) -> None:
    inbox = Inbox()
    site.executor().execute(
        order(site, "while true; do sleep 0.05; done", 2), inbox.post
    )
    inbox.wait(started("a", 1))
    os.kill(site.pids("launcher")[0], signal.SIGKILL)
    end = end_of(inbox)
    assert end.outcome is Outcome.LOST
    assert "its launcher died" in end.detail
    assert marked_processes(site.job().checkpoints) == []


def test_a_launcher_killed_while_no_scheduler_watched_is_found_out(
    site: LocalSite,
) -> None:
    before = Inbox()
    inbox = Inbox()
    start = order(site, "while true; do sleep 0.05; done", 2)
    site.executor().execute(start, before.post)
    before.wait(started("a", 1))
    site.close()
    os.kill(site.pids("launcher")[0], signal.SIGKILL)
    assert len(site.pids("replica")) >= 2
    site.executor().execute(start, inbox.post)
    assert end_of(inbox).outcome is Outcome.LOST
    assert marked_processes(site.job().checkpoints) == []


def test_an_order_whose_launcher_never_came_up_is_lost(site: LocalSite) -> None:
    before = Inbox()
    inbox = Inbox()
    start = order(site, "true")
    site.executor().execute(start, before.post)
    before.wait(started("a", 1), exited("a", 1, Outcome.SUCCEEDED))
    (site.job().generation(1).path / "exit.json").unlink()
    site.executor().execute(start, inbox.post)
    assert end_of(inbox).outcome is Outcome.LOST


def test_a_launcher_that_comes_too_late_starts_nothing(tmp_path: Path) -> None:
    """Its generation was written off meanwhile, or another launcher of the job
    lives.
    """
    directory = JobDir(tmp_path / "jobs" / "a").generation(1)
    directory.make()
    replica = ReplicaOrder(log=str(directory.job.logs / "1-0.log"), envs={})
    directory.write_order(
        launch_order(1, run="touch ran", workdir=str(tmp_path), replicas=(replica,))
    )
    with directory.job.lock() as held:
        assert held
        launcher.main(str(directory.path), lock_wait_s=0.1)
        assert directory.exit_record() is None
    directory.write_exit_record(ExitRecord(outcome=Outcome.LOST, detail="written off"))
    launcher.main(str(directory.path), lock_wait_s=0.1)
    assert directory.exit_record() == ExitRecord(
        outcome=Outcome.LOST, detail="written off"
    )
    assert not (tmp_path / "ran").exists()


def test_replicas_that_ignore_the_stop_are_killed_after_the_grace(
    site: LocalSite,
) -> None:
    inbox = Inbox()
    executor = site.executor(stop_grace_s=0.5)
    executor.execute(
        order(site, "trap '' TERM; touch up; while true; do sleep 0.05; done"),
        inbox.post,
    )
    inbox.wait(started("a", 1))
    until((site.folder / "up").exists)
    executor.execute(Stop(job="a", generation=1), inbox.post)
    inbox.wait(exited("a", 1, Outcome.STOPPED))
    assert marked_processes(site.job().checkpoints) == []


def test_a_shell_that_dies_at_once_leaves_its_script_time_to_save(
    site: LocalSite,
) -> None:
    """The shell of a compound command ends at SIGTERM; the script below it is still
    writing.
    """
    script = site.folder / "train.sh"
    script.write_text(
        "trap 'sleep 0.5; touch saved; exit 75' TERM; touch up; while true; do sleep "
        "0.05; done"
    )
    inbox = Inbox()
    executor = site.executor()
    executor.execute(order(site, f"true; bash {script}; true"), inbox.post)
    inbox.wait(started("a", 1))
    until((site.folder / "up").exists)
    executor.execute(Stop(job="a", generation=1), inbox.post)
    inbox.wait(exited("a", 1, Outcome.STOPPED))
    assert (site.folder / "saved").exists()


def test_a_stop_reaches_the_script_but_not_the_helpers_below_it(
    site: LocalSite,
) -> None:
    """As with a data loader: its workers must live until the training process has saved
    its state.
    """
    script = site.folder / "train.py"
    script.write_text(
        "import pathlib, signal, subprocess, sys, time\n"
        "helper = subprocess.Popen(['sleep', '60'])\n"
        "def save(*_):\n"
        "    time.sleep(0.2)\n"
        "    pathlib.Path('saved').write_text(str(helper.poll()))\n"
        "    sys.exit(75)\n"
        "signal.signal(signal.SIGTERM, save)\n"
        "pathlib.Path('up').touch()\n"
        "signal.pause()\n"
    )
    inbox = Inbox()
    executor = site.executor()
    executor.execute(order(site, "true; python train.py; true"), inbox.post)
    inbox.wait(started("a", 1))
    until((site.folder / "up").exists)
    executor.execute(Stop(job="a", generation=1), inbox.post)
    inbox.wait(exited("a", 1, Outcome.STOPPED))
    assert (site.folder / "saved").read_text() == "None"


def test_what_a_replica_leaves_behind_ends_with_it(site: LocalSite) -> None:
    inbox = Inbox()
    run = "setsid sleep 600 & echo done"
    site.executor().execute(order(site, run), inbox.post)
    inbox.wait(started("a", 1), exited("a", 1, Outcome.SUCCEEDED))
    assert marked_processes(site.job().checkpoints) == []


ESCAPE = """\
import os, sys
if os.fork():
    while not os.path.exists("escaped"):
        pass
    sys.exit(0)
os.setsid()
if os.fork():
    os._exit(0)
with open("escaped.new", "w") as file:
    file.write(str(os.getpid()))
os.rename("escaped.new", "escaped")
os.execve("/bin/sleep", ["sleep", "779"], {})
"""


def test_what_leaves_its_session_and_clears_its_environment_ends_too(
    site: LocalSite,
) -> None:
    (site.folder / "escape.py").write_text(ESCAPE)
    inbox = Inbox()
    site.executor().execute(order(site, f"exec {sys.executable} escape.py"), inbox.post)
    inbox.wait(started("a", 1), exited("a", 1, Outcome.SUCCEEDED))
    pid = int((site.folder / "escaped").read_text())
    assert not Path(f"/proc/{pid}").exists()


def test_orphans_that_end_by_themselves_are_reaped(site: LocalSite) -> None:
    inbox = Inbox()
    executor = site.executor()
    run = "for i in $(seq 1 20); do (sleep 0.01 &) ; done; touch up; sleep 600"
    executor.execute(order(site, run), inbox.post)
    inbox.wait(started("a", 1))
    until((site.folder / "up").exists)
    (pid,) = site.pids("launcher")

    def zombies() -> int:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        return sum(
            "\nState:\tZ" in Path(f"/proc/{child}/status").read_text()
            for child in children
        )

    until(lambda: zombies() == 0)
    executor.execute(Stop(job="a", generation=1), inbox.post)
    inbox.wait(exited("a", 1, Outcome.STOPPED))


@pytest.mark.parametrize(
    ("run", "outcome"),
    [
        ("kill -9 $$", Outcome.LOST),
        ("bash -c 'kill -9 $$'; exit $?", Outcome.LOST),
        ("kill -TERM $$", Outcome.LOST),
        ("kill -SEGV $$", Outcome.FAILED),
        ("exit 75", Outcome.LOST),
        ("exit 1", Outcome.FAILED),
        ("no-such-command", Outcome.FAILED),
    ],
)
def test_exit_codes_tell_the_outcome(
    site: LocalSite, run: str, outcome: Outcome
) -> None:
    inbox = Inbox()
    site.executor().execute(order(site, run), inbox.post)
    inbox.wait(started("a", 1), exited("a", 1, outcome))


def test_a_missing_workdir_is_named(site: LocalSite) -> None:
    inbox = Inbox()
    start = Start(
        job="a",
        generation=1,
        spec=spec("true", site.folder / "gone"),
        allocation=Allocation(slots=((NODES[0], 1),)),
    )
    site.executor().execute(start, inbox.post)
    end = end_of(inbox)
    assert (end.outcome, end.detail) == (
        Outcome.FAILED,
        f"workdir {site.folder / 'gone'} is not a directory",
    )


def test_replicas_find_the_whole_contract_in_their_environment(site: LocalSite) -> None:
    inbox = Inbox()
    executor = site.executor(devices={NODES[0]: ("GPU-x", "GPU-y")})
    start = order(site, "env > env-$RANK", 2)
    batch = BatchConfig(total=64, atomic=32)
    executor.execute(
        Start(
            job="a",
            generation=1,
            spec=start.spec,
            allocation=start.allocation,
            batch=batch,
        ),
        inbox.post,
    )
    inbox.wait(started("a", 1), exited("a", 1, Outcome.SUCCEEDED))
    lines = (site.folder / "env-1").read_text().splitlines()
    found = dict(line.split("=", 1) for line in lines if "=" in line)
    names = (
        "COADAPT_URL",
        "COADAPT_TOKEN",
        "COADAPT_BATCH",
        "CUDA_VISIBLE_DEVICES",
        "LOCAL_RANK",
        "OMP_NUM_THREADS",
    )
    assert {name: found.get(name) for name in names} == {
        "COADAPT_URL": "http://here",
        "COADAPT_TOKEN": "token-of-a",
        "COADAPT_BATCH": '{"total": 64, "atomic": 32, "accumulation": 0}',
        "CUDA_VISIBLE_DEVICES": "GPU-x,GPU-y",
        "LOCAL_RANK": "1",
        "OMP_NUM_THREADS": "1",
    }
    assert found["COADAPT_CHECKPOINT_DIR"] == str(site.job().checkpoints)


def test_a_job_sees_nothing_of_the_scheduler_s_environment_that_is_not_named(
    site: LocalSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("MY_SECRET", "HF_TOKEN", "COADAPT_STATE"):
        monkeypatch.setenv(name, f"the {name}")
    monkeypatch.setenv("LC_TIME", "C")
    inbox = Inbox()
    executor = site.executor(options=ProcessOptions(pass_env=frozenset({"HF_TOKEN"})))
    executor.execute(order(site, "env > env-0"), inbox.post)
    inbox.wait(started("a", 1), exited("a", 1, Outcome.SUCCEEDED))
    found = dict(
        line.split("=", 1) for line in (site.folder / "env-0").read_text().splitlines()
    )
    asked = ("MY_SECRET", "COADAPT_STATE", "HF_TOKEN", "LC_TIME")
    assert [found.get(name) for name in asked] == [None, None, "the HF_TOKEN", "C"]


def test_nothing_of_a_job_is_readable_by_others_and_no_file_holds_the_token(
    site: LocalSite,
) -> None:
    inbox = Inbox()
    site.executor().execute(order(site, "true"), inbox.post)
    inbox.wait(started("a", 1), exited("a", 1, Outcome.SUCCEEDED))
    for path in (site.state_dir / "jobs").rglob("*"):
        if path.is_dir():
            assert stat.S_IMODE(path.stat().st_mode) == 0o700, path
        else:
            assert b"token-of" not in path.read_bytes(), path


def test_logs_of_all_generations_are_read_in_order(site: LocalSite) -> None:
    inbox = Inbox()
    executor = site.executor()
    for generation in (1, 2, 10):
        executor.execute(
            order(site, "echo hello $COADAPT_GENERATION", generation=generation),
            inbox.post,
        )
        inbox.wait(started("a", generation), exited("a", generation, Outcome.SUCCEEDED))
    parts = []
    offset = 0
    while (part := executor.log("a", 0, offset)).data:
        parts.append(part.data)
        offset = part.next_offset
    assert parts == [b"hello 1\n", b"hello 2\n", b"hello 10\n"]
    assert executor.log("a", 0, 12).data == b"o 2\n"
    assert executor.log("a", 1, 0).data == b""
    assert executor.log("nobody", 0, 0).data == b""
