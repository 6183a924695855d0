"""The Slurm executor keeps the executor contract on a real Slurm of two nodes, which
are this machine.
"""

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from coadapt.core.commands import BuyNodes, GiveBack, Start, Stop
from coadapt.core.events import Event, NodeJoined, NodeLost, NodeNoticed, Outcome
from coadapt.executors import prepare_executor
from coadapt.executors.host import Host
from coadapt.executors.options import OptionText
from coadapt.executors.processes.executor import ProcessExecutor
from coadapt.executors.processes.job_processes import kill_marked, marked_processes
from coadapt.executors.processes.records.generation_dir import JobDir
from coadapt.model import Allocation, InputError, Node
from coadapt.model.offer import Offer
from coadapt.runtime.ports import LiveExecutor
from tests.contracts.executor_contract import (
    NODES,
    SLOTS_PER_NODE,
    ExecutorContract,
    Inbox,
    exited,
    spec,
    started,
    until,
)
from tests.executors.over_nodes import changes_in_place_over_nodes
from tests.executors.over_objects import goes_on_from_an_object_store, only_with_engines
from tests.executors.slurm.daemons import HOW_TO_GET, SlurmCluster, missing
from tests.executors.slurm.processes import command, kill_node, processes
from tests.marked import kill_of
from tests.object_server import object_server

pytestmark = [
    pytest.mark.processes,
    pytest.mark.slow,
    pytest.mark.engine("slurm"),
    pytest.mark.skipif(bool(missing()), reason=HOW_TO_GET),
]


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmCluster]:
    # A folder in which no Unix socket could be: where tests keep their files is not
    # ours to say.
    folder = tmp_path_factory.mktemp("slurm") / ("long" * 27)
    cluster = SlurmCluster(folder, NODES, gpus=SLOTS_PER_NODE)
    cluster.start()
    yield cluster
    cluster.stop()


@pytest.fixture(scope="module")
def allocation(slurm: SlurmCluster) -> str:
    """One for all tests that need no pool of their own."""
    held = slurm.call(
        "sbatch",
        "--parsable",
        "--nodes=2",
        "--gpus-per-node=2",
        "--output=/dev/null",
        "--wrap",
        "sleep infinity",
    )
    assert held.returncode == 0, held
    return held.stdout.strip()


class SlurmSite:
    def __init__(self, folder: Path, options: dict[str, OptionText]) -> None:
        self.folder = folder
        self.state_dir = folder / "state"
        self.state_dir.mkdir()
        self.options: dict[str, OptionText] = {"look_s": 0.5, **options}
        self.offers: tuple[Offer, ...] = ()
        self.node_events: list[Event] = []
        self.wanted = 0
        self.stop_grace_s = 10.0
        self.awaited = len(NODES)
        self._running: list[tuple[LiveExecutor, threading.Thread]] = []

    def executor(self) -> LiveExecutor:
        self.close()
        connect = prepare_executor("slurm", self.options, self.offers)
        host = Host(
            state_dir=self.state_dir,
            job_token=lambda job: f"token-of-{job}",
            stop_grace_s=self.stop_grace_s,
            wanted_slots=lambda: self.wanted,
        )
        executor = connect(host)
        executor.announce({}, self.node_events.append)
        thread = threading.Thread(target=executor.run, args=(self.node_events.append,))
        thread.start()
        self._running.append((executor, thread))
        until(lambda: len(self.present()) >= self.awaited)
        return executor

    def present(self) -> dict[str, Node]:
        """Return the nodes as the core knows them now."""
        nodes: dict[str, Node] = {}
        for event in list(self.node_events):
            if isinstance(event, NodeJoined):
                nodes[event.node.id] = event.node
            elif isinstance(event, NodeLost):
                nodes.pop(event.node, None)
        return nodes

    def close(self) -> None:
        while self._running:
            executor, thread = self._running.pop()
            executor.close()
            thread.join()

    def kill_replicas(self, job: str) -> None:
        kill_of(JobDir.of(self.state_dir, job).checkpoints, launcher=False)


