"""The Ray executor keeps the executor contract on a real cluster of two nodes, which
are this machine.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from coadapt.core.commands import Start, Stop
from coadapt.core.events import Event, NodeJoined, NodeLost, Outcome
from coadapt.executors import prepare_executor
from coadapt.executors.host import Host
from coadapt.executors.processes.job_processes import kill_marked
from coadapt.executors.processes.records.generation_dir import JobDir
from coadapt.model import Allocation, InputError
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
from tests.executors.ray_nodes import start_ray
from tests.marked import kill_of
from tests.object_server import object_server
from tests.ports import free_ports

os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
ray = pytest.importorskip("ray")

# Of a node that is killed, from the kill until the core knows.
NOTICED_S = 15.0
ALL_SLOTS = len(NODES) * SLOTS_PER_NODE

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.engine("ray")]


@pytest.fixture(scope="module")
def cluster() -> Iterator[object]:
    """Two nodes of Ray, each with a node daemon and an object store of its own."""
    slots = {"num_cpus": SLOTS_PER_NODE, "num_gpus": SLOTS_PER_NODE}
    cluster, _ = start_ray(*({"node_name": name, **slots} for name in NODES))
    ray.init(cluster.address, log_to_driver=False)
    yield cluster
    ray.shutdown()
    cluster.shutdown()


class RaySite:
    def __init__(self, folder: Path, address: str) -> None:
        self.folder = folder
        self.state_dir = folder / "state"
        self.state_dir.mkdir()
        self.address = address
        self.options: dict[str, int] = {"slots": SLOTS_PER_NODE}
        self.node_events: list[Event] = []
        self.wanted = 0
        self._running: list[tuple[LiveExecutor, threading.Thread]] = []

    def executor(self) -> LiveExecutor:
        self.close()
        connect = prepare_executor("ray", {"address": self.address, **self.options})
        host = Host(
            state_dir=self.state_dir,
            stop_grace_s=10.0,
            wanted_slots=lambda: self.wanted,
        )
        executor = connect(host)
        executor.announce({}, self.node_events.append)
        thread = threading.Thread(target=executor.run, args=(self.node_events.append,))
        thread.start()
        self._running.append((executor, thread))
        return executor

    def close(self) -> None:
        while self._running:
            executor, thread = self._running.pop()
            executor.close()
            thread.join()

    def kill_replicas(self, job: str) -> None:
        kill_of(JobDir.of(self.state_dir, job).checkpoints, launcher=False)


@pytest.fixture
def site(tmp_path: Path, cluster: object) -> Iterator[RaySite]:
    site = RaySite(tmp_path, cluster.address)  # type: ignore[attr-defined]  # Ray's has one
    yield site
    site.close()
    for job in (site.state_dir / "jobs").glob("*"):
        kill_marked(JobDir(job).checkpoints)


class TestRayContract(ExecutorContract):
    pass


def order(
    site: RaySite,
    run: str,
    node: str,
    *,
    job: str = "a",
    share: Allocation | None = None,
) -> Start:
    allocation = share or Allocation(slots=((node, 1),))
    return Start(
        job=job, generation=1, spec=spec(run, site.folder), allocation=allocation
    )


def free_cpus() -> object:
    return ray.available_resources().get("CPU")


def test_nodes_of_ray_are_announced_under_their_names(site: RaySite) -> None:
    # What the test before held may not be back yet: to this scheduler it is held by
    # others.
    site.executor()
    until(lambda: free_cpus() == ALL_SLOTS)
    site.node_events.clear()
    site.executor()
    joined = [event.node for event in site.node_events if isinstance(event, NodeJoined)]
    assert [(node.id, node.num_gpus, node.gpu_type) for node in joined] == [
        (name, SLOTS_PER_NODE, "cpu") for name in NODES
    ]
    assert [event for event in site.node_events if isinstance(event, NodeLost)] == []


def test_ray_accounts_for_what_a_replica_holds(site: RaySite) -> None:
    executor = site.executor()
    inbox = Inbox()
    # What the test before held may not be back yet.
    until(lambda: free_cpus() == ALL_SLOTS)
    executor.execute(order(site, "touch up; sleep 60", NODES[1]), inbox.post)
    inbox.wait(started("a", 1))
    until((site.folder / "up").exists)
    until(lambda: free_cpus() == ALL_SLOTS - 1)
    executor.execute(Stop(job="a", generation=1), inbox.post)
    inbox.wait(exited("a", 1, Outcome.STOPPED))
    until(lambda: free_cpus() == ALL_SLOTS)


def test_a_restarted_scheduler_keeps_the_nodes_that_its_own_replicas_fill(
    site: RaySite,
) -> None:
    executor = site.executor()
    inbox = Inbox()
    until(lambda: free_cpus() == ALL_SLOTS)
    full = Allocation(slots=tuple((node, SLOTS_PER_NODE) for node in NODES))
    command = order(site, "echo >> up; sleep 60", NODES[0], share=full)
    executor.execute(command, inbox.post)
    inbox.wait(started("a", 1))
    until(lambda: not free_cpus())
    site.node_events.clear()
    executor = site.executor()
    executor.execute(command, inbox.post)
    inbox.wait(started("a", 1))
    executor.execute(Stop(job="a", generation=1), inbox.post)
    inbox.wait(exited("a", 1, Outcome.STOPPED))
    assert [event for event in site.node_events if isinstance(event, NodeLost)] == []
    joined = [event.node for event in site.node_events if isinstance(event, NodeJoined)]
    assert [node.num_gpus for node in joined] == [SLOTS_PER_NODE] * len(NODES)


def test_what_jobs_lack_is_asked_of_ray_until_they_have_it(site: RaySite) -> None:
    """Read where Ray keeps it for its autoscaler; what one does with it is in
    test_ray_autoscaling.py.
    """
    from ray.experimental.internal_kv import _internal_kv_get

    def asked() -> object:
        return json.loads(_internal_kv_get("autoscaler_resource_request") or "null")

    site.options |= {"autoscale": 2 * len(NODES) * SLOTS_PER_NODE}
    site.wanted = SLOTS_PER_NODE
    executor = site.executor()
    assert [node.num_gpus for node in executor.to_come] == [len(NODES) * SLOTS_PER_NODE]
    until(lambda: asked() == [{"CPU": SLOTS_PER_NODE}] * (len(NODES) + 1))
    site.wanted = 0
    until(lambda: asked() == [])


def test_a_replica_sees_the_gpu_that_ray_gave_it(site: RaySite) -> None:
    """The GPUs are Ray's word only: nothing here opens one."""
    site.options = {}
    executor = site.executor()
    inbox = Inbox()
    two = Allocation(slots=((NODES[0], 2),))
    run = "echo $CUDA_VISIBLE_DEVICES $LOCAL_RANK > gpu-$RANK; sleep 3"
    executor.execute(order(site, run, NODES[0], share=two), inbox.post)
    inbox.wait(started("a", 1), exited("a", 1, Outcome.SUCCEEDED))
    seen = [(site.folder / f"gpu-{rank}").read_text().split() for rank in range(2)]
    assert sorted(gpu for gpu, _ in seen) == ["0", "1"]
    assert [local_rank for _, local_rank in seen] == ["0", "0"]


