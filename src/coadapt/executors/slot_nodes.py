"""Nodes for sale on this machine: groups of CPU slots that come a while after they are
ordered, and go when they are given back.

They replace a cloud's nodes where the scheduler is tried or tested; replicas on them
are real processes.
"""

# What is remembered, and why it is enough.
#
# Each node has one entry in a file from its order until it is gone, with the instants
# at which it is ready and, on notice, taken away. The file is written before anything
# follows from it. So a new executor on the same directory continues: an order comes at
# its time, no node is ordered twice (an order names how many nodes there are to be in
# all), and none is forgotten. A node that is taken away keeps its entry until its
# processes are gone.
#
# Numbers are never used again: a node that comes later has another id, so what is
# said about the earlier one cannot be meant for it.

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from coadapt.executors.host import Host
from coadapt.executors.machine import CPU_SLOTS_MAX, Machine
from coadapt.executors.processes.cluster import check_sold, nodes_to_come
from coadapt.executors.processes.executor import ProcessExecutor, ProcessOptions
from coadapt.executors.processes.job_processes import kill_on_node
from coadapt.executors.processes.records.generation_dir import (
    JOBS,
    read_json,
    write_json,
)
from coadapt.executors.processes.slots import Slot
from coadapt.model import DEFAULT_GPU_TYPE, InputError, Node, NodeId
from coadapt.model.contract_env import CPU_SLOT_TYPE
from coadapt.model.offer import Offer, OfferId
from coadapt.runtime.ports import Post

FILE = "bought-nodes.json"
# Why a node is gone is asked once, soon after.
GONE_KEPT = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotNode:
    """A node from its order until it is gone. Instants in s since 1970.

    gone_at: when its owner takes it away, None while nothing is known of that.
    """

    node: Node
    ready_at: float
    gone_at: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Bought:
    """What is kept on disk. num_made: nodes that were ever ordered, by offer."""

    nodes: Mapping[NodeId, SlotNode] = field(default_factory=dict)
    num_made: Mapping[OfferId, int] = field(default_factory=dict)


def slot_offers(offers: Sequence[Offer]) -> tuple[Offer, ...]:
    """Return the offers as this machine has them: their nodes are CPU slots.

    Raises InputError for another GPU type, and for more slots than a machine may have.
    """
    for offer in offers:
        if offer.gpu_type not in (DEFAULT_GPU_TYPE, CPU_SLOT_TYPE):
            allowed = f"{CPU_SLOT_TYPE}: the nodes of the executor local are CPU slots"
            raise InputError(f"--offer {offer.id}, GPU type", offer.gpu_type, allowed)
    slots = sum(offer.most * offer.num_gpus for offer in offers)
    if slots > CPU_SLOTS_MAX:
        raise InputError("--offer", f"{slots} slots in all", f"1..{CPU_SLOTS_MAX}")
    return tuple(replace(offer, gpu_type=CPU_SLOT_TYPE) for offer in offers)


def bought_nodes(state_dir: Path) -> Bought:
    """Return what an earlier executor left. Raises InputError if it cannot be read."""
    return read_json(state_dir / FILE, Bought) or Bought()


def offers_of(bought: Bought) -> set[OfferId]:
    """Return the offers of the nodes that are ordered or there."""
    return {each.node.offer for each in bought.nodes.values()}


