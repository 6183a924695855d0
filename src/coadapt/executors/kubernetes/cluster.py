"""The nodes of a Kubernetes cluster, as its API server reports them, and how a replica
is started there.
"""

# A node's allocatable GPUs drop to 0 for seconds while its device plugin is updated,
# and by one if a GPU is unhealthy. Pods that have GPUs keep running. So a slot with a
# pod of ours counts as present until the pod has ended. Otherwise an update of the
# plugin, or one unhealthy GPU of eight, would stop all jobs on the node.

import logging
import sys
import threading
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import MappingProxyType

from coadapt.executors.kubernetes import proxy
from coadapt.executors.kubernetes.api import ApiError, JsonObject, KubeApi
from coadapt.executors.kubernetes.node_market import NodeMarket
from coadapt.executors.kubernetes.nodes import usable_nodes
from coadapt.executors.kubernetes.pods import PodSettings, selector
from coadapt.executors.processes.slots import Slot
from coadapt.model import Node, NodeId
from coadapt.model.offer import Offer, OfferId

NODES = "/api/v1/nodes"
RETRY_S = 2.0
# How soon slots that a node has lost are given up, once their pods have ended.
LOOK_S = 2.0
ENDED = ("Succeeded", "Failed")
# The longest wait for the first list of nodes. Without any nodes a scheduler would give
# up its jobs.
FIRST_LOOK_S = 30.0

logger = logging.getLogger(__name__)


