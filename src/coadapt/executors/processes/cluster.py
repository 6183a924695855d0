"""Where processes can be started: the nodes, their devices and their addresses, as an
executor sees them.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Protocol, runtime_checkable

from coadapt.core.events import NodeJoined, NodeLost
from coadapt.executors.processes.slots import Slot
from coadapt.model import InputError, Node, NodeId
from coadapt.model.offer import Offer, OfferId

LOOPBACK = "127.0.0.1"


class Cluster(Protocol):
    """The nodes of an executor. One thread reads these properties again and again,
    because nodes may come and go.

    An address is not part of a Node, because no decision depends on it. A machine that
    gets another address after a boot is still the same node for the scheduler.
    """

    @property
    def nodes(self) -> tuple[Node, ...]:
        """The nodes that are there now."""
        ...

    @property
    def devices(self) -> Mapping[NodeId, tuple[str, ...]]:
        """The name of each slot of a node in the form of CUDA_VISIBLE_DEVICES. Nodes
        with CPU slots have no entry.
        """
        ...

    def address(self, node: NodeId) -> str:
        """Return the address at which replicas on other nodes reach the replicas on
        `node`.
        """
        ...

    def via(self, node: NodeId, slot: Slot) -> tuple[str, ...]:
        """Return a command that runs the command appended to it in `slot` of `node`, ()
        if the node is this machine.

        It passes on output, exit code and SIGTERM. When it ends, all that it started
        ends too.
        """
        ...


@runtime_checkable
class TellsWhy(Protocol):
    """A cluster of an engine that may be unreachable, and that knows why nodes are no
    longer offered.
    """

    @property
    def trouble(self) -> str:
        """A sentence that says since when and why the engine is unreachable, "" if it
        is reachable.

        Any thread may read it.
        """
        ...

    @property
    def why_gone(self) -> Mapping[NodeId, str]:
        """The reason why each lost node is gone, as words after its name: `is gone: its
        allocation has ended`.
        """
        ...


@runtime_checkable
class ForSale(Protocol):
    """A cluster whose nodes are bought. Both orders may be repeated. They raise OSError
    if they cannot be carried out now.
    """

    @property
    def offers(self) -> Sequence[Offer]:
        """The offers, with the GPU type of their nodes. Their limits may change."""
        ...

    @property
    def noticed(self) -> Mapping[NodeId, float]:
        """When nodes will be taken away, s since 1970, for the nodes of which that is
        known.
        """
        ...

    def buy(self, nodes: Mapping[OfferId, int]) -> None:
        """Order the total number of nodes of each offer."""
        ...

    def give_back(self, node: NodeId) -> None:
        """Give back a node on which nothing runs."""
        ...


def nodes_to_come(offers: Iterable[Offer], present: Iterable[Node]) -> tuple[Node, ...]:
    """Return the nodes that may be bought beside those that are there."""
    there = [node.offer for node in present]
    return tuple(
        Node(
            id=f"{offer.id}-to-come-{number}",
            num_gpus=offer.num_gpus,
            gpu_type=offer.gpu_type,
        )
        for offer in offers
        for number in range(max(offer.most - there.count(offer.id), 0))
    )


def check_sold(sold: Collection[OfferId], offers: Collection[OfferId]) -> None:
    """Raise InputError if nodes are ordered or there whose offer is no longer for
    sale.

    sold: the offers of these nodes.
    """
    for name in sorted(set(sold) - set(offers)):
        allowed = (
            f"the offer {name!r} as well, since nodes of it are left; with most=0 they "
            "are given back"
        )
        raise InputError("--offer", ", ".join(offers) or None, allowed)


def node_events(
    known: Mapping[NodeId, Node],
    present: Sequence[Node],
    at: float,
    why: Mapping[NodeId, str] | None = None,
    gone_because: Mapping[NodeId, str] | None = None,
) -> list[NodeJoined | NodeLost]:
    """Return the events that change the core's nodes from `known` to `present`.

    why: the reason for each present node that was set aside. gone_because: see
    TellsWhy.
    """
    aside = {node: f"was set aside: {text}" for node, text in (why or {}).items()}
    reasons = {**(gone_because or {}), **aside}
    gone = sorted(known.keys() - {node.id for node in present})
    new = [node for node in present if known.get(node.id) != node]
    lost = (
        NodeLost(at=at, node=node, why=reasons[node])
        if node in reasons
        else NodeLost(at=at, node=node)
        for node in gone
    )
    return [*lost, *(NodeJoined(at=at, node=node) for node in new)]
