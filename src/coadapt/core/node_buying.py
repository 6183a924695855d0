"""Nodes that are bought: what is had and wanted of each offer, what it costs, and which
nodes are left empty before they go. The sizer decides numbers; this decides nodes.
"""

# The rules.
#
# Nothing here happens before OffersConfigured, so that a journal without offers replays
# as it was decided. From then on the sizer is asked (command Size) at whole multiples
# of `sizing_s` while a job is active or more nodes are had than the offers' least, and
# at once where a job comes and no node is there. Its answer is an event, SizingReady,
# that is checked against the offers of that moment.
#
# More nodes: BuyNodes says how many nodes of each offer are to be had in all. It is a
# number, not a difference, so that it may be repeated or come late.
#
# Fewer nodes: the core picks which. Idle ones go first, then those whose jobs hold the
# fewest GPUs; none with a frozen job, and none before its paid time ends. Such a node
# is `leaving`: policies do not see it, so that the next plan moves its jobs away, and
# GiveBack is ordered once nothing is on it. A node that is wanted again before that
# stays.
#
# A notice (NodeNoticed) makes a node leave, too, but its owner takes it away at a time
# of its own, and it does not stay.
#
# Costs are booked by the offers' prices while nodes are live; a node that goes is
# charged to the end of its billing time.

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace

from coadapt.core.instants import next_multiple
from coadapt.model import Node, NodeId
from coadapt.model.offer import HOUR_S, Offer, OfferId, Pool, hazard_per_h

# A sizer that has not answered after so long is asked again, s.
ANSWER_WITHIN_S = 300.0
# Between two decisions by default, as between two rounds, s.
SIZING_S = 60.0
# A node is given back this many decisions before its billing time ends.
DECISIONS_BEFORE = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class BoughtNode:
    """A live node of an offer. since: when it came, s. noticed: its owner takes it
    away. given_back: it was ordered to go.
    """

    offer: OfferId
    since: float
    noticed: bool = False
    given_back: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class OfferUse:
    """What an offer was used for so far. node_s: seconds of nodes; cost: in
    currency.
    """

    node_s: float = 0.0
    cost: float = 0.0
    num_losses: int = 0