class KubernetesCluster:
    """Watches the nodes in its own thread. While the server is unreachable, the nodes
    are as they were last.
    """

    def __init__(
        self,
        api: KubeApi,
        settings: PodSettings,
        settings_file: Path,
        *,
        slots: int | None,
        node_labels: Mapping[str, str],
        market: NodeMarket | None = None,
    ) -> None:
        """settings_file: the file with the same settings, for proxies. slots: CPU slots
        per node. market: buys nodes.
        """
        self._api = api
        self._file = settings_file
        self._market = market
        self._taken = partial(_taken, api, settings)
        tolerations = tuple(
            (settings.template.get("spec") or {}).get("tolerations") or ()
        )
        self._tolerations = tolerations
        self._usable = partial(
            usable_nodes,
            resource=settings.resource,
            slots=slots,
            labels=node_labels,
            tolerations=tolerations,
        )
        self._found: dict[str, JsonObject] = {}
        self._known: dict[NodeId, tuple[Node, str]] = {}
        self._addresses: dict[NodeId, str] = {}
        self._listed = threading.Event()
        self.trouble = ""
        self._lock = threading.Lock()
        self._closed = False
        self._trade_failed = ""
        for loop in (self._watch, self._look_again):
            threading.Thread(target=loop, name="kubernetes-nodes", daemon=True).start()
        self._listed.wait(FIRST_LOOK_S)

    @property
    def nodes(self) -> tuple[Node, ...]:
        return tuple(node for _, (node, _) in sorted(self._known.items()))

    @property
    def why_gone(self) -> Mapping[NodeId, str]:
        """Only about bought nodes that were given back. Other nodes are deleted,
        cordoned or not ready, and their own events say why.
        """
        return {} if self._market is None else self._market.why_gone

    @property
    def offers(self) -> tuple[Offer, ...]:
        """The nodes that can be bought."""
        return () if self._market is None else self._market.offers

    @property
    def noticed(self) -> Mapping[NodeId, float]:
        """When bought nodes may be gone, s since 1970."""
        return {} if self._market is None else self._market.noticed

    def buy(self, nodes: Mapping[OfferId, int]) -> None:
        if self._market is not None:
            self._market.buy(nodes)

    def give_back(self, node: NodeId) -> None:
        if self._market is not None:
            self._market.give_back(node)

    @property
    def devices(self) -> Mapping[NodeId, tuple[str, ...]]:
        """Nothing: the node's device plugin decides which GPU a pod gets."""
        return {}

    def address(self, node: NodeId) -> str:
        """Return the node's address. Pods that use the node's network have the same
        address, others have their own.

        A node that has just left keeps its last address, for an order to it that is
        still being handled and will fail.
        """
        return self._addresses.get(node, node)

    def via(self, node: NodeId, slot: Slot) -> tuple[str, ...]:
        """Return a command that starts the command appended to it on `node`."""
        return (
            sys.executable,
            "-m",
            proxy.__name__,
            str(self._file),
            node,
            str(slot.parts),
        )

    def close(self) -> None:
        """Stop the queries. The known nodes stay."""
        self._closed = True

    def _watch(self) -> None:
        while not self._closed:
            try:
                self._follow()
            except ApiError as error:
                if not self._closed:
                    self.trouble = f"the API server does not tell of nodes: {error}"
                    logger.warning("%s", self.trouble)
                    time.sleep(RETRY_S)

    def _follow(self) -> None:
        listed: dict[str, JsonObject] = {}
        for change, found in self._api.watch(NODES):
            if self._closed:
                return
            if change == "LISTED":
                self._found = listed
                if self._market is not None and not self._listed.is_set():
                    # Without a look, bought nodes would seem lost after a restart.
                    self._market.look(listed, self._tolerations, self._taken())
                self.trouble = ""
                self._look()
                self._listed.set()
                continue
            name = str(found["metadata"]["name"])
            if change == "DELETED":
                listed.pop(name, None)
            else:
                listed[name] = found
            if self._found is listed:
                self._look()

    def _look_again(self) -> None:
        """Notice the end of pods whose slots are lost, which the watch of nodes does
        not report, and buy nodes.
        """
        while not self._closed:
            self._wait()
            if self._listed.is_set():
                self._trade()
            with suppress(ApiError):  # the watch of the nodes reports it
                self._look()

    def _wait(self) -> None:
        if self._market is None:
            time.sleep(LOOK_S)
        else:
            self._market.changed.wait(LOOK_S)

    def _trade(self) -> None:
        """Order, keep and give back nodes. If it fails, the next look tries again."""
        if self._market is None:
            return
        try:
            self._market.look(dict(self._found), self._tolerations)
        except ApiError as error:
            if str(error) != self._trade_failed:
                logger.warning("nodes are neither ordered nor given back: %s", error)
            self._trade_failed = str(error)
        else:
            self._trade_failed = ""

    def _look(self) -> None:
        with self._lock:
            usable = self._present()
            fewer = any(
                name not in usable or usable[name][0].num_gpus < node.num_gpus
                for name, (node, _) in self._known.items()
            )
            if fewer or not self._known:
                usable = self._present(busy=self._taken())
            self._known = usable
            self._addresses |= {name: address for name, (_, address) in usable.items()}

    def _present(
        self, busy: Mapping[str, int] = MappingProxyType({})
    ) -> dict[str, tuple[Node, str]]:
        """Return the nodes for jobs, each with its address. A node of an offer is one
        while it is kept and ready, so that jobs leave it in place after a notice.

        busy: see usable_nodes.
        """
        found = dict(self._found)
        market = self._market
        if market is None:
            return self._usable(list(found.values()), busy=busy)
        offered = market.offered
        bought = [each for name, each in found.items() if name in offered]
        others = [
            each
            for name, each in found.items()
            if name not in offered and market.shelf.offer_of(each) is None
        ]
        ready = self._usable(bought, if_ready=True, busy=busy)
        return self._usable(others, busy=busy) | {
            name: (replace(node, offer=offered[name]), address)
            for name, (node, address) in ready.items()
        }


def _taken(api: KubeApi, settings: PodSettings) -> Mapping[str, int]:
    """Return how many pods of the scheduler each node has. A pod has one slot or a part
    of one.
    """
    found = api.get(
        f"/api/v1/namespaces/{settings.namespace}/pods",
        labelSelector=selector(settings),
    )
    living = [
        each
        for each in found["items"]
        if (each.get("status") or {}).get("phase") not in ENDED
    ]
    return Counter(str(each["spec"].get("nodeName")) for each in living)