class SlotNodes:
    """The cluster of this machine's own slots and of those that are bought."""

    def __init__(
        self,
        machine: Machine,
        offers: Sequence[Offer],
        state_dir: Path,
        now: Callable[[], float] = time.time,
    ) -> None:
        """`machine`: what is always there. Raises InputError if nodes of an offer are
        left that is no longer for sale.
        """
        self.offers = tuple(offers)
        self._by_id = {offer.id: offer for offer in offers}
        self._machine = machine
        self._path = state_dir / FILE
        self._jobs = state_dir / JOBS
        self._now = now
        self._lock = threading.Lock()
        self._bought = bought_nodes(state_dir)
        self._why_gone: dict[NodeId, str] = {}
        check_sold(offers_of(self._bought), self._by_id)

    @property
    def nodes(self) -> tuple[Node, ...]:
        now = self._now()
        here = (
            each.node
            for _, each in sorted(self._bought.nodes.items())
            if each.ready_at <= now
        )
        return (*self._machine.nodes, *here)

    @property
    def to_come(self) -> tuple[Node, ...]:
        """Nodes that may be bought beside those that are there."""
        return nodes_to_come(self.offers, self.nodes)

    @property
    def devices(self) -> Mapping[NodeId, tuple[str, ...]]:
        return self._machine.devices

    @property
    def trouble(self) -> str:
        return ""

    @property
    def why_gone(self) -> Mapping[NodeId, str]:
        return self._why_gone

    @property
    def noticed(self) -> Mapping[NodeId, float]:
        """Return when nodes are taken away of which that is known, s since 1970."""
        return {
            name: each.gone_at
            for name, each in self._bought.nodes.items()
            if each.gone_at is not None and each.ready_at <= self._now()
        }

    def address(self, node: NodeId) -> str:
        return self._machine.address(node)

    def via(self, node: NodeId, slot: Slot) -> tuple[str, ...]:
        return self._machine.via(node, slot)

    def buy(self, nodes: Mapping[OfferId, int]) -> None:
        """Have this number of nodes of each offer in all, as far as there are so many;
        orders that are too many are taken back, the latest first.
        """
        with self._lock:
            now = self._now()
            kept = dict(self._bought.nodes)
            made = dict(self._bought.num_made)
            for offer_id, wanted in sorted(nodes.items()):
                offer = self._by_id.get(offer_id)
                if offer is None:  # it was for sale before a restart
                    continue
                count = min(wanted, offer.most)
                mine = [name for name in kept if kept[name].node.offer == offer_id]
                pending = [name for name in mine if kept[name].ready_at > now]
                for name in sorted(pending)[max(count - len(mine) + len(pending), 0) :]:
                    del kept[name]
                for _ in range(count - len(mine)):
                    number = made.get(offer_id, 0)
                    made[offer_id] = number + 1
                    node = _new_node(offer, number)
                    ready_at = now + offer.provision_s
                    kept[node.id] = SlotNode(node=node, ready_at=ready_at)
            self._write(Bought(nodes=kept, num_made=made))

    def give_back(self, node: NodeId, why: str = "was given back") -> None:
        """Remove a node; does nothing if it is gone already."""
        with self._lock:
            if node not in self._bought.nodes:
                return
            self._why_gone[node] = why
            while len(self._why_gone) > GONE_KEPT:
                del self._why_gone[next(iter(self._why_gone))]
            kept = {
                name: each for name, each in self._bought.nodes.items() if name != node
            }
            self._write(replace(self._bought, nodes=kept))

    def take_away(self, node: NodeId, gone_at: float) -> bool:
        """Take a node away at `gone_at`; return whether it is a bought node."""
        with self._lock:
            each = self._bought.nodes.get(node)
            if each is None or each.ready_at > self._now():
                return False
            changed = {**self._bought.nodes, node: replace(each, gone_at=gone_at)}
            self._write(replace(self._bought, nodes=changed))
            return True

    def end_overdue(self) -> None:
        """End what runs on nodes whose time has come, and let them go."""
        for node, gone_at in self.noticed.items():
            if gone_at <= self._now():
                kill_on_node(self._jobs, node)
                self.give_back(node, "was taken away by its owner")

    def _write(self, bought: Bought) -> None:
        if bought != self._bought:
            write_json(self._path, bought)
            self._bought = bought


class SlotExecutor(ProcessExecutor):
    """Processes on this machine's own slots and on those that are bought."""

    def __init__(self, cluster: SlotNodes, host: Host, options: ProcessOptions) -> None:
        super().__init__(cluster, host, options)
        self._slots = cluster

    @property
    def to_come(self) -> tuple[Node, ...]:
        return self._slots.to_come

    def take_away(self, node: NodeId, gone_at: float) -> bool:
        return self._slots.take_away(node, gone_at)

    def _tell_nodes(self, post: Post) -> None:
        with suppress(OSError):  # the disk is full: it is tried again at the next turn
            self._slots.end_overdue()
        super()._tell_nodes(post)


def _new_node(offer: Offer, number: int) -> Node:
    return Node(
        id=f"{offer.id}-{number:05d}",
        num_gpus=offer.num_gpus,
        gpu_type=offer.gpu_type,
        offer=offer.id,
    )
