"""Nodes that can be bought: offers, what is had of each, and how many are wanted.

A sizer sees a SizingView and answers with a Sizing. `check_sizing` checks the answer,
as `check_plan` checks that of a policy.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from coadapt.model.cluster import DEFAULT_GPU_TYPE
from coadapt.model.view import ClusterView

OfferId = str

HOUR_S = 3600.0
# What is believed of spot nodes before one was taken away: one loss in 20 node-hours,
# as if that had been seen for 20 hours. Our choice, between the published interruption
# rates of a few percent per month and the hourly losses of scarce types.
SPOT_PRIOR_LOSSES = 1.0
SPOT_PRIOR_HOURS = 20.0


class Market(StrEnum):
    """How a node is bought."""

    ON_DEMAND = "on-demand"  # it stays until it is given back
    SPOT = "spot"  # its owner may take it away


class SizingError(ValueError):
    """An answer of a sizer that breaks an offer's limits. The text says which."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """Nodes of one kind that can be bought."""

    id: OfferId
    num_gpus: int
    """GPUs of one node."""
    price_per_h: float
    """Price of one node for an hour, in the cluster's currency."""
    gpu_type: str = DEFAULT_GPU_TYPE
    market: Market = Market.ON_DEMAND
    provision_s: float = 0.0
    """From the order until the node can run jobs, s."""
    billing_s: float = 0.0
    """A node is paid for in whole multiples of this, s; 0: by the second."""
    least: int = 0
    """Nodes that are always had."""
    most: int = 1
    """Nodes that can be had at once; 0 while there are none."""

    def __post_init__(self) -> None:
        if not self.id:
            raise ValueError("Offer.id must not be empty")
        if self.num_gpus < 1:
            raise ValueError(f"Offer.num_gpus must be >= 1, got {self.num_gpus}")
        for name in ("price_per_h", "provision_s", "billing_s"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 0.0):
                raise ValueError(f"Offer.{name} must be finite and >= 0, got {value}")
        if not 0 <= self.least <= self.most:
            raise ValueError(
                f"Offer {self.id!r}: 0 <= least <= most is needed, "
                f"got {self.least} and {self.most}"
            )

    @property
    def price_per_gpu_h(self) -> float:
        """Price of one GPU for an hour."""
        return self.price_per_h / self.num_gpus

    @property
    def is_spot(self) -> bool:
        return self.market is Market.SPOT


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """What is had of one offer at an instant."""

    offer: Offer
    num_live: int = 0
    """Live nodes that are to stay."""
    num_ordered: int = 0
    """Nodes that were ordered and are not there yet."""
    num_leaving: int = 0
    """Live nodes on which nothing is started any more."""
    num_idle: int = 0
    """Of the live nodes that are to stay, those on which no job holds a GPU."""
    num_losses: int = 0
    """Nodes that their owner took away so far."""
    node_hours: float = 0.0
    """Hours that nodes of this offer were live, summed over nodes."""

    @property
    def num_coming(self) -> int:
        """Nodes that are to stay, with those that were ordered."""
        return self.num_live + self.num_ordered

    @property
    def hazard_per_h(self) -> float:
        """Expected losses of one node in an hour: what was seen, with a prior."""
        return hazard_per_h(self.offer, self.num_losses, self.node_hours)


def hazard_per_h(offer: Offer, num_losses: int, node_hours: float) -> float:
    """Return the expected losses of one node of `offer` in an hour, 0 on demand.

    num_losses: nodes of the offer that were taken away so far. node_hours: hours that
    its nodes were live, summed over nodes.
    """
    if not offer.is_spot:
        return 0.0
    return (SPOT_PRIOR_LOSSES + num_losses) / (SPOT_PRIOR_HOURS + node_hours)


@dataclass(frozen=True, slots=True, kw_only=True)
class SizingView:
    """All that a sizer sees at one instant: the cluster, and each offer by its id."""

    cluster: ClusterView
    pools: tuple[Pool, ...]
    spent: float = 0.0
    """What nodes cost so far, in the cluster's currency."""

    @property
    def at(self) -> float:
        """The instant, s."""
        return self.cluster.at

    @property
    def cost_per_h(self) -> float:
        """What the live and the ordered nodes cost in an hour."""
        return sum(
            (pool.num_coming + pool.num_leaving) * pool.offer.price_per_h
            for pool in self.pools
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizing:
    """Nodes wanted of each offer; none of an offer that is left out. reason: a
    sentence.
    """

    nodes: Mapping[OfferId, int] = field(default_factory=dict)
    reason: str = ""


def check_sizing(view: SizingView, sizing: Sizing) -> None:
    """Raise SizingError unless `sizing` names known offers, within their limits."""
    offers = {pool.offer.id: pool.offer for pool in view.pools}
    for offer_id, count in sizing.nodes.items():
        if offer_id not in offers:
            known = ", ".join(sorted(offers)) or "none"
            raise SizingError(f"offer {offer_id!r} is not known, allowed: {known}")
        if type(count) is not int:
            raise SizingError(
                f"offer {offer_id!r}: a whole number of nodes, got {count!r}"
            )
    for offer in offers.values():
        count = sizing.nodes.get(offer.id, 0)
        if not offer.least <= count <= offer.most:
            raise SizingError(
                f"offer {offer.id!r}: {count} nodes, allowed {offer.least}..{offer.most}"
            )
    if not sizing.reason.strip():
        raise SizingError("the answer gives no reason, a sentence is needed")
