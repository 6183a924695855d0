"""The port LiveExecutor by processes: orders come in by a queue, one thread carries
them out and watches.

An order is written to disk before it runs, and launchers outlive the scheduler. So a
new executor on the same directory adopts every generation that its predecessor left,
whether alive, dead or changing in place.
"""

import logging
import queue
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from coadapt.core.commands import BuyNodes, GiveBack, JobCommand
from coadapt.core.events import NodeNoticed, OfferChanged
from coadapt.executors.host import MEBIBYTE, Host
from coadapt.executors.node_health import NodeHealth
from coadapt.executors.processes.cluster import (
    LOOPBACK,
    Cluster,
    ForSale,
    TellsWhy,
    node_events,
)
from coadapt.executors.processes.launching import Launching
from coadapt.executors.processes.order_book import OrderBook
from coadapt.executors.processes.records.generation_dir import (
    LaunchSettings,
)
from coadapt.executors.processes.records.job_log import read_job_log
from coadapt.model import JobId, Node, NodeId
from coadapt.model.offer import Offer
from coadapt.runtime.ports import LogPart, Post

POLL_S = 0.05
AWAY_S = 1.0  # between two checks for a missing state directory

_Order = JobCommand | BuyNodes | GiveBack

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessOptions:
    """pass_env: further variables of the scheduler's environment that jobs get, besides
    those of contract_env.py.

    log_bytes: the largest size of one replica's log. disk_reserve_bytes: the space that
    jobs leave free on the disk of the state directory. With less free space no job
    starts, and no output is kept. control_host: the address at which launchers serve
    the control channel, "" if replicas share this disk. control_name: the name by which
    replicas reach that address. sweep: see LaunchSettings.
    """

    pass_env: frozenset[str] = frozenset()
    log_bytes: int = 256 * MEBIBYTE
    disk_reserve_bytes: int = 256 * MEBIBYTE
    control_host: str = ""
    control_name: str = ""
    sweep: tuple[str, ...] = ()


