"""A cluster of one size: the baseline that every other sizer is compared with."""

from typing import ClassVar

from coadapt.model.offer import Sizing, SizingView
from coadapt.policies.sizers.base import SizerCard
from coadapt.policies.sizers.offers import all_within, cheapest_first, in_words

ALL = -1


class Fixed:
    """Always the same number of nodes, of the cheapest offers first.

    nodes: how many; -1: all that the offers have. spot: whether spot nodes count.
    """

    card: ClassVar[SizerCard] = SizerCard(
        source="-", decides="The same number of nodes, whatever runs or waits."
    )

    def __init__(self, *, nodes: int = ALL, spot: bool = True) -> None:
        if nodes < ALL:
            raise ValueError(f"nodes must be >= -1, got {nodes}")
        self._nodes = nodes
        self._spot = spot

    def size(self, view: SizingView) -> Sizing:
        usable = [pool for pool in view.pools if self._spot or not pool.offer.is_spot]
        left = self._nodes
        found: dict[str, int] = {}
        for pool in cheapest_first(usable):
            count = pool.offer.most if left == ALL else min(left, pool.offer.most)
            found[pool.offer.id] = count
            left = ALL if left == ALL else left - count
        nodes = all_within(view.pools, found)
        return Sizing(
            nodes=nodes, reason=f"{in_words(view.pools, nodes)}: the size is fixed"
        )
