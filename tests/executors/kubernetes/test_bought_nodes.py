"""A real `coadapt up` buys nodes of a cluster autoscaler: they come by demand, go when
they are idle, and are drained in place after a notice, also while the scheduler dies.
"""

import random
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest

pytest.importorskip("kubernetes")

from coadapt.cli.client import JsonObject
from coadapt.executors.kubernetes.holders import LABEL_HOLDER
from tests.cli.live_cluster import call_cli, until
from tests.executors.kubernetes.autoscaler import TO_BE_DELETED
from tests.executors.kubernetes.buying_market import PRICE, BuyingCluster
from tests.executors.kubernetes.control_plane import ControlPlane
from tests.executors.kubernetes.site import PODS

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.timeout(900)]

TRAINER = f"exec {sys.executable} {Path(__file__).parents[1] / 'fake_trainer.py'}"
KILLS = 3
# The scheduler as it is, but that two seconds without a node are long.
IMPATIENT = """
from coadapt.executors.kubernetes import node_market
node_market.ARRIVE_S = 2.0
from coadapt.cli.main import main
main()
"""


class Market(BuyingCluster):
    @property
    def lives(self) -> list[str]:
        path = self.folder / "lives"
        return sorted(path.read_text().splitlines()) if path.exists() else []


@pytest.fixture(params=[("fifo", "demand(idle_s=1)", 2)])
def market(
    tmp_path: Path, control_plane: object, request: pytest.FixtureRequest
) -> Iterator[Market]:
    policy, sizer, most = request.param
    plane = cast(ControlPlane, control_plane)
    market = Market(tmp_path, plane, policy=policy, sizer=sizer, most=most)
    try:
        market.up(slots=1)
        yield market
    finally:
        market.leave()


def test_nodes_come_by_demand_and_go_when_idle(market: Market) -> None:
    gate = market.folder / "gate"
    stays = market.submit("stays", TARGET=1, GATE=str(gate))
    market.wait_for(stays, "running")
    ends = market.submit("ends", TARGET=1)
    market.wait_for(ends, "succeeded")
    until(lambda: len(market.autoscaler.removed) == 1, "the idle node is removed")
    assert market.node_ids == market.on(stays)
    assert market.holders == ["firm-0-keeper"]
    # A job that runs keeps its node, whatever the autoscaler would like.
    time.sleep(2.0)
    assert len(market.autoscaler.removed) == 1
    gate.touch()
    market.wait_for(stays, "succeeded")
    assert len(market.trace(stays)) == 2
    until(lambda: len(market.autoscaler.removed) == 2, "no node is left")
    assert market.node_ids == []
    assert market.holders == []
    assert len(market.autoscaler.added) == 2
    (cost,) = cast("list[JsonObject]", market.buying["costs"])
    assert cost["node_hours"] == pytest.approx(cast(float, cost["cost"]) / PRICE)
    lived = [
        market.autoscaler.removed[name] - market.autoscaler.added[name]
        for name in market.autoscaler.added
    ]
    # Paid for from when a node can run jobs until it is given back.
    assert 0.0 < cast(float, cost["node_hours"]) * 3600 < sum(lived)


@pytest.mark.parametrize("market", [("max-min", "fixed(nodes=2)", 2)], indirect=True)
def test_a_notice_drains_in_place_and_the_job_trains_on(market: Market) -> None:
    until(lambda: len(market.node_ids) == 2, "both nodes are there")
    job = market.submit("elastic", TRAINER, "1..2")
    until(lambda: market.lives == ["+1-0", "+1-1"], "both replicas live")
    stays, goes = market.on(job)
    market.autoscaler.taint(goes, TO_BE_DELETED)
    until(lambda: market.on(job) == [stays], "the node is empty")
    until(lambda: "-1-1 0" in market.lives, "its replica has left")
    until(lambda: goes in market.autoscaler.removed, "the node is removed")
    # Another node is bought, and the job grows onto it, in place again.
    until(lambda: len(market.on(job)) == 2, "it has two replicas again")
    until(lambda: any(line.startswith("=1-0 3 ") for line in market.lives), "it grew")
    assert not any(line.startswith("-1-0 ") for line in market.lives)
    assert market.job(job)["num_failures"] == 0
    assert len(market.autoscaler.added) == 3
    (market.folder / "finish").touch()
    market.wait_for(job, "succeeded")


