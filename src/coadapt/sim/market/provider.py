"""The simulated cloud: brings nodes after a while, takes spot nodes away, keeps the
bill.

Its own ledger is apart from the core's books, so that a test can compare the two.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from coadapt.core.commands import BuyNodes, GiveBack
from coadapt.core.events import NodeNoticed, OfferChanged, OffersConfigured
from coadapt.model import Node, NodeId
from coadapt.model.offer import HOUR_S, OfferId
from coadapt.runtime.ports import Cancel, Clock, Post
from coadapt.sim.market.terms import MarketTerms, OfferTerms, new_node

# Adds or removes a node of the world; the second also gets why it goes.
AddNode = Callable[[Node, Post], None]
RemoveNode = Callable[[NodeId, Post, str], None]

GIVEN_BACK = "was given back"
TAKEN_AWAY = "was taken away by its owner"


@dataclass(slots=True, kw_only=True)
class NodeLife:
    """One node on the bill. Instants in s; left_at None: it is live.

    taken: whether its owner took it away. cost: what is paid for it. used: the part of
    that for the time in which it was live. Both are 0 until it left.
    """

    node: Node
    joined_at: float
    left_at: float | None = None
    taken: bool = False
    cost: float = 0.0
    used: float = 0.0

    def leave(self, at: float, terms: OfferTerms) -> None:
        """Put the node's whole life on the bill."""
        self.left_at = at
        self.used = terms.used(self.joined_at, at)
        self.cost = self.used + terms.rest(self.joined_at, at)


@dataclass(slots=True, kw_only=True)
class _Stock:
    """One offer: orders that have not come, and live nodes in the order of coming."""

    terms: OfferTerms
    pending: list[Cancel] = field(default_factory=list)
    """Orders under way; they are taken back from the end."""
    live: dict[NodeId, NodeLife] = field(default_factory=dict)
    target: int = 0
    num_made: int = 0


