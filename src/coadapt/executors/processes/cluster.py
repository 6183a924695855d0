"""Where processes can be started: the nodes, their devices and their addresses, as an
executor sees them.
"""

from collections.abc import Mapping, Sequence
from typing import Protocol, runtime_checkable

from coadapt.core.events import NodeJoined, NodeLost
from coadapt.executors.processes.slots import Slot
from coadapt.model import Node, NodeId
from coadapt.model.offer import Offer, OfferId

LOOPBACK = "127.0.0.1"


class Cluster(Protocol):
    """Asked again and again, from one thread: nodes may come and go.

    An address is no part of a Node: no decision depends on it, and a machine that gets
    another one after a boot is still the same node to the scheduler.
    """

    @property
    def nodes(self) -> tuple[Node, ...]:
        """The nodes that are there now."""
        ...

    @property
    def devices(self) -> Mapping[NodeId, tuple[str, ...]]:
        """The name of each slot of a node as CUDA_VISIBLE_DEVICES has it; no entry for
        slots of CPUs.
        """
        ...

    def address(self, node: NodeId) -> str:
        """Return where the other nodes' replicas reach those on `node`."""
        ...

    def via(self, node: NodeId, slot: Slot) -> tuple[str, ...]:
        """Return the command that runs the one after it in `slot` of `node`, () where
        that is this machine.

        It passes on output, exit code and SIGTERM, and whatever it started ends with
        it.
        """
        ...


@runtime_checkable
class TellsWhy(Protocol):
    """A cluster of an engine that may be away, and that knows why nodes are no longer
    offered.
    """

    @property
    def trouble(self) -> str:
        """One sentence: since when and why the engine cannot be asked; "" if it can.

        Any thread may read it.
        """
        ...

    @property
    def why_gone(self) -> Mapping[NodeId, str]:
        """What became of each node, after its name: `is gone: its allocation has
        ended`.
        """
        ...


@runtime_checkable
class ForSale(Protocol):
    """A cluster whose nodes are bought. Both orders may be repeated, and raise OSError
    where they cannot be carried out now.
    """

    @property
    def offers(self) -> Sequence[Offer]:
        """The offers, with the GPU type of their nodes."""
        ...

    @property
    def noticed(self) -> Mapping[NodeId, float]:
        """When nodes are taken away of which that is known, s since 1970."""
        ...

    def buy(self, nodes: Mapping[OfferId, int]) -> None:
        """Have this number of nodes of each offer in all."""
        ...

    def give_back(self, node: NodeId) -> None:
        """Let a node go on which nothing runs."""
        ...


def node_events(
    known: Mapping[NodeId, Node],
    present: Sequence[Node],
    at: float,
    why: Mapping[NodeId, str] | None = None,
    gone_because: Mapping[NodeId, str] | None = None,
) -> list[NodeJoined | NodeLost]:
    """Return what tells the core, which knows of `known`, that the nodes are `present`
    now.

    why: of nodes that are there and were set aside. gone_because: see TellsWhy.
    """
    aside = {node: f"was set aside: {text}" for node, text in (why or {}).items()}
    told = {**(gone_because or {}), **aside}
    gone = sorted(known.keys() - {node.id for node in present})
    new = [node for node in present if known.get(node.id) != node]
    lost = (
        NodeLost(at=at, node=node, why=told[node])
        if node in told
        else NodeLost(at=at, node=node)
        for node in gone
    )
    return [*lost, *(NodeJoined(at=at, node=node) for node in new)]