@pytest.fixture
def site(
    tmp_path: Path,
    slurm: SlurmCluster,
    allocation: str,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[SlurmSite]:
    """Two nodes of two CPU slots each."""
    monkeypatch.setenv("SLURM_CONF", str(slurm.conf))
    site = SlurmSite(tmp_path, {"allocation": allocation, "slots": SLOTS_PER_NODE})
    yield site
    site.close()
    for job in (site.state_dir / "jobs").glob("*"):
        kill_marked(JobDir(job).checkpoints)


class TestSlurmContract(ExecutorContract):
    pass


def order(site: SlurmSite, run: str, node: str = NODES[0], count: int = 1) -> Start:
    allocation = Allocation(slots=((node, count),))
    return Start(
        job="a", generation=1, spec=spec(run, site.folder), allocation=allocation
    )


def test_replicas_join_and_leave_in_place_on_another_node(
    site: SlurmSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    changes_in_place_over_nodes(site, monkeypatch)


@only_with_engines
def test_a_job_over_two_nodes_goes_on_from_an_object_store(site: SlurmSite) -> None:
    with object_server() as bucket:
        goes_on_from_an_object_store(site, bucket)


def test_a_replica_sees_the_gpus_of_its_slots_and_not_slurms_names(
    site: SlurmSite,
) -> None:
    del site.options["slots"]
    executor = site.executor()
    inbox = Inbox()
    assert {(node.num_gpus, node.gpu_type) for node in site.present().values()} == {
        (2, "a100")
    }
    run = (
        "echo $CUDA_VISIBLE_DEVICES $LOCAL_RANK ${SLURM_NTASKS:-no} "
        "${SLURMD_NODENAME} > gpu-$RANK"
    )
    executor.execute(order(site, run, NODES[1], 2), inbox.post)
    inbox.wait(started("a", 1), exited("a", 1, Outcome.SUCCEEDED))
    seen = [(site.folder / f"gpu-{rank}").read_text().split() for rank in range(2)]
    assert seen == [["0,1", "0", "no", NODES[1]], ["0,1", "1", "no", NODES[1]]]


def test_no_token_is_on_a_command_line_or_in_slurms_books(
    site: SlurmSite, slurm: SlurmCluster
) -> None:
    executor = site.executor()
    inbox = Inbox()
    executor.execute(order(site, "env > envs; touch up; sleep 600"), inbox.post)
    inbox.wait(started("a", 1))
    until((site.folder / "up").exists)
    names = ("COADAPT_TOKEN", "COADAPT_CONTROL_TOKEN")
    envs = dict(
        line.partition("=")[::2]
        for line in (site.folder / "envs").read_text().splitlines()
    )
    tokens = [envs[name] for name in names]
    assert all(tokens), envs
    commands = [
        slurm.call("scontrol", "-d", "show", what).stdout for what in ("job", "step")
    ]
    for process in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            commands.append(process.read_bytes().decode(errors="replace"))
    assert any("coadapt.executors.slurm.runner" in text for text in commands)
    assert [text for text in commands if any(token in text for token in tokens)] == []
    executor.execute(Stop(job="a", generation=1), inbox.post)
    inbox.wait(exited("a", 1, Outcome.STOPPED))


def test_what_a_step_left_behind_is_ended_with_it(site: SlurmSite) -> None:
    executor = site.executor()
    inbox = Inbox()
    lasting = f"611.{os.getpid()}"  # by which nobody else's is found
    executor.execute(
        order(site, f"setsid env -i sleep {lasting} & touch up; sleep 600"), inbox.post
    )
    inbox.wait(started("a", 1))
    until((site.folder / "up").exists)
    for pid in marked_processes(JobDir.of(site.state_dir, "a").checkpoints):
        if "coadapt.executors.slurm.proxy" in command(pid):
            os.kill(pid, signal.SIGKILL)
    inbox.wait(exited("a", 1, Outcome.LOST))
    until(lambda: processes("sleep", lasting) == [])


def test_a_node_from_which_nobody_can_be_reached_says_so(
    site: SlurmSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The step's own environment comes last, so that the line leads nowhere."""
    executor = site.executor()
    inbox = Inbox()
    monkeypatch.setenv("PYTHONPATH", str(_where_the_line_is_cut(site.folder)))
    executor.execute(order(site, "true"), inbox.post)
    inbox.wait(started("a", 1), exited("a", 1, Outcome.LOST))
    said = b"cannot be reached from this node at 127.0.0.1:1: "
    assert said in executor.log("a", 0, 0).data


def _where_the_line_is_cut(folder: Path) -> Path:
    """Return a folder from which Python gets a start that cuts the line of a runner."""
    (folder / "start").mkdir()
    cut = (
        "import os\nif 'SLURM_STEP_ID' in os.environ: "
        "os.environ['COADAPT_SLURM_LINE'] = '127.0.0.1:1 x'\n"
    )
    (folder / "start" / "sitecustomize.py").write_text(cut)
    return folder / "start"


def test_a_node_whose_daemon_died_with_its_steps_is_lost_and_comes_back(
    site: SlurmSite, slurm: SlurmCluster
) -> None:
    executor = site.executor()
    inbox = Inbox()
    executor.execute(order(site, "touch up; sleep 600", NODES[1]), inbox.post)
    inbox.wait(started("a", 1))
    until((site.folder / "up").exists)
    kill_node(
        slurm, NODES[1], marked_processes(JobDir.of(site.state_dir, "a").checkpoints)
    )
    inbox.wait(exited("a", 1, Outcome.LOST))
    until(lambda: set(site.present()) == {NODES[0]})
    slurm.start_node(NODES[1])
    until(lambda: set(site.present()) == set(NODES))


def test_a_controller_that_comes_back_has_lost_no_node(
    site: SlurmSite, slurm: SlurmCluster
) -> None:
    executor = site.executor()
    inbox = Inbox()
    executor.execute(
        order(site, "touch up; until [ -e finish ]; do sleep 0.1; done"), inbox.post
    )
    inbox.wait(started("a", 1))
    until((site.folder / "up").exists)
    slurm.kill("slurmctld")
    slurm.start_controller()
    (site.folder / "finish").touch()
    inbox.wait(exited("a", 1, Outcome.SUCCEEDED))
    assert [event for event in site.node_events if isinstance(event, NodeLost)] == []


@pytest.fixture
def pooled(
    tmp_path: Path, slurm: SlurmCluster, monkeypatch: pytest.MonkeyPatch
) -> Iterator[SlurmSite]:
    """A pool of its own of one node with one GPU, and no other job beside it."""
    monkeypatch.setenv("SLURM_CONF", str(slurm.conf))
    slurm.clear()
    site = SlurmSite(
        tmp_path,
        {"gpus_per_node": 1, "time_limit": "10", "cpus_per_gpu": 2, "max_nodes": 2},
    )
    site.awaited = 1
    yield site
    site.close()
    for job in (site.state_dir / "jobs").glob("*"):
        kill_marked(JobDir(job).checkpoints)
    slurm.clear()


def pool_jobs(site: SlurmSite, slurm: SlurmCluster) -> list[str]:
    """Return the ids of the pool's allocations that have not ended."""
    name = (site.state_dir / "slurm" / "pool").read_text()
    return slurm.call(
        "squeue", "-h", f"--name={name}", "-t", "PD,R", "-o", "%i"
    ).stdout.split()


def test_a_pool_is_asked_for_and_found_again(
    pooled: SlurmSite, slurm: SlurmCluster
) -> None:
    executor = pooled.executor()
    inbox = Inbox()
    ((name, node),) = pooled.present().items()
    assert [node.num_gpus for node in executor.to_come] == [1]
    assert (node.num_gpus, node.gpu_type) == (1, "a100")
    before = pool_jobs(pooled, slurm)
    assert len(before) == 1
    start = order(pooled, "touch up; until [ -e finish ]; do sleep 0.1; done", name)
    executor.execute(start, inbox.post)
    inbox.wait(started("a", 1))
    until((pooled.folder / "up").exists)
    pooled.node_events.clear()
    executor = pooled.executor()
    assert pool_jobs(pooled, slurm) == before
    executor.execute(start, inbox.post)
    inbox.wait(started("a", 1))
    (pooled.folder / "finish").touch()
    inbox.wait(exited("a", 1, Outcome.SUCCEEDED))


def test_a_pool_grows_while_jobs_wait_and_gives_back_what_is_idle(
    pooled: SlurmSite, slurm: SlurmCluster
) -> None:
    pooled.options |= {"idle_s": 0.5}
    executor = pooled.executor()
    inbox = Inbox()
    (first,) = pooled.present()
    executor.execute(
        order(pooled, "until [ -e finish ]; do sleep 0.1; done", first), inbox.post
    )
    inbox.wait(started("a", 1))
    pooled.wanted = 1
    until(lambda: len(pooled.present()) == 2)
    pooled.wanted = 0
    until(lambda: set(pooled.present()) == {first})
    until(lambda: len(pool_jobs(pooled, slurm)) == 1)
    (pooled.folder / "finish").touch()
    inbox.wait(exited("a", 1, Outcome.SUCCEEDED))


def test_a_node_leaves_before_its_allocation_ends_and_another_is_asked_for(
    pooled: SlurmSite, slurm: SlurmCluster
) -> None:
    """With 55 s to save, and 30 more, a minute that is left is too little."""
    pooled.stop_grace_s = 55.0
    pooled.executor()
    (old,) = pool_jobs(pooled, slurm)
    slurm.call("scontrol", "update", f"JobId={old}", "TimeLimit=1")
    until(lambda: any(isinstance(event, NodeLost) for event in pooled.node_events))
    # It stands empty, so it goes back at once, and another one takes its place.
    until(lambda: (now := pool_jobs(pooled, slurm)) != [] and old not in now)
    until(lambda: len(pooled.present()) == 1)


def test_preemption_is_a_node_that_leaves(
    pooled: SlurmSite, slurm: SlurmCluster
) -> None:
    executor = pooled.executor()
    inbox = Inbox()
    (name,) = pooled.present()
    run = (
        "trap 'echo saved > saved; exit 75' TERM; touch up; while true; do sleep "
        "0.05; done"
    )
    executor.execute(order(pooled, run, name), inbox.post)
    inbox.wait(started("a", 1))
    until((pooled.folder / "up").exists)
    urgent = (
        "-p",
        "urgent",
        "--exclusive",
        "--nodes=2",
        "--time=1",
        "--output=/dev/null",
    )
    assert slurm.call("sbatch", *urgent, "--wrap", "sleep 600").returncode == 0
    until(lambda: any(isinstance(event, NodeLost) for event in pooled.node_events))
    inbox.wait(exited("a", 1, Outcome.LOST))
    assert (pooled.folder / "saved").exists()


def test_bought_nodes_come_as_ordered_drain_in_place_and_go_back(
    pooled: SlurmSite, slurm: SlurmCluster
) -> None:
    del pooled.options["max_nodes"]
    offer = Offer(id="firm", num_gpus=1, gpu_type="a100", price_per_h=1.0, most=2)
    pooled.offers = (offer,)
    pooled.awaited = 0
    pooled.wanted = 8  # the sizer decides, and nothing else
    executor = bought(pooled)
    executor.buy(BuyNodes(number=1, nodes={"firm": 2}), pooled.node_events.append)
    until(lambda: len(pooled.present()) == 2)
    assert {node.offer for node in pooled.present().values()} == {"firm"}
    first, second = sorted(pooled.present())
    inbox = Inbox()
    start = order(pooled, "trap 'exit 75' TERM; while true; do sleep 0.05; done", first)
    executor.execute(start, inbox.post)
    inbox.wait(started("a", 1))
    for node in (first, second):  # the first one is busy, and stays
        executor.give_back(GiveBack(node=node), pooled.node_events.append)
    until(lambda: set(pooled.present()) == {first})
    until(lambda: len(pool_jobs(pooled, slurm)) == 1)
    held = pool_jobs(pooled, slurm)
    # After a restart the order is repeated; nothing is bought twice.
    pooled.awaited = 1
    executor = bought(pooled)
    executor.buy(BuyNodes(number=1, nodes={"firm": 1}), pooled.node_events.append)
    executor.execute(start, inbox.post)
    inbox.wait(started("a", 1))
    time.sleep(2.0)
    assert pool_jobs(pooled, slurm) == held
    pooled.node_events.clear()
    drained = ("scontrol", "update", f"NodeName={first}")
    slurm.call(*drained, "State=DRAIN", "Reason=a test")
    try:
        until(lambda: noticed(pooled) == {first})
        time.sleep(2.0)
        assert not any(isinstance(event, NodeLost) for event in pooled.node_events)
        executor.execute(Stop(job="a", generation=1), inbox.post)
        inbox.wait(exited("a", 1, Outcome.STOPPED))
        until(lambda: any(isinstance(event, NodeLost) for event in pooled.node_events))
        until(lambda: pool_jobs(pooled, slurm) == [])
    finally:
        slurm.call(*drained, "State=RESUME")


def bought(site: SlurmSite) -> ProcessExecutor:
    executor = site.executor()
    assert isinstance(executor, ProcessExecutor)
    return executor


def noticed(site: SlurmSite) -> set[str]:
    events = list(site.node_events)
    return {event.node for event in events if isinstance(event, NodeNoticed)}


def test_what_slurm_does_not_grant_is_said_in_its_words(pooled: SlurmSite) -> None:
    pooled.options["partition"] = "nowhere"
    with pytest.raises(
        InputError,
        match=r"an allocation that Slurm grants; Slurm says: .*invalid partition",
    ):
        pooled.executor()


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({}, "option gpus_per_node: got None; allowed: how many GPUs"),
        ({"slots": 2, "gpus_per_node": 2}, "either slots or gpus_per_node"),
        ({"slots": 0}, r"1\.\.1024"),
        (
            {"slots": 2, "nodes": 2, "max_nodes": 1},
            r"max_nodes: got 1; allowed: 2\.\.100000",
        ),
        ({"slots": 2, "sbatch": "-C a100"}, "options such as --constraint=a100"),
        ({"slots": 2, "allocation": "x"}, "the id of a running job"),
    ],
)
def test_options_are_checked(options: dict[str, OptionText], problem: str) -> None:
    with pytest.raises(InputError, match=problem):
        prepare_executor("slurm", options)


def test_what_is_missing_is_named(
    pooled: SlurmSite, slurm: SlurmCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    slurm.kill("munged")
    try:
        with pytest.raises(InputError, match="munged does not run here"):
            prepare_executor("slurm", pooled.options)
    finally:
        slurm.start_munged()
    with monkeypatch.context() as elsewhere:
        elsewhere.delenv("SLURM_CONF")
        with pytest.raises(
            InputError, match=r"a configuration: SLURM_CONF names slurm\.conf"
        ):
            prepare_executor("slurm", pooled.options)
        elsewhere.setenv("PATH", "/nowhere")
        with pytest.raises(
            InputError,
            match=r"missing: sbatch, srun, .*apt-get install slurm-client munge",
        ):
            prepare_executor("slurm", pooled.options)
