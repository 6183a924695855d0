"""A real `coadapt up` buys nodes of a real Ray autoscaler: they come for jobs, go when
they are idle, and a drained one is emptied in place.
"""

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest

from coadapt.cli.client import JsonObject
from tests.cli.live_cluster import LiveCluster, until
from tests.executors.ray_autoscaler import autoscaling_cluster

pytest.importorskip("ray")

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.engine("ray")]

TRAINER = f"exec {sys.executable} {Path(__file__).parent / 'fake_trainer.py'}"
NODES = 2
NOTICE_S = 30
# A drained node is empty before its notice is over.
DRAINED_S = NOTICE_S - 5.0
# Ray's own autoscaler looks each second, and ends a node after 3 s without work.
PATIENCE_S = 90.0


class RayMarket(LiveCluster):
    """A scheduler whose nodes are all bought from Ray, with one CPU slot each."""

    def __init__(self, folder: Path, address: str, policy: str, sizer: str) -> None:
        self.address = address
        engine = (
            "--executor",
            "ray",
            f"--executor-option=address={address}",
            "--executor-option=slots=1",
            f"--offer=firm=1x36,most={NODES},provision=1",
            f"--sizer={sizer}",
            "--sizing=1",
        )
        super().__init__(folder, policy=policy, engine=engine)

    @property
    def node_ids(self) -> list[str]:
        nodes = cast("list[JsonObject]", self.client.get("/v1/nodes")["nodes"])
        return sorted(str(node["id"]) for node in nodes)

    def on(self, job: str) -> list[str]:
        slots = cast("list[tuple[str, int]]", self.job(job)["allocation"])
        return [node for node, _ in slots]

    def drain(self, node: str) -> None:
        """Let Ray drain a node, as before a spot node is taken away."""
        given = (self.address, node.rpartition("-")[2], str(NOTICE_S))
        subprocess.run([sys.executable, "-c", DRAIN, *given], check=True)

    def lives(self) -> list[str]:
        """Return the first and the last words of the replicas of `fake_trainer.py`."""
        path = self.folder / "lives"
        return sorted(path.read_text().splitlines()) if path.exists() else []


# A node's name ends with the end of Ray's id.
DRAIN = """
import subprocess, sys, ray
address, tail, seconds = sys.argv[1:]
ray.init(address, log_to_driver=False)
[node] = [each["NodeID"] for each in ray.nodes() if each["NodeID"].endswith(tail)]
options = ["--node-id", node, "--deadline-remaining-seconds", seconds]
options += ["--reason", "DRAIN_NODE_REASON_PREEMPTION", "--reason-message", "a test"]
command = [sys.executable, "-m", "ray.scripts.scripts", "drain-node"]
subprocess.run([*command, "--address", address, *options], check=True)
"""


@pytest.fixture
def market(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[RayMarket]:
    with autoscaling_cluster(tmp_path, slots_per_node=1, max_nodes=NODES) as address:
        market = RayMarket(tmp_path, address, *request.param)
        try:
            market.up(slots=None)
            yield market
        finally:
            market.close()


@pytest.mark.parametrize("market", [("fifo", "demand(idle_s=1)")], indirect=True)
def test_nodes_come_for_jobs_and_go_when_idle(market: RayMarket) -> None:
    assert market.node_ids == []
    began = time.monotonic()
    gate = market.folder / "gate"
    stays = market.submit("stays", TARGET=1, GATE=str(gate))
    market.wait_for(stays, "running", within_s=PATIENCE_S)
    grew_s = time.monotonic() - began
    ends = market.submit("ends", TARGET=1)
    market.wait_for(ends, "succeeded", within_s=PATIENCE_S)
    ended = time.monotonic()
    until(
        lambda: len(market.node_ids) == 1,
        "the idle node is given back",
        within_s=PATIENCE_S,
    )
    shrank_s = time.monotonic() - ended
    time.sleep(10.0)  # three times what Ray lets a node be idle
    assert market.on(stays) == market.node_ids
    gate.touch()
    market.wait_for(stays, "succeeded", within_s=PATIENCE_S)
    assert market.job(stays)["num_failures"] == 0
    until(lambda: market.node_ids == [], "no node is left", within_s=PATIENCE_S)
    print(f"first job ran after {grew_s:.1f} s, idle node gone after {shrank_s:.1f} s")


@pytest.mark.parametrize(
    "market", [("max-min", f"fixed(nodes={NODES})")], indirect=True
)
def test_a_drained_node_is_emptied_in_place(market: RayMarket) -> None:
    until(lambda: len(market.node_ids) == NODES, "both are there", within_s=PATIENCE_S)
    job = market.submit("elastic", TRAINER, "1..2")
    until(
        lambda: market.lives() == ["+1-0", "+1-1"],
        "both replicas live",
        within_s=PATIENCE_S,
    )
    stays, goes = market.on(job)
    began = time.monotonic()
    market.drain(goes)
    until(lambda: market.on(job) == [stays], "the node is empty", within_s=DRAINED_S)
    until(lambda: "-1-1 0" in market.lives(), "its replica left", within_s=DRAINED_S)
    emptied_s = time.monotonic() - began
    assert not any(line.startswith("-1-0 ") for line in market.lives())
    assert market.job(job)["num_failures"] == 0
    (market.folder / "finish").touch()
    market.wait_for(job, "succeeded")
    print(f"empty {emptied_s:.1f} s after the order to drain")
