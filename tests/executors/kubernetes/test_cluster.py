"""The nodes that a cluster tells of: those that there are, their GPUs, where one was
that just left.
"""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("kubernetes")

from coadapt.core.commands import Stop
from coadapt.core.events import NodeJoined, NodeLost, Outcome
from coadapt.executors.kubernetes.api import JsonObject
from coadapt.executors.kubernetes.cluster import KubernetesCluster
from coadapt.executors.kubernetes.holders import keeper_pod
from coadapt.executors.kubernetes.node_market import NodeMarket
from coadapt.executors.kubernetes.offers import shelf_of
from coadapt.model import Node
from coadapt.model.offer import Offer
from tests.contracts.executor_contract import Inbox, exited, started, until
from tests.executors.kubernetes.holder_pods import HolderPods
from tests.executors.kubernetes.site import KubernetesSite
from tests.executors.kubernetes.test_kubernetes import SLEEPER, order
from tests.executors.kubernetes.test_node_market import labelled
from tests.executors.kubernetes.test_pods import node, settings

CORDONED = {"unschedulable": True}


class NodeServer:
    """Tells of each change as it is put in; then nothing, until it is closed."""

    def __init__(self, *changes: tuple[str, JsonObject]) -> None:
        self._changes = changes

    def get(self, _path: str, **_query: object) -> JsonObject:
        return {"items": []}

    def watch(self, _path: str) -> Iterator[tuple[str, JsonObject]]:
        yield from self._changes


def test_a_node_that_just_left_has_the_address_that_it_had(tmp_path: Path) -> None:
    there = json.loads(json.dumps(node()))
    server = NodeServer(("ADDED", there), ("LISTED", {}), ("DELETED", there))
    cluster = KubernetesCluster(
        server, settings(), tmp_path / "s", slots=None, node_labels={}
    )  # type: ignore[arg-type]  # a server
    until(lambda: cluster.nodes == ())
    cluster.close()
    assert cluster.address("n") == "192.0.2.7"
    assert cluster.address("never-seen") == "never-seen"


def test_a_node_of_an_offer_is_for_jobs_while_it_is_kept_and_ready(
    tmp_path: Path,
) -> None:
    server = HolderPods()
    offer = Offer(id="firm", num_gpus=4, price_per_h=2.0, most=2)
    shelf = shelf_of([offer], [], slots=None, resource="nvidia.com/gpu")
    keeper = keeper_pod(settings(), "firm", 0, "kept")
    server.ask("POST", "", keeper)
    server.nodes = {name: labelled(name, "firm") for name in ("kept", "not-kept")} | {
        "own": node("own")
    }
    cluster = KubernetesCluster(
        server,  # type: ignore[arg-type]  # pods and nodes in memory
        settings(),
        tmp_path / "s",
        slots=None,
        node_labels={},
        market=NodeMarket(server, settings(), shelf),  # type: ignore[arg-type]  # likewise
    )
    own = Node(id="own", num_gpus=4, gpu_type="a100-sxm4")
    kept = Node(id="kept", num_gpus=4, offer="firm")
    assert cluster.nodes == (kept, own)
    for name in ("kept", "own"):
        spec = server.nodes[name]["spec"]
        server.nodes[name] = {**server.nodes[name], "spec": {**spec, **CORDONED}}
    until(lambda: cluster.nodes == (kept,))
    until(lambda: list(cluster.noticed) == ["kept"])
    server.nodes["kept"] = labelled("kept", "firm", ready="False")
    until(lambda: cluster.nodes == ())
    server.nodes["kept"] = labelled("kept", "firm")
    until(lambda: cluster.nodes == (kept,))
    cluster.give_back("kept")
    until(lambda: cluster.nodes == ())
    assert cluster.why_gone == {"kept": "was given back"}
    until(lambda: server.names == [])
    cluster.close()


def told(site: KubernetesSite) -> list[tuple[str, int]]:
    """Return what was told of the second node since this was last asked: its GPUs, 0
    once it left.
    """
    events = [
        event for event in site.node_events if isinstance(event, (NodeJoined, NodeLost))
    ]
    site.node_events.clear()
    joined = ((event, getattr(event, "node", "")) for event in events)
    found = [
        (node, 0) if isinstance(node, str) else (node.id, node.num_gpus)
        for _, node in joined
    ]
    return [each for each in found if each[0] == "node-1"]


@pytest.mark.processes
@pytest.mark.slow
def test_pods_keep_gpus_that_their_node_gives_to_nobody_else_any_more(
    site: KubernetesSite,
) -> None:
    """Its device plugin finds a GPU unhealthy, or is renewed: what runs there runs
    on.
    """
    site.slots = None
    site.kubelet.give("node-1", 1)
    executor = site.executor()
    inbox = Inbox()
    assert told(site) == [("node-1", 1)]  # of the two that it has
    site.kubelet.give("node-1", 2)
    until(lambda: told(site) == [("node-1", 2)])
    executor.execute(order(site, SLEEPER, 0, 2), inbox.post)
    inbox.wait(started("a", 1))
    until(lambda: all((site.folder / f"up-{rank}").exists() for rank in (0, 1)))
    for pod in site.pods():
        gpu = {"nvidia.com/gpu": "1"}
        assert pod["spec"]["containers"][0]["resources"] == {
            "limits": gpu,
            "requests": gpu,
        }
    for left in (1, 0):
        site.kubelet.give("node-1", left)
        inbox.stays_empty(1.0)
        assert told(site) == []
    executor = site.executor()  # as after a restart of the scheduler
    assert told(site) == [("node-1", 2)]
    executor.execute(order(site, SLEEPER, 0, 2), inbox.post)
    inbox.wait(started("a", 1))
    executor.execute(Stop(job="a", generation=1), inbox.post)
    inbox.wait(exited("a", 1, Outcome.STOPPED))
    until(lambda: told(site) == [("node-1", 0)])
    site.kubelet.give("node-1", 2)
    until(lambda: told(site) == [("node-1", 2)])