class Provider:
    """The port of nodes for sale, over a virtual clock."""

    def __init__(
        self, clock: Clock, terms: MarketTerms, add: AddNode, remove: RemoveNode
    ) -> None:
        self.lives: list[NodeLife] = []
        self._clock = clock
        self._terms = terms
        self._add = add
        self._remove = remove
        self._rng = np.random.default_rng((terms.seed, 50))
        self._stocks: dict[OfferId, _Stock] = {
            each.offer.id: _Stock(terms=each) for each in terms.offers
        }
        self._ends: dict[NodeId, list[Cancel]] = {}
        self._bought_by = 0

    def open(self, post: Post) -> None:
        """Post the offers, and set alarms for all changes of price and number."""
        now = self._clock.now()
        offers = tuple(each.offer_at(now) for each in self._terms.offers)
        self._change_later(post)
        post(OffersConfigured(at=now, offers=offers, sizing_s=self._terms.sizing_s))

    def buy(self, command: BuyNodes, post: Post) -> None:
        """Have as many nodes of each offer as the command says, those
        ordered included. An order that a later one has overtaken counts for nothing.
        """
        if command.number < self._bought_by:
            return
        self._bought_by = command.number
        for offer_id, count in command.nodes.items():
            stock = self._stocks[offer_id]
            stock.target = count
            while stock.pending and len(stock.live) + len(stock.pending) > count:
                stock.pending.pop()()
            self._order(stock, post)

    def give_back(self, command: GiveBack, post: Post) -> None:
        """Take a node back that is not needed; one that is gone already is
        no matter.
        """
        for stock in self._stocks.values():
            if command.node in stock.live:
                stock.target = max(stock.target - 1, 0)
                self._leave(stock, command.node, GIVEN_BACK, post)
                return

    def close(self, at: float) -> tuple[NodeLife, ...]:
        """Return the whole bill with all nodes given back at `at`."""
        for stock in self._stocks.values():
            for life in stock.live.values():
                life.leave(at, stock.terms)
            stock.live.clear()
        return tuple(self.lives)

    def take(self, offer_id: OfferId, notice_s: float, post: Post) -> NodeId | None:
        """Take the oldest live node of an offer away, after a notice of `notice_s` (s;
        0: without one). Return its name, None if there is none.
        """
        stock = self._stocks[offer_id]
        node = next(iter(stock.live), None)
        if node is None:
            return None
        gone_at = self._clock.now() + notice_s
        if notice_s:
            self._notice(node, gone_at, post)
        ends = self._ends.setdefault(node, [])
        take = partial(self._take, stock, node, post)
        ends.append(self._clock.call_at(gone_at, take))
        return node

    def cost_at(self, at: float) -> float:
        """Return what nodes cost up to an instant: of live ones without the rest of
        their billing time.
        """
        left = sum(life.cost for life in self.lives if life.left_at is not None)
        live = sum(
            stock.terms.used(life.joined_at, at)
            for stock in self._stocks.values()
            for life in stock.live.values()
        )
        return left + live

    def num_live(self, offer_id: OfferId) -> int:
        """Return how many nodes of an offer are live."""
        return len(self._stocks[offer_id].live)

    def num_coming(self, offer_id: OfferId) -> int:
        """Return how many nodes of an offer are live or ordered."""
        return self.num_live(offer_id) + len(self._stocks[offer_id].pending)

    def is_least(self, offer_id: OfferId) -> bool:
        """Return whether no more nodes of an offer are had than always are."""
        stock = self._stocks[offer_id]
        least = stock.terms.offer_at(self._clock.now()).least
        return not stock.pending and len(stock.live) == least

    def _order(self, stock: _Stock, post: Post) -> None:
        now = self._clock.now()
        room = stock.terms.most_at(now)
        while len(stock.live) + len(stock.pending) < min(stock.target, room):
            node = new_node(stock.terms.offer, stock.num_made)
            stock.num_made += 1
            ready_at = now + stock.terms.offer.provision_s
            # The cancel function is known only after the call, the callback needs it.
            handle: list[Cancel] = []
            cancel = self._clock.call_at(
                ready_at, partial(self._come, stock, node, handle, post)
            )
            handle.append(cancel)
            stock.pending.append(cancel)

    def _come(
        self, stock: _Stock, node: Node, handle: list[Cancel], post: Post
    ) -> None:
        stock.pending.remove(handle[0])
        now = self._clock.now()
        life = NodeLife(node=node, joined_at=now)
        stock.live[node.id] = life
        self.lives.append(life)
        if stock.terms.hazard_per_h > 0.0:
            lifetime_s = HOUR_S * float(
                self._rng.exponential(1.0 / stock.terms.hazard_per_h)
            )
            self._take_at(stock, node.id, now + lifetime_s, post)
        self._add(node, post)

    def _take_at(self, stock: _Stock, node: NodeId, gone_at: float, post: Post) -> None:
        now = self._clock.now()
        ends = self._ends.setdefault(node, [])
        notice_s = stock.terms.notice_s
        if notice_s is not None:
            noticed_at = max(gone_at - notice_s, now)
            notice = partial(self._notice, node, gone_at, post)
            ends.append(self._clock.call_at(noticed_at, notice))
        take = partial(self._take, stock, node, post)
        ends.append(self._clock.call_at(gone_at, take))

    def _notice(self, node: NodeId, gone_at: float, post: Post) -> None:
        post(NodeNoticed(at=self._clock.now(), node=node, gone_at=gone_at))

    def _take(self, stock: _Stock, node: NodeId, post: Post) -> None:
        if node in stock.live:
            stock.live[node].taken = True
            stock.target = max(stock.target - 1, 0)
            self._leave(stock, node, TAKEN_AWAY, post)

    def _leave(self, stock: _Stock, node: NodeId, why: str, post: Post) -> None:
        life = stock.live.pop(node)
        life.leave(self._clock.now(), stock.terms)
        for cancel in self._ends.pop(node, ()):
            cancel()
        self._remove(node, post, why)

    def _change_later(self, post: Post) -> None:
        for stock in self._stocks.values():
            steps = [*stock.terms.prices, *stock.terms.available]
            for at in sorted({at for at, _ in steps}):
                if at > self._clock.now():
                    self._clock.call_at(at, partial(self._change, stock, post))

    def _change(self, stock: _Stock, post: Post) -> None:
        now = self._clock.now()
        offer = stock.terms.offer_at(now)
        post(OfferChanged(at=now, offer=offer))
        while stock.pending and len(stock.live) + len(stock.pending) > offer.most:
            stock.pending.pop()()
        # The latest come is the first to go.
        surplus = list(stock.live)[offer.most :]
        for node in surplus:
            if stock.terms.notice_s:
                self._take_at(stock, node, now + stock.terms.notice_s, post)
            else:
                self._take(stock, node, post)
        self._order(stock, post)
