"""Bought nodes of a Kubernetes cluster: orders become holder pods, and nodes with a
keeper are offered to the scheduler.
"""

# The life of a node of an offer:
#
#     ordered   its order is pending
#     came      its order runs on it: a keeper is created there, the order is deleted
#     kept      its keeper is there, its order is gone: it is offered to jobs
#     dropped   it was given back, or is lost: its keeper is deleted, and the autoscaler
#               removes the node once it is empty
#
# A node of an offer without a keeper is never offered to jobs, because their replicas
# would keep a node that no sizer decided to have. After a restart the holders in the
# cluster say which nodes are kept. The number of ordered nodes is unknown until the
# first order, and until then no order is created or cancelled.
#
# A keeper that disappears (evicted by its node, deleted by a person) is created again
# while its node is there. The first look after a start also creates one on each node of
# an offer that has replicas. Either its keeper disappeared while no scheduler ran, or
# the offer is new.
#
# A node that is not ready leaves at once, and its keeper is deleted after LOST_S.
# Until then it may come back. Later, the keeper would only keep the autoscaler from
# removing a dead node.
#
# An order that is pending for long (arrive_s) says that no node can be had. Then all
# pending orders of the offer are cancelled, and for a pause the offer has no more nodes
# than there are. So the sizer can choose another offer. After the pause it may order
# again.

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from coadapt.executors.kubernetes.api import CONFLICT, ApiError, JsonObject, KubeApi
from coadapt.executors.kubernetes.holders import (
    GRACE_S,
    Holder,
    Role,
    holder_name,
    holder_selector,
    keeper_pod,
    order_pod,
    read_holder,
)
from coadapt.executors.kubernetes.nodes import is_ready
from coadapt.executors.kubernetes.notices import notice_s
from coadapt.executors.kubernetes.pods import PodSettings
from coadapt.model import NodeId
from coadapt.model.offer import Offer, OfferId

LOST_S = 60.0
# The pause after an order that the API server refused, because of a quota for example.
REFUSED_S = 30.0
# How long an order may be pending at least, as `--max-node-provision-time` of Cluster
# Autoscaler: 15 minutes by default. Also the pause after that.
ARRIVE_S = 900.0
PROVISION_FACTOR = 3.0
GIVEN_BACK = "was given back"

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shelf:
    """The offers, and the labels of each offer's nodes."""

    offers: tuple[Offer, ...]
    labels: Mapping[OfferId, Mapping[str, str]]

    def offer_of(self, found: JsonObject) -> OfferId | None:
        """Return the offer to which a node belongs by its labels, None without any."""
        own = found["metadata"].get("labels") or {}
        for offer, labels in self.labels.items():
            if labels.items() <= own.items():
                return offer
        return None


def arrive_s(offer: Offer) -> float:
    """Return how long an order of an offer may be pending, s."""
    return max(ARRIVE_S, PROVISION_FACTOR * offer.provision_s)


