"""A real `coadapt up` buys nodes of CPU slots: they come by demand, go when they are
idle, and are taken away with a notice and without one.
"""

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest

from coadapt.cli.client import JsonObject, RefusedError
from tests.cli.live_cluster import COUNTER, LiveCluster, call_cli, run_cli, until

pytestmark = pytest.mark.processes

PROVISION_S = 1.0
# Long enough for the stop of a replica on a busy machine.
NOTICE_S = 20.0
TRAINER = (
    f"exec {sys.executable} {Path(__file__).parents[2] / 'executors/fake_trainer.py'}"
)


class Market(LiveCluster):
    """A scheduler whose nodes are all bought: two at most, of one slot each."""

    def __init__(self, folder: Path, policy: str, sizer: str) -> None:
        offer = f"firm=1x36,most=2,provision={PROVISION_S}"
        engine = ("--offer", offer, "--sizer", sizer, "--sizing", "1")
        super().__init__(folder, policy=policy, engine=engine)

    @property
    def buying(self) -> JsonObject:
        return cast(JsonObject, self.client.get("/v1/nodes")["buying"])

    @property
    def offer(self) -> JsonObject:
        return cast("list[JsonObject]", self.buying["offers"])[0]

    @property
    def node_ids(self) -> list[str]:
        nodes = cast("list[JsonObject]", self.client.get("/v1/nodes")["nodes"])
        return [str(node["id"]) for node in nodes]

    def on(self, job: str) -> list[str]:
        slots = cast("list[tuple[str, int]]", self.job(job)["allocation"])
        return [node for node, _ in slots]

    def recorded(self) -> set[str]:
        """Return the nodes that the executor knows, ordered ones included."""
        return set(json.loads((self.state / "bought-nodes.json").read_text())["nodes"])

    def take(self, node: str, in_s: float) -> None:
        self.client.post(f"/v1/nodes/{node}/notice", {"in_s": in_s})


@pytest.fixture(params=[("fifo", "demand(idle_s=1)")])
def market(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Market]:
    market = Market(tmp_path, *request.param)
    market.up(slots=None)
    yield market
    market.close()


def test_nodes_come_by_demand_and_go_when_idle(market: Market) -> None:
    gate = market.folder / "gate"
    ordered_at = time.time()
    stays = market.submit("stays", TARGET=1, GATE=str(gate))
    market.wait_for(stays, "running")
    assert time.time() - ordered_at >= PROVISION_S
    ends = market.submit("ends", TARGET=1)
    market.wait_for(ends, "succeeded")
    # The node of the job that runs is not taken, whichever came first.
    until(lambda: len(market.node_ids) == 1, "the idle node is given back")
    time.sleep(3.0)
    assert market.on(stays) == market.node_ids
    assert "jobs request 1 GPUs" in str(market.buying["reason"])
    shown = run_cli("describe", stays, state=market.state).stdout
    assert "firm: 1 node (1 node: jobs request 1 GPUs" in " ".join(shown.split())
    gate.touch()
    market.wait_for(stays, "succeeded")
    assert len(market.trace(stays)) == 2
    until(lambda: not market.recorded(), "no node is paid for without a job")
    (cost,) = cast("list[JsonObject]", market.buying["costs"])
    assert cost["node_hours"] == pytest.approx(cast(float, cost["cost"]) / 36)
    assert "nodes of firm" in run_cli("usage", state=market.state).stdout
    shown = run_cli("nodes", "ls", state=market.state).stdout
    assert "firm: 0 nodes; 36.00 per node and hour, at most 2" in shown
    assert "sizer: 0 nodes: jobs request 0 GPUs" in shown


@pytest.mark.parametrize("market", [("max-min", "fixed(nodes=2)")], indirect=True)
def test_a_notice_drains_in_place_and_the_job_trains_on(market: Market) -> None:
    until(lambda: len(market.node_ids) == 2, "both nodes are there")
    job = market.submit("elastic", TRAINER, "1..2")
    until(lambda: lives(market) == ["+1-0", "+1-1"], "both replicas live")
    stays, goes = market.on(job)
    noticed_at = time.time()
    market.take(goes, NOTICE_S)
    until(lambda: market.on(job) == [stays], "the node is empty")
    until(lambda: "-1-1 0" in lives(market), "its replica has left")
    assert time.time() - noticed_at < NOTICE_S
    assert goes in market.node_ids
    assert market.offer["num_leaving"] == 1
    until(lambda: goes not in market.node_ids, "the node is gone")
    assert time.time() - noticed_at >= NOTICE_S
    # Another node is bought, and the job grows onto it, in place again.
    until(lambda: len(market.on(job)) == 2, "it has two replicas again")
    until(lambda: any(line.startswith("=1-0 3 ") for line in lives(market)), "it grew")
    assert not any(line.startswith("-1-0 ") for line in lives(market))
    assert market.job(job)["num_failures"] == 0
    (market.folder / "finish").touch()
    market.wait_for(job, "succeeded")


def lives(market: Market) -> list[str]:
    path = market.folder / "lives"
    return sorted(path.read_text().splitlines()) if path.exists() else []


def test_a_node_lost_without_notice_restarts_its_job_on_another(
    market: Market,
) -> None:
    job = market.submit("counts", COUNTER, TARGET=1, GATE=str(market.folder / "gate"))
    market.wait_for(job, "running")
    until(lambda: bool(market.trace(job)), "it counts")
    (node,) = market.on(job)
    market.take(node, 0.0)
    until(lambda: node not in market.node_ids, "the node is gone")
    assert node not in market.recorded()
    (market.folder / "gate").touch()
    market.wait_for(job, "succeeded")
    starts = [line for line in market.trace(job) if " starts at " in line]
    assert len(starts) == 2
    assert market.offer["num_losses"] == 1
    with pytest.raises(RefusedError, match="no node 'gone' is bought"):
        market.take("gone", 5.0)


@pytest.mark.parametrize(
    ("given", "line"),
    [
        (
            ("--offer", "s=1x1,hazard=0.1"),
            "--offer: got 'hazard=0.1'; allowed: no hazard: it is a key of simulations",
        ),
        (
            ("--offer", "s=1x1:h100"),
            "--offer s, GPU type: got 'h100'; allowed: cpu: the nodes of the executor",
        ),
        (("--sizer", "demand"), "--sizer: got 'demand'; allowed: only together with"),
        (
            ("--offer", "s=1x1", "--sizer", "demands"),
            "sizer: got 'demands'; allowed: fixed, demand",
        ),
        (
            ("--offer", "s=1x1", "--executor", "tests.executors.test_registry:theirs"),
            "allowed: an engine that buys nodes (local, ray, slurm, kubernetes), not",
        ),
    ],
)
def test_what_cannot_be_bought_is_refused_in_a_line(
    tmp_path: Path, given: tuple[str, ...], line: str
) -> None:
    shown = call_cli("up", *given, state=tmp_path / "state")
    assert shown.returncode == 2
    assert line in shown.stderr
