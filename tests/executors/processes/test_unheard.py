"""A scheduler that other machines cannot reach says so, as soon as there is another
machine.
"""

import logging
from collections.abc import Mapping
from pathlib import Path

import pytest

from coadapt.core.events import Event
from coadapt.executors.host import Host
from coadapt.executors.processes.executor import ProcessExecutor, ProcessOptions
from coadapt.executors.processes.slots import Slot
from coadapt.model import Node, NodeId

OWN = "10.0.0.1"
FAR = "10.0.0.2"


class Machines:
    """Nodes of one slot each, by address."""

    devices: Mapping[NodeId, tuple[str, ...]] = {}

    def __init__(self, *addresses: str) -> None:
        self.nodes = tuple(
            Node(id=f"at-{address}", num_gpus=1) for address in addresses
        )

    def address(self, node: NodeId) -> str:
        return node.removeprefix("at-")

    def via(self, node: NodeId, slot: Slot) -> tuple[str, ...]:
        return ()


@pytest.mark.parametrize(
    ("url", "addresses", "told"),
    [
        ("http://127.0.0.1:8471", (OWN, FAR), True),
        ("http://127.0.0.1:8471", (OWN, "127.0.0.1"), False),
        ("http://10.0.0.1:8471", (OWN, FAR), False),
        ("http://0.0.0.0:8471", (OWN, FAR), False),
    ],
)
def test_replicas_that_would_not_be_heard_are_told_of(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    url: str,
    addresses: tuple[str, ...],
    told: bool,
) -> None:
    options = ProcessOptions(control_host=OWN)
    nodes = list[Event]()
    executor = ProcessExecutor(
        Machines(*addresses), Host(state_dir=tmp_path, url=url), options
    )
    with caplog.at_level(logging.WARNING):
        executor.announce({}, nodes.append)
        executor.announce({}, nodes.append)
    assert [
        ("at-10.0.0.2 cannot reach" in each.getMessage()) for each in caplog.records
    ] == [True] * told


def test_an_api_that_listens_everywhere_is_reached_at_this_machines_address(
    tmp_path: Path,
) -> None:
    host = Host(state_dir=tmp_path, url="http://0.0.0.0:8471")
    assert host.reached_at(OWN).url == "http://10.0.0.1:8471"
    named = Host(state_dir=tmp_path, url="http://head:8471")
    assert named.reached_at(OWN) is named