def test_ray_brings_a_jobs_directory_and_setup_runs_there_once(site: RaySite) -> None:
    """The replicas are elsewhere than their files were, and find them."""
    site.options |= {"ship_workdir": True}
    code = site.folder / "code"
    code.mkdir()
    (code / "data.txt").write_text("the data")
    executor = site.executor()
    inbox = Inbox()
    given = spec(
        f"cat data.txt > {site.folder}/$RANK; pwd >> {site.folder}/$RANK; cat made "
        f">> there",
        code,
    )
    assert given.launch is not None
    launch = replace(
        given.launch, setup=f"echo set up; pwd >> {site.folder}/setup; echo x >> made"
    )
    command = order(site, "true", NODES[0], share=Allocation(slots=((NODES[0], 2),)))
    executor.execute(replace(command, spec=replace(given, launch=launch)), inbox.post)
    inbox.wait(started("a", 1), exited("a", 1, Outcome.SUCCEEDED))
    texts = [(site.folder / str(rank)).read_text() for rank in range(2)]
    assert texts[0] == texts[1]
    assert texts[0].startswith("the data")
    there = texts[0].removeprefix("the data").strip()
    assert there != str(code)
    # On the scheduler's machine, as everywhere, and once on the node of both.
    assert (site.folder / "setup").read_text().splitlines() == [str(code), there]
    assert not (code / "there").exists()


