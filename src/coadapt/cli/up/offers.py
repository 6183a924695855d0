"""The offers of `coadapt up`: those of `coadapt simulate`, without the keys of
simulations only.
"""

from collections.abc import Sequence

from coadapt.model import InputError
from coadapt.model.offer import Offer
from coadapt.sim.market.files import parse_offer

# On a real cluster, losses of nodes and the number of available nodes are observed.
SIMULATED = ("hazard", "notice", "prices", "available")


def live_offers(texts: Sequence[str]) -> tuple[Offer, ...]:
    """Return what `texts` describe. Raises InputError that names the offer."""
    offers = tuple(_live_offer(text) for text in texts)
    names = [offer.id for offer in offers]
    if len(set(names)) < len(names):
        raise InputError("--offer", ", ".join(names), "each name once")
    return offers


def _live_offer(text: str) -> Offer:
    for part in text.split(",")[1:]:
        key = part.strip().partition("=")[0]
        if key in SIMULATED:
            allowed = f"no {key}: it is a key of simulations only"
            raise InputError("--offer", part.strip(), allowed)
    return parse_offer(text).offer
