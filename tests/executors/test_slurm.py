"""The Slurm executor keeps the executor contract on a real Slurm of two nodes, which are this machine."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from coadapt.core.events import Event, NodeJoined
from coadapt.executors import prepare_executor
from coadapt.executors.host import Host
from coadapt.executors.options import OptionText
from coadapt.executors.processes.generation_dir import JobDir
from coadapt.executors.processes.job_processes import kill_marked
from coadapt.runtime.ports import LiveExecutor
from tests.contracts.executor_contract import NODES, SLOTS_PER_NODE, ExecutorContract, until
from tests.executors.slurm_cluster import HOW_TO_GET, SlurmCluster, missing
from tests.marked import kill_of

pytestmark = [
    pytest.mark.processes,
    pytest.mark.slow,
    pytest.mark.skipif(bool(missing()), reason=HOW_TO_GET),
]


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmCluster]:
    cluster = SlurmCluster(tmp_path_factory.mktemp("slurm"), NODES, gpus=SLOTS_PER_NODE)
    cluster.start()
    yield cluster
    cluster.stop()


@pytest.fixture(scope="module")
def allocation(slurm: SlurmCluster) -> str:
    """One for all tests that need no pool of their own."""
    held = slurm.call("sbatch", "--parsable", "--nodes=2", "--gpus-per-node=2", "--wrap", "sleep infinity")
    assert held.returncode == 0, held
    return held.stdout.strip()


class SlurmSite:
    def __init__(self, folder: Path, options: dict[str, OptionText]) -> None:
        self.folder = folder
        self.state_dir = folder / "state"
        self.state_dir.mkdir()
        self.options: dict[str, OptionText] = {"look_s": 0.5, **options}
        self.node_events: list[Event] = []
        self.wanted = 0
        self._running: list[tuple[LiveExecutor, threading.Thread]] = []

    def executor(self) -> LiveExecutor:
        self.close()
        connect = prepare_executor("slurm", self.options)
        host = Host(state_dir=self.state_dir, stop_grace_s=10.0, wanted_slots=lambda: self.wanted)
        executor = connect(host)
        executor.announce({}, self.node_events.append)
        thread = threading.Thread(target=executor.run, args=(self.node_events.append,))
        thread.start()
        self._running.append((executor, thread))
        until(lambda: len(self.joined()) >= len(NODES))
        return executor

    def joined(self) -> list[str]:
        return [event.node.id for event in self.node_events if isinstance(event, NodeJoined)]

    def close(self) -> None:
        while self._running:
            executor, thread = self._running.pop()
            executor.close()
            thread.join()

    def kill_replicas(self, job: str) -> None:
        kill_of(JobDir.of(self.state_dir, job).checkpoints, launcher=False)


@pytest.fixture
def site(
    tmp_path: Path, slurm: SlurmCluster, allocation: str, monkeypatch: pytest.MonkeyPatch
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