def test_a_node_that_dies_is_lost_with_what_ran_on_it(
    site: RaySite, cluster: object
) -> None:
    node = cluster.add_node(node_name="node-2", num_cpus=1)  # type: ignore[attr-defined]  # Ray's has one
    executor = site.executor()
    inbox = Inbox()
    assert "node-2" in [
        event.node.id for event in site.node_events if isinstance(event, NodeJoined)
    ]
    executor.execute(order(site, "touch up; sleep 600", "node-2"), inbox.post)
    inbox.wait(started("a", 1))
    until((site.folder / "up").exists)
    began = time.monotonic()
    cluster.remove_node(node, allow_graceful=False)  # type: ignore[attr-defined]
    end = inbox.one()
    assert (end.generation, end.outcome) == (1, Outcome.LOST)  # type: ignore[union-attr]
    until(
        lambda: any(
            isinstance(event, NodeLost) and event.node == "node-2"
            for event in site.node_events
        )
    )
    assert time.monotonic() - began < NOTICED_S


def test_an_address_without_a_cluster_is_named(tmp_path: Path) -> None:
    with pytest.raises(
        InputError,
        match=r"executor ray, option address: got '127\.0\.0\.1:1'; allowed: the "
        r"address",
    ):
        prepare_executor("ray", {"address": "127.0.0.1:1"})


def test_replicas_join_and_leave_in_place_on_another_node(
    site: RaySite, monkeypatch: pytest.MonkeyPatch
) -> None:
    changes_in_place_over_nodes(site, monkeypatch)


@only_with_engines
def test_a_job_over_two_nodes_goes_on_from_an_object_store(site: RaySite) -> None:
    with object_server() as bucket:
        goes_on_from_an_object_store(site, bucket)


def test_a_cluster_is_started_where_none_runs_and_joined_the_next_time() -> None:
    """In processes of their own, which do not find the other tests' clusters by looking
    at the machine's processes. Ray's sockets want a short path. A head that was killed
    has left its address behind.
    """
    code = (
        "import functools, ray, ray._private.services as services\n"
        "services.find_gcs_addresses = functools.cache(set)\n"
        "from coadapt.executors.ray.client_process import _connect\n"
        "_connect('start')\n"
        "print([node['Alive'] for node in ray.nodes()])"
    )
    found = []
    with tempfile.TemporaryDirectory(
        prefix="ray-", dir="/tmp", ignore_cleanup_errors=True
    ) as folder:
        envs = {key: value for key, value in os.environ.items() if key != "RAY_ADDRESS"}
        left_behind = Path(folder, "ray", "ray_current_cluster")
        left_behind.parent.mkdir()
        left_behind.write_text(f"127.0.0.1:{free_ports(1)[0]}")
        try:
            for _ in range(2):
                command = [sys.executable, "-c", code]
                done = subprocess.run(
                    command,
                    env={**envs, "RAY_TMPDIR": folder},
                    capture_output=True,
                    text=True,
                    check=True,
                )
                found.append(done.stdout.strip())
                [_] = Path(folder).glob("ray/session_2*")  # one cluster, not two
        finally:
            _kill_marked(f"RAY_TMPDIR={folder}")
    assert found == ["[True]"] * 2


def _kill_marked(variable: str) -> None:
    for entry in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):
            if variable.encode() in entry.read_bytes().split(b"\0"):
                os.kill(int(entry.parent.name), signal.SIGKILL)