class NodeMarket:
    """Orders nodes by holder pods. One thread calls `look`; the rest is for any thread,
    and says what the last `look` found.
    """

    def __init__(
        self,
        api: KubeApi,
        settings: PodSettings,
        shelf: Shelf,
        now: Callable[[], float] = time.time,
    ) -> None:
        """now: returns s since 1970."""
        self.shelf = shelf
        self.changed = threading.Event()
        self.offered: Mapping[NodeId, OfferId] = {}
        self.noticed: Mapping[NodeId, float] = {}
        self.why_gone: Mapping[NodeId, str] = {}
        self._api = api
        self._settings = settings
        self._offers = {offer.id: offer for offer in shelf.offers}
        self._path = f"/api/v1/namespaces/{settings.namespace}/pods"
        self._now = now
        self._lock = threading.Lock()
        # The ordered number of nodes of each offer, empty before the first order.
        self._wanted: dict[OfferId, int] = {}
        self._returned: set[NodeId] = set()
        # The keepers, as they were last; those that must be created again included.
        self._kept: dict[NodeId, Holder] = {}
        self._unready_since: dict[NodeId, float] = {}
        self._refused_until = 0.0
        # Until when offers have no more nodes than there are, s since 1970.
        self._out_until: dict[OfferId, float] = {}
        self._offers_now = shelf.offers

    @property
    def offers(self) -> tuple[Offer, ...]:
        """The offers. `most` is lower while no node of an offer can be had."""
        return self._offers_now

    def buy(self, nodes: Mapping[OfferId, int]) -> None:
        """Order this total number of nodes of each offer."""
        with self._lock:
            self._wanted = {
                offer.id: min(nodes.get(offer.id, 0), offer.most)
                for offer in self._offers_now
            }
        self.changed.set()

    def give_back(self, node: NodeId) -> None:
        """Stop offering a node, and let the autoscaler have it."""
        with self._lock:
            if node not in self.offered:
                return
            self._returned.add(node)
            self._want_less(self.offered[node])
            self.offered = {
                name: offer for name, offer in self.offered.items() if name != node
            }
            self.why_gone = {**self.why_gone, node: GIVEN_BACK}
        self.changed.set()

    def look(
        self,
        nodes: Mapping[NodeId, JsonObject],
        tolerations: Sequence[JsonObject],
        busy: Iterable[NodeId] = (),
    ) -> None:
        """Read the holders, and bring what was ordered one step on. Raises ApiError.

        nodes: of the cluster. tolerations: of the replicas. busy: nodes with replicas,
        which get a keeper if they belong to an offer.
        """
        self.changed.clear()
        holders = self._read()
        with self._lock:
            self._take(holders, nodes)
            self._adopt(holders, [nodes[node] for node in busy if node in nodes])
        self._keep_and_drop(holders, nodes)
        with self._lock:
            self._offer(holders, nodes, tolerations)
            self._limit(holders)
        self._order(holders)

    def _read(self) -> list[Holder]:
        selector = holder_selector(self._settings)
        found = self._api.get(self._path, labelSelector=selector)["items"]
        return [read_holder(each) for each in found]

    # -- keepers -----------------------------------------------------------------------

    def _take(
        self, holders: Iterable[Holder], nodes: Mapping[NodeId, JsonObject]
    ) -> None:
        """Take in the keepers that are there, and nodes that came."""
        there = {
            each.node: each
            for each in holders
            if each.role is Role.KEEPER and not each.is_ending
        }
        self._kept = {**self._kept, **there}
        for each in holders:
            is_done = each.is_over or each.is_ending or each.node in self._kept
            if each.role is Role.ORDER and each.node and not is_done:
                logger.info("node %s came for offer %s", each.node, each.offer)
                name = holder_name(self._settings, each.offer, each.number, Role.KEEPER)
                self._kept[each.node] = replace(each, name=name, role=Role.KEEPER)
        now = time.monotonic()
        self._unready_since = {
            node: self._unready_since.get(node, now)
            for node in self._kept
            if node in nodes and not is_ready(nodes[node])
        }

    def _adopt(self, holders: Sequence[Holder], busy: Iterable[JsonObject]) -> None:
        """Take in nodes with replicas that have no keeper."""
        for found in busy:
            node = str(found["metadata"]["name"])
            offer_id = self.shelf.offer_of(found)
            if offer_id is None or node in self._kept:
                continue
            free = self._free_numbers(self._offers[offer_id], holders)
            if not free:
                logger.warning(
                    "node %s has replicas, but offer %s has no room for it: they stop",
                    *(node, offer_id),
                )
                continue
            name = holder_name(self._settings, offer_id, free[0], Role.KEEPER)
            self._kept[node] = Holder(
                name=name,
                offer=offer_id,
                number=free[0],
                role=Role.KEEPER,
                node=node,
            )

    def _free_numbers(self, offer: Offer, holders: Iterable[Holder]) -> list[int]:
        """Return the numbers that no pod or kept node of an offer has."""
        used = {
            each.number
            for each in (*holders, *self._kept.values())
            if each.offer == offer.id
        }
        return [number for number in range(offer.most) if number not in used]

    def _keep_and_drop(
        self, holders: Sequence[Holder], nodes: Mapping[NodeId, JsonObject]
    ) -> None:
        over = {each.name for each in holders if each.is_over}
        alive = {each.name for each in holders} - over
        for node, keeper in list(self._kept.items()):
            why = self._why_dropped(node, nodes)
            if why:
                self._drop(keeper, why)
            elif keeper.name not in alive:
                if keeper.name in over:
                    self._api.delete(f"{self._path}/{keeper.name}", 0)
                self._create(
                    keeper_pod(self._settings, keeper.offer, keeper.number, node)
                )
        for each in holders:
            is_done = each.is_over or each.node in self._kept
            if each.role is Role.ORDER and is_done and not each.is_ending:
                self._api.delete(f"{self._path}/{each.name}", GRACE_S)

    def _why_dropped(
        self, node: NodeId, nodes: Mapping[NodeId, JsonObject]
    ) -> str | None:
        """Return why a kept node is dropped, None if it is kept on."""
        if node in self._returned:
            return GIVEN_BACK
        if node not in nodes:
            # The list of nodes may be older than that of holders.
            is_there = self._api.find(f"/api/v1/nodes/{node}") is not None
            return None if is_there else "is gone"
        since = self._unready_since.get(node)
        if since is not None and time.monotonic() - since > LOST_S:
            return f"was not ready for {LOST_S:.0f} s"
        return None

    def _drop(self, keeper: Holder, why: str) -> None:
        # Without a grace, because a dead node confirms no end of a pod.
        for role in Role:
            name = holder_name(self._settings, keeper.offer, keeper.number, role)
            self._api.delete(f"{self._path}/{name}", 0)
        logger.info("node %s of offer %s %s", keeper.node, keeper.offer, why)
        with self._lock:
            del self._kept[keeper.node]
            if keeper.node in self._returned:
                self._returned.remove(keeper.node)
            else:
                # The sizer decides whether to replace a lost node.
                self._want_less(keeper.offer)

    def _want_less(self, offer: OfferId) -> None:
        if offer in self._wanted:
            self._wanted[offer] = max(self._wanted[offer] - 1, 0)

    def _offer(
        self,
        holders: Iterable[Holder],
        nodes: Mapping[NodeId, JsonObject],
        tolerations: Sequence[JsonObject],
    ) -> None:
        """Offer the kept nodes whose GPUs no order holds any more."""
        held = {each.node for each in holders if each.role is Role.ORDER}
        self.offered = {
            node: keeper.offer
            for node, keeper in self._kept.items()
            if node not in held and node not in self._returned
        }
        leads = {
            node: notice_s(nodes[node], tolerations)
            for node in self.offered
            if node in nodes
        }
        self.noticed = {
            node: self.noticed.get(node, self._now() + lead)
            for node, lead in leads.items()
            if lead is not None
        }
        self.why_gone = {
            node: why for node, why in self.why_gone.items() if node not in self.offered
        }

    # -- orders ------------------------------------------------------------------------

    def _limit(self, holders: Iterable[Holder]) -> None:
        """Limit offers of which no node can be had to the nodes that there are."""
        now = self._now()
        for each in holders:
            offer = self._offers[each.offer]
            if not _is_pending(each) or now - each.created_at < arrive_s(offer):
                continue
            if now >= self._out_until.get(offer.id, 0.0):
                logger.warning(
                    "no node of offer %s came within %.0f s; it is not ordered for "
                    "another %.0f s",
                    *(offer.id, arrive_s(offer), ARRIVE_S),
                )
                self._out_until[offer.id] = now + ARRIVE_S
        self._offers_now = tuple(
            self._limited(offer) if now < self._out_until.get(offer.id, 0.0) else offer
            for offer in self.shelf.offers
        )
        for offer in self._offers_now:
            if offer.id in self._wanted:
                wanted = min(self._wanted[offer.id], offer.most)
                self._wanted[offer.id] = wanted

    def _limited(self, offer: Offer) -> Offer:
        there = sum(each.offer == offer.id for each in self._kept.values())
        return replace(offer, most=max(offer.least, min(there, offer.most)))

    def _order(self, holders: Iterable[Holder]) -> None:
        """Create the orders that are missing, and cancel those that are too many."""
        with self._lock:
            wanted = dict(self._wanted)
            staying = [
                each for node, each in self._kept.items() if node not in self._returned
            ]
        orders = [each for each in holders if each.role is Role.ORDER]
        for offer_id, count in wanted.items():
            offer = self._offers[offer_id]
            nodes = sum(each.offer == offer_id for each in staying)
            pending = sorted(
                each.number
                for each in orders
                if each.offer == offer_id and _is_pending(each)
            )
            for number in pending[max(count - nodes, 0) :]:
                self._cancel(offer_id, number)
            free = self._free_numbers(offer, holders)
            for number in free[: max(count - nodes - len(pending), 0)]:
                self._ask_for(offer, number)

    def _cancel(self, offer: OfferId, number: int) -> None:
        name = holder_name(self._settings, offer, number, Role.ORDER)
        self._api.delete(f"{self._path}/{name}", GRACE_S)
        logger.info("cancelled an order for a node of offer %s: %s", offer, name)

    def _ask_for(self, offer: Offer, number: int) -> None:
        if time.monotonic() < self._refused_until:
            return
        pod = order_pod(self._settings, offer, self.shelf.labels[offer.id], number)
        name = pod["metadata"]["name"]
        try:
            self._create(pod)
        except ApiError as error:
            if error.status == 0:
                raise
            self._refused_until = time.monotonic() + REFUSED_S
            logger.warning("the cluster refuses an order for a node: %s", error)
        else:
            logger.info("ordered a node of offer %s: %s", offer.id, name)

    def _create(self, pod: JsonObject) -> None:
        """Create a pod, unless one of its name is there. That one may be about to end;
        then the next look creates it.
        """
        try:
            self._api.ask("POST", self._path, pod)
        except ApiError as error:
            if error.status != CONFLICT:
                raise


def _is_pending(holder: Holder) -> bool:
    is_order = holder.role is Role.ORDER
    return is_order and not (holder.node or holder.is_ending or holder.is_over)
