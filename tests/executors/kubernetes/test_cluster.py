"""The nodes that a cluster tells of: those that there are, and where one was that just left."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("kubernetes")

from coadapt.executors.kubernetes.api import JsonObject
from coadapt.executors.kubernetes.cluster import KubernetesCluster
from tests.contracts.executor_contract import until
from tests.executors.kubernetes.test_pods import node, settings


class NodeServer:
    """Tells of each change as it is put in; then nothing, until it is closed."""

    def __init__(self, *changes: tuple[str, JsonObject]) -> None:
        self._changes = changes

    def watch(self, _path: str) -> Iterator[tuple[str, JsonObject]]:
        yield from self._changes


def test_a_node_that_just_left_has_the_address_that_it_had(tmp_path: Path) -> None:
    there = json.loads(json.dumps(node()))
    server = NodeServer(("ADDED", there), ("LISTED", {}), ("DELETED", there))
    cluster = KubernetesCluster(server, settings(), tmp_path / "s", slots=None, node_labels={})  # type: ignore[arg-type]  # a server
    until(lambda: cluster.nodes == ())
    cluster.close()
    assert cluster.address("n") == "192.0.2.7"
    assert cluster.address("never-seen") == "never-seen"