@pytest.mark.parametrize("market", [("fifo", "demand(idle_s=1)", 3)], indirect=True)
def test_kills_amid_orders_order_nothing_twice_and_lose_no_node(
    market: Market,
) -> None:
    """While orders are pending, arrive, become kept nodes, and are given back."""
    draw = random.Random(0)
    gate = market.folder / "gate"
    jobs = [
        market.submit(f"job-{number}", TARGET=1, GATE=str(gate)) for number in range(3)
    ]
    for _ in range(KILLS):
        time.sleep(draw.uniform(0.0, 2.0))
        market.kill(signal.SIGKILL)
        market.up(slots=1)
    for job in jobs:
        market.wait_for(job, "running")
    kept = ["firm-0-keeper", "firm-1-keeper", "firm-2-keeper"]
    until(lambda: market.holders == kept, "each node has one keeper")
    assert len(market.autoscaler.added) == 3
    assert not market.autoscaler.removed
    gate.touch()
    for job in jobs:
        market.wait_for(job, "succeeded")
        assert len(market.trace(job)) == 2
    market.kill(signal.SIGKILL)
    market.up(slots=1)
    until(lambda: len(market.autoscaler.removed) == 3, "no node is left")
    assert market.holders == []
    assert len(market.autoscaler.added) == 3


def test_an_offer_without_stock_is_given_up_and_tried_again(market: Market) -> None:
    market.kill()
    market.command = (sys.executable, "-c", IMPATIENT)
    market.up(slots=1)
    market.autoscaler.has_stock = False
    job = market.submit("job", TARGET=1)
    until(lambda: market.holders == ["firm-0-order"], "a node is ordered")
    until(lambda: market.offer["most"] == 0, "no node can be had")
    until(lambda: market.holders == [], "the order is cancelled")
    until(lambda: market.offer["most"] == 2, "it is tried again")
    market.autoscaler.has_stock = True
    market.wait_for(job, "succeeded")


def test_an_offer_with_nodes_cannot_be_left_out(market: Market) -> None:
    job = market.submit("job", TARGET=1, GATE=str(market.folder / "gate"))
    market.wait_for(job, "running")
    market.kill(signal.SIGKILL)
    told = call_cli("up", *market.site.engine, "--slots", "1", state=market.state)
    assert told.returncode == 2
    assert "the offer 'firm' as well, since nodes of it are left" in told.stderr


def test_a_job_keeps_its_node_when_the_keeper_disappears_without_a_scheduler(
    market: Market,
) -> None:
    job = market.submit("job", TARGET=1, GATE=str(market.folder / "gate"))
    market.wait_for(job, "running")
    until(lambda: bool(market.trace(job)), "it counts")
    market.kill()
    [keeper] = market.site.api.get(PODS, labelSelector=LABEL_HOLDER)["items"]
    market.site.api.delete(f"{PODS}/{keeper['metadata']['name']}", 0)
    market.up(slots=1)
    until(lambda: market.holders == ["firm-0-keeper"], "its node is kept again")
    (market.folder / "gate").touch()
    market.wait_for(job, "succeeded")
    assert len(market.trace(job)) == 2
    assert len(market.autoscaler.added) == 1


def test_a_job_trains_on_where_its_node_becomes_an_offers(market: Market) -> None:
    market.kill()
    market.site.kubelet.join("own", 1, {"coadapt.dev/offer": "firm"})
    with_offer = market.engine
    market.engine = market.site.engine
    market.up(slots=1)
    job = market.submit("job", TARGET=1, GATE=str(market.folder / "gate"))
    market.wait_for(job, "running")
    until(lambda: bool(market.trace(job)), "it counts")
    market.kill()
    market.engine = with_offer
    market.up(slots=1)
    until(lambda: market.offer["num_live"] == 1, "its node is a bought one")
    assert market.holders == ["firm-0-keeper"]
    (market.folder / "gate").touch()
    market.wait_for(job, "succeeded")
    assert len(market.trace(job)) == 2
    assert not market.autoscaler.added