@dataclass(slots=True, kw_only=True)
class Buying:
    """The part of the scheduler's state that is about offers. Instants and durations in
    s.
    """

    sizing_s: float = SIZING_S
    """Decisions about the size are at whole multiples of it."""
    offers: dict[OfferId, Offer] = field(default_factory=dict)
    nodes: dict[NodeId, BoughtNode] = field(default_factory=dict)
    """The live nodes that belong to an offer."""
    leaving: dict[NodeId, str] = field(default_factory=dict)
    """Live nodes on which nothing is started any more, and why."""
    ordered: dict[OfferId, int] = field(default_factory=dict)
    """Nodes that were ordered and have not come."""
    use: dict[OfferId, OfferUse] = field(default_factory=dict)
    booked_at: float = 0.0
    """Up to when costs are booked."""
    number: int = 0
    """Of the last Size."""
    asked_at: float | None = None
    """When the sizer was asked; None once it answered."""
    due_at: float | None = None
    """When it is asked next; None while the size cannot change."""
    alarm_at: float | None = None
    """The alarm that was last set."""
    reason: str = ""
    """Of the last answer that was taken."""
    error: str = ""
    """Why the last answer was refused or failed, "" if it was taken."""

    @property
    def spent(self) -> float:
        """What nodes cost so far, up to `booked_at`."""
        return sum(each.cost for each in self.use.values())

    def copy(self) -> "Buying":
        """Return a copy that does not change with this object."""
        return replace(
            self,
            offers=dict(self.offers),
            nodes=dict(self.nodes),
            leaving=dict(self.leaving),
            ordered=dict(self.ordered),
            use=dict(self.use),
        )

    def configure(self, offers: Collection[Offer], sizing_s: float, at: float) -> None:
        """Take in offers and the time between decisions; both count from `at` on."""
        self.book(at)
        self.sizing_s = sizing_s
        self.offers = {offer.id: offer for offer in sorted(offers, key=_by_id)}
        self.ordered = {
            offer_id: count
            for offer_id, count in self.ordered.items()
            if offer_id in self.offers
        }
        self.due_at = at if self.offers else None

    def change(self, offer: Offer, at: float) -> None:
        """Take in another price or limit of one offer."""
        self.book(at)
        if offer.id in self.offers:
            self.offers[offer.id] = offer

    def book(self, at: float) -> None:
        """Book what the live nodes cost up to `at`."""
        seconds = at - self.booked_at
        if seconds > 0.0:
            for node in self.nodes.values():
                self._charge(node.offer, seconds, seconds)
        self.booked_at = max(self.booked_at, at)

    def _charge(self, offer_id: OfferId, node_s: float, paid_s: float) -> None:
        use = self.use.get(offer_id, OfferUse())
        offer = self.offers.get(offer_id)
        price = 0.0 if offer is None else offer.price_per_h
        self.use[offer_id] = OfferUse(
            node_s=use.node_s + node_s,
            cost=use.cost + price * paid_s / HOUR_S,
            num_losses=use.num_losses,
        )

    def joined(self, node: Node, at: float) -> None:
        """Take in a node that came up."""
        if node.offer not in self.offers or node.id in self.nodes:
            return
        self.book(at)
        self.nodes[node.id] = BoughtNode(offer=node.offer, since=at)
        self.ordered[node.offer] = max(self.ordered.get(node.offer, 0) - 1, 0)

    def gone(self, node_id: NodeId, at: float) -> None:
        """Let go of a node: the rest of its billing time is paid for."""
        node = self.nodes.get(node_id)
        if node is None:
            return
        self.book(at)
        del self.nodes[node_id]
        left = self.leaving.pop(node_id, None)
        offer = self.offers.get(node.offer)
        if offer is not None and offer.billing_s:
            lived_s = at - node.since
            paid_up_to = next_multiple(
                offer.billing_s, after=0.0, not_before=max(lived_s, 0.0)
            )
            self._charge(node.offer, 0.0, paid_up_to - lived_s)
        if left is None or node.noticed:
            use = self.use.get(node.offer, OfferUse())
            self.use[node.offer] = OfferUse(
                node_s=use.node_s, cost=use.cost, num_losses=use.num_losses + 1
            )

    def notice(self, node_id: NodeId) -> bool:
        """Let a node leave that its owner takes away; return whether that is news."""
        node = self.nodes.get(node_id)
        if node is None or node.noticed:
            return False
        self.nodes[node_id] = replace(node, noticed=True)
        self.leaving[node_id] = "its owner takes it away"
        return True

    @property
    def totals(self) -> dict[OfferId, int]:
        """Return the nodes of each offer that are to be had in all, live and
        ordered, without those that were ordered to go: the engine, which may have
        let them go already, would replace them.
        """
        live = [node.offer for node in self.nodes.values() if not node.given_back]
        return {
            offer_id: live.count(offer_id) + self.ordered.get(offer_id, 0)
            for offer_id in self.offers
        }

    def uses(self, at: float) -> dict[OfferId, OfferUse]:
        """Return what each offer was used for up to `at` (s); nothing is booked."""
        booked = self.copy()
        booked.book(at)
        return {
            offer_id: booked.use.get(offer_id, OfferUse())
            for offer_id in sorted({*booked.offers, *booked.use})
        }

    def hazard_per_h(self, nodes: Iterable[NodeId]) -> float:
        """Return the expected losses of any of `nodes` in an hour, by what was booked;
        0 for nodes of no offer and nodes on demand.
        """
        total = 0.0
        for node_id in nodes:
            node = self.nodes.get(node_id)
            offer = None if node is None else self.offers.get(node.offer)
            if offer is not None:
                use = self.use.get(offer.id, OfferUse())
                total += hazard_per_h(offer, use.num_losses, use.node_s / HOUR_S)
        return total

    def staying(self, offer_id: OfferId) -> list[NodeId]:
        """Return the live nodes of an offer that are to stay, by id."""
        return sorted(
            node_id
            for node_id, node in self.nodes.items()
            if node.offer == offer_id and node_id not in self.leaving
        )

    def pools(self, idle: Callable[[NodeId], bool]) -> tuple[Pool, ...]:
        """Return what is had of each offer, by id. idle: whether no job is
        on a node.
        """
        found = []
        for offer in self.offers.values():
            staying = self.staying(offer.id)
            use = self.use.get(offer.id, OfferUse())
            live = sum(node.offer == offer.id for node in self.nodes.values())
            found.append(
                Pool(
                    offer=offer,
                    num_live=len(staying),
                    num_ordered=self.ordered.get(offer.id, 0),
                    num_leaving=live - len(staying),
                    num_idle=sum(map(idle, staying)),
                    num_losses=use.num_losses,
                    node_hours=use.node_s / HOUR_S,
                )
            )
        return tuple(found)

    def take(
        self,
        wanted: Mapping[OfferId, int],
        held: Mapping[NodeId, float],
        fixed: Collection[NodeId],
        at: float,
    ) -> dict[OfferId, int]:
        """Take an answer: set what is ordered and which nodes leave.

        held: GPUs that jobs hold on each node. fixed: nodes that must stay for a job's
        sake. Returns how many nodes of each offer are to be had in all.
        """
        for offer in self.offers.values():
            count = min(wanted.get(offer.id, 0), offer.most)
            staying = self.staying(offer.id)
            if count > len(staying):
                self._keep(offer.id, count - len(staying))
            else:
                self._drop(offer, len(staying) - count, held, fixed, at)
            missing = max(count - len(self.staying(offer.id)), 0)
            self.ordered[offer.id] = missing
        return self.totals

    def give_back(self, idle: Callable[[NodeId], bool]) -> list[NodeId]:
        """Order the empty nodes to go that leave, and return them; again until they
        are gone. idle: whether no job is on a node.
        """
        going = [
            node_id
            for node_id in sorted(self.leaving)
            if not self.nodes[node_id].noticed and idle(node_id)
        ]
        for node_id in going:
            self.nodes[node_id] = replace(self.nodes[node_id], given_back=True)
        return going

    def _keep(self, offer_id: OfferId, count: int) -> None:
        """Let nodes stay that were to be given back, and were not ordered to go yet."""
        leaving = {node_id: self.nodes[node_id] for node_id in sorted(self.leaving)}
        back = [
            node_id
            for node_id, node in leaving.items()
            if node.offer == offer_id and not (node.noticed or node.given_back)
        ]
        for node_id in back[:count]:
            del self.leaving[node_id]

    def _drop(
        self,
        offer: Offer,
        count: int,
        held: Mapping[NodeId, float],
        fixed: Collection[NodeId],
        at: float,
    ) -> None:
        """Let the nodes leave that are missed least."""
        may_go = [
            node_id
            for node_id in self.staying(offer.id)
            if node_id not in fixed and self._paid_up(node_id, offer, at)
        ]
        may_go.sort(key=lambda node_id: (held.get(node_id, 0.0), node_id))
        for node_id in may_go[:count]:
            self.leaving[node_id] = "is given back"

    def _paid_up(self, node_id: NodeId, offer: Offer, at: float) -> bool:
        """Return whether the billing time of a node is about to end."""
        ahead_s = DECISIONS_BEFORE * self.sizing_s
        if offer.billing_s <= ahead_s:
            return True
        used_s = (at - self.nodes[node_id].since) % offer.billing_s
        return offer.billing_s - used_s <= ahead_s

    def ask_next(self, at: float, *, is_active: bool) -> None:
        """Set when the sizer is asked next; not at all while nothing can change."""
        # The next answer repeats what is to be had, should the last order be lost.
        at_rest = not self.leaving and all(
            len(self.staying(offer.id)) == offer.least
            and not self.ordered.get(offer.id)
            for offer in self.offers.values()
        )
        self.due_at = (
            next_multiple(self.sizing_s, after=at) if is_active or not at_rest else None
        )

    def wake(self, at: float, *, at_once: bool) -> None:
        """Have the sizer asked soon: something came that changes what is wanted."""
        if not self.offers:
            return
        soon = at if at_once else next_multiple(self.sizing_s, after=at, not_before=at)
        self.due_at = soon if self.due_at is None else min(self.due_at, soon)

    @property
    def ask_at(self) -> float | None:
        """When the sizer may be asked next: a question without an answer is waited
        for. None while the size cannot change.
        """
        if self.due_at is None or self.asked_at is None:
            return self.due_at
        return max(self.due_at, self.asked_at + ANSWER_WITHIN_S)

    def is_due(self, at: float) -> bool:
        """Return whether the sizer is to be asked now."""
        ask_at = self.ask_at
        return ask_at is not None and ask_at <= at


def _by_id(offer: Offer) -> OfferId:
    return offer.id