class ProcessExecutor:
    """Replicas as processes on the nodes of `cluster`. Only `run`'s thread touches the
    OrderBook.
    """

    def __init__(
        self, cluster: Cluster, host: Host, options: ProcessOptions | None = None
    ) -> None:
        """Adopt the generations that run under `host.state_dir`."""
        options = options or ProcessOptions()
        settings = LaunchSettings(
            stop_grace_s=host.stop_grace_s,
            log_bytes=options.log_bytes,
            disk_reserve_bytes=options.disk_reserve_bytes,
            control_host=options.control_host,
            control_name=options.control_name,
            sweep=options.sweep,
        )
        if options.control_host:
            host = host.reached_at(options.control_name or options.control_host)
        launching = Launching(
            cluster=cluster, host=host, settings=settings, pass_env=options.pass_env
        )
        self._elsewhere = bool(options.sweep)
        self._cluster = cluster
        self._sale = cluster if isinstance(cluster, ForSale) else None
        self._host = host
        self._health = NodeHealth(host.state_dir / "nodes-aside.json")
        self._book = OrderBook(cluster, launching, host.now, self._health)
        self._orders: queue.SimpleQueue[tuple[_Order, Post]] = queue.SimpleQueue()
        self._announced: dict[NodeId, Node] = {}
        self._noticed: dict[NodeId, float] = {}
        self._offers_posted = tuple(self.offers)
        self._own_address = options.control_host
        self._closed = threading.Event()

    @property
    def rescales_in_place(self) -> bool:
        """Return True. For replicas that cannot change in place (yet), a Rescale is a
        stop and a start.
        """
        return True

    @property
    def to_come(self) -> tuple[Node, ...]:
        """Return no nodes: this executor starts none, and cannot know which ones will
        appear.
        """
        return ()

    @property
    def shares_disk(self) -> bool:
        return not self._elsewhere

    @property
    def trouble(self) -> str:
        cluster = self._cluster
        return cluster.trouble if isinstance(cluster, TellsWhy) else ""

    @property
    def aside(self) -> Mapping[NodeId, str]:
        return self._health.aside

    def take_back(self, node: NodeId) -> bool:
        return self._health.take_back(node)

    def execute(self, command: JobCommand, post: Post) -> None:
        self._orders.put((command, post))

    @property
    def offers(self) -> Sequence[Offer]:
        """Return the nodes that can be bought; none where the cluster sells none."""
        return () if self._sale is None else self._sale.offers

    def buy(self, command: BuyNodes, post: Post) -> None:
        self._orders.put((command, post))

    def give_back(self, command: GiveBack, post: Post) -> None:
        self._orders.put((command, post))

    def adopted(self) -> list[tuple[JobId, int]]:
        return self._book.running()

    def announce(self, known: Mapping[NodeId, Node], post: Post) -> None:
        self._announced = dict(known)
        self._tell_nodes(post)

    def run(self, post: Post) -> None:
        while not self._closed.is_set():
            # While the disk does not respond, nothing is known about any job.
            if not self._host.state_dir.is_dir():
                self._closed.wait(AWAY_S)
                continue
            for order, answer in self._next_orders():
                if isinstance(order, BuyNodes | GiveBack):
                    self._order_nodes(order)
                else:
                    self._book.take(order, answer)
            self._book.watch()
            self._book.attempt()
            self._tell_nodes(post)
        self._book.close()

    def close(self) -> None:
        self._closed.set()

    def log(self, job: JobId, rank: int, offset: int) -> LogPart:
        return read_job_log(self._host.state_dir, job, rank, offset)

    def _order_nodes(self, order: BuyNodes | GiveBack) -> None:
        """Carry out an order about bought nodes. If it fails, the scheduler repeats
        it.
        """
        if self._sale is None:
            return
        try:
            if isinstance(order, BuyNodes):
                self._sale.buy(order.nodes)
            elif not self._book.holds(order.node):
                self._sale.give_back(order.node)
        except OSError as error:
            logger.warning("the nodes that are bought stay as they are: %s", error)

    def _next_orders(self) -> Iterator[tuple[_Order, Post]]:
        try:
            yield self._orders.get(timeout=POLL_S)
            while True:
                yield self._orders.get_nowait()
        except queue.Empty:
            return

    def _tell_nodes(self, post: Post) -> None:
        self._health.judge(self._cluster.nodes)
        nodes = self._health.sound(self._cluster.nodes)
        events = node_events(
            self._announced,
            nodes,
            self._host.now(),
            self._health.aside,
            self._why_gone(),
        )
        for event in events:
            post(event)
        self._announced = {node.id: node for node in nodes}
        self._see_to_bought(post)
        if events and self._own_address and self._host.is_loopback:
            self._warn_of_silence(nodes)

    def _see_to_bought(self, post: Post) -> None:
        """Post notices of nodes that will be taken away, and offers that changed. Give
        back nodes that were set aside, because they cost money and no job may use them.
        """
        if self._sale is None:
            return
        offers = tuple(self._sale.offers)
        for offer in offers:
            if offer not in self._offers_posted:
                post(OfferChanged(at=self._host.now(), offer=offer))
        self._offers_posted = offers
        for node, gone_at in self._sale.noticed.items():
            if node in self._announced and self._noticed.get(node) != gone_at:
                post(NodeNoticed(at=self._host.now(), node=node, gone_at=gone_at))
                self._noticed[node] = gone_at
        bought = {node.id for node in self._cluster.nodes if node.offer}
        for node in sorted(bought & self._health.aside.keys()):
            self._order_nodes(GiveBack(node=node))

    def _why_gone(self) -> Mapping[NodeId, str]:
        """Return why nodes are gone, as far as the engine reports it."""
        cluster = self._cluster
        return cluster.why_gone if isinstance(cluster, TellsWhy) else {}

    def _warn_of_silence(self, nodes: Iterable[Node]) -> None:
        """Warn once, as soon as there is a node on another machine, that replicas there
        cannot reach the scheduler.
        """
        addresses = {node.id: self._cluster.address(node.id) for node in nodes}
        far = [
            name
            for name, each in addresses.items()
            if each not in (self._own_address, LOOPBACK)
        ]
        if far:
            self._own_address = ""
            logger.warning(
                "replicas on %s cannot reach the scheduler at %s: their jobs will "
                "not adapt; start it with "
                "--host ADDRESS --expose, where ADDRESS is this machine's in their "
                "network",
                ", ".join(far),
                self._host.url,
            )
