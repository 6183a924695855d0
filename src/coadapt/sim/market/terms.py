"""What is for sale in a run, and how the world behaves about it: values only."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from coadapt.core.instants import next_multiple
from coadapt.model import Node
from coadapt.model.offer import HOUR_S, Offer

# Decisions about the size come as often as rounds do by default, s.
SIZING_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class OfferTerms:
    """An offer, and what the world does with it. Instants and durations in seconds."""

    offer: Offer
    hazard_per_h: float = 0.0
    """Expected losses of a node in an hour; lifetimes are exponential."""
    notice_s: float | None = None
    """Notice before a node is taken away, s; None: no notice."""
    prices: tuple[tuple[float, float], ...] = ()
    """(instant, price of a node for an hour from then on), ascending."""
    available: tuple[tuple[float, int], ...] = ()
    """(instant, nodes that can be had at once from then on), ascending."""

    def __post_init__(self) -> None:
        if not (math.isfinite(self.hazard_per_h) and self.hazard_per_h >= 0.0):
            raise ValueError(f"hazard must be finite and >= 0, got {self.hazard_per_h}")
        if self.notice_s is not None and not self.notice_s >= 0.0:
            raise ValueError(f"notice must be >= 0, got {self.notice_s}")
        for name, steps in (("prices", self.prices), ("available", self.available)):
            instants = [at for at, _ in steps]
            if instants != sorted(set(instants)):
                raise ValueError(f"{name}: instants must ascend, got {instants[:5]}")
            if any(not value >= 0 for _, value in steps):
                raise ValueError(f"{name}: values must be >= 0")

    def price_at(self, at: float) -> float:
        """Return the price of a node for an hour at an instant."""
        price = self.offer.price_per_h
        for since, value in self.prices:
            if since > at:
                break
            price = value
        return price

    def most_at(self, at: float) -> int:
        """Return how many nodes can be had at an instant."""
        most = self.offer.most
        for since, count in self.available:
            if since > at:
                break
            most = min(self.offer.most, count)
        return most

    def offer_at(self, at: float) -> Offer:
        """Return the offer as it is at an instant."""
        most = self.most_at(at)
        return replace(
            self.offer,
            price_per_h=self.price_at(at),
            most=most,
            least=min(self.offer.least, most),
        )

    def used(self, since: float, until: float) -> float:
        """Return the price of a node from `since` to `until`, billing time left out."""
        marks = [since, *(at for at, _ in self.prices if since < at < until), until]
        total = 0.0
        for start, stop in pairwise(marks):
            total += self.price_at(start) * (stop - start)
        return total / HOUR_S

    def rest(self, since: float, until: float) -> float:
        """Return what is paid for the billing time that is left after `until`."""
        if not self.offer.billing_s:
            return 0.0
        lived_s = until - since
        paid_s = next_multiple(
            self.offer.billing_s, after=0.0, not_before=max(lived_s, 0.0)
        )
        return self.price_at(until) * (paid_s - lived_s) / HOUR_S


@dataclass(frozen=True, slots=True, kw_only=True)
class MarketTerms:
    """Offers, the sizer that chooses among them, and the seed of losses."""

    offers: tuple[OfferTerms, ...]
    sizer: str = "castor"
    sizing_s: float = SIZING_S
    seed: int = 0

    def __post_init__(self) -> None:
        names = [each.offer.id for each in self.offers]
        if not names or len(set(names)) < len(names):
            raise ValueError(f"offers: at least one, each name once, got {names}")
        if not self.sizing_s >= 1.0:
            raise ValueError(f"sizing_s must be >= 1, got {self.sizing_s}")

    @property
    def largest(self) -> tuple[Node, ...]:
        """The cluster with all nodes that can ever be had: fair shares refer to it."""
        return nodes_of([each.offer for each in self.offers])


def node_id(offer: Offer, number: int) -> str:
    """Return what the n-th node of an offer is called."""
    return f"{offer.id}-{number:05d}"


def new_node(offer: Offer, number: int) -> Node:
    """Return the n-th node of an offer."""
    return Node(
        id=node_id(offer, number),
        num_gpus=offer.num_gpus,
        gpu_type=offer.gpu_type,
        offer=offer.id,
    )


def nodes_of(offers: Sequence[Offer]) -> tuple[Node, ...]:
    """Return the most nodes of each offer."""
    return tuple(
        new_node(offer, number) for offer in offers for number in range(offer.most)
    )
