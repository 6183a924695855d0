"""Nodes of Ray's autoscaler as bought nodes: what is asked of Ray, which nodes are
offered, and that draining ones are noticed.
"""

import socket
import time
from collections.abc import Iterator

import pytest

from coadapt.executors import prepare_executor
from coadapt.executors.ray.autoscaling import REPEAT_S, Bundle, RayOrders
from coadapt.executors.ray.cluster import RayCluster
from coadapt.model import InputError, Node
from coadapt.model.offer import Offer

OFFER = Offer(id="firm", num_gpus=4, price_per_h=2.0, most=3)


class FakeRay:
    """Answers as the client of Ray does; each node has its daemon at `port`."""

    address = "fake"
    own_address = "127.0.0.1"

    def __init__(self, port: int) -> None:
        self._port = port
        self.nodes: dict[str, int] = {}
        self.draining: dict[str, int] = {}
        self.asked: list[list[Bundle]] = []

    def ask(self, what: str, **given: object) -> dict[str, object]:
        if what == "want":
            self.asked.append(given["bundles"])  # type: ignore[arg-type]
            return {}
        found = [
            {
                "NodeID": name,
                "NodeName": name,
                "NodeManagerHostname": "here",
                "NodeManagerAddress": "127.0.0.1",
                "NodeManagerPort": self._port,
                "Resources": {"GPU": float(gpus)},
            }
            for name, gpus in self.nodes.items()
        ]
        return {"nodes": found, "draining": self.draining, "why_unknown": "a test"}


@pytest.fixture
def ray() -> Iterator[FakeRay]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield FakeRay(server.getsockname()[1])


@pytest.fixture
def cluster(ray: FakeRay) -> RayCluster:
    cluster = RayCluster(ray, None)  # type: ignore[arg-type]
    cluster.sell(OFFER)
    return cluster


def test_ray_is_asked_for_all_nodes_that_are_bought(
    ray: FakeRay, cluster: RayCluster
) -> None:
    orders = RayOrders(cluster, cluster.want)
    orders.look(0.0)
    assert ray.asked == []  # what an earlier scheduler asked for stays
    cluster.buy({"firm": 2})
    orders.look(1.0)
    orders.look(2.0)
    assert ray.asked == [[{"GPU": 4.0}] * 2]
    orders.look(1.0 + REPEAT_S)
    assert len(ray.asked) == 2  # a head that starts again has forgotten it
    cluster.buy({"firm": 9})
    orders.look(2.0 + REPEAT_S)
    assert ray.asked[-1] == [{"GPU": 4.0}] * 3
    cluster.buy({"firm": 0})
    orders.look(3.0 + REPEAT_S)
    orders.look(9.0 * REPEAT_S)
    assert ray.asked[3:] == [[]]


def test_a_node_that_is_given_back_is_not_offered_and_comes_back_first(
    ray: FakeRay, cluster: RayCluster
) -> None:
    ray.nodes = {"a": 4, "b": 4, "other": 2}
    cluster.buy({"firm": 2})
    cluster.look()
    assert cluster.nodes == (
        Node(id="a", num_gpus=4, offer="firm"),
        Node(id="b", num_gpus=4, offer="firm"),
        Node(id="other", num_gpus=2),
    )
    cluster.give_back("a")
    cluster.give_back("a")
    assert cluster.num_wanted == 1
    cluster.look()
    assert [node.id for node in cluster.nodes] == ["b", "other"]
    assert cluster.why_gone["a"] == "was given back"
    cluster.buy({"firm": 2})
    cluster.look()
    assert [node.id for node in cluster.nodes] == ["a", "b", "other"]
    cluster.give_back("a")
    del ray.nodes["a"]
    cluster.look()
    ray.nodes["a"] = 4  # another one, of the same name
    cluster.look()
    assert [node.id for node in cluster.nodes] == ["a", "b", "other"]


def test_a_draining_node_is_noticed_and_offered_until_it_is_gone(
    ray: FakeRay, cluster: RayCluster
) -> None:
    ray.nodes = {"a": 4, "b": 4, "other": 2}
    gone_at = time.time() + 60.0
    ray.draining = {"a": int(gone_at * 1000), "b": 0, "other": 0}
    cluster.look()
    # Ray names no deadline for b: it may go now. `other` was not bought.
    assert cluster.noticed.keys() == {"a", "b"}
    assert cluster.noticed["a"] == pytest.approx(gone_at, abs=0.01)
    first = dict(cluster.noticed)
    cluster.look()
    assert cluster.noticed == first
    assert [node.id for node in cluster.nodes] == ["a", "b"]
    del ray.nodes["a"]
    cluster.look()
    assert [node.id for node in cluster.nodes] == ["b"]


@pytest.mark.parametrize(
    ("options", "offers", "line"),
    [
        ({}, (OFFER, OFFER), "one offer: a request to Ray's autoscaler names"),
        ({"autoscale": 4}, (OFFER,), "0 beside --offer, whose `most` says"),
        ({"slots": 2}, (OFFER,), "--offer firm, GPUs: got 4; allowed: 2, the CPU"),
    ],
)
def test_what_ray_cannot_bring_is_refused(
    options: dict[str, int], offers: tuple[Offer, ...], line: str
) -> None:
    pytest.importorskip("ray")
    with pytest.raises(InputError, match=line):
        prepare_executor("ray", options, offers)
