"""The usual cluster autoscaler: as many GPUs as jobs ask for, fewer after idleness."""

from typing import ClassVar

from coadapt.model.offer import OfferId, Sizing, SizingView
from coadapt.policies.sizers.base import SizerCard
from coadapt.policies.sizers.offers import (
    all_within,
    in_words,
    nodes_for,
    on_one_type,
    types_allowed,
)

# Cluster Autoscaler's default, --scale-down-unneeded-time.
IDLE_S = 600.0


class Demand:
    """Nodes for the GPUs that active jobs request.

    idle_s: a node that is not needed is given back after so long, s.
    """

    card: ClassVar[SizerCard] = SizerCard(
        source="Kubernetes Cluster Autoscaler (the rule of pending pods)",
        decides="Nodes for all GPUs that active jobs request; fewer after a while.",
    )

    def __init__(self, *, idle_s: float = IDLE_S) -> None:
        if idle_s < 0.0:
            raise ValueError(f"idle_s must be >= 0, got {idle_s}")
        self._idle_s = idle_s
        self._unneeded_since: dict[OfferId, float] = {}

    def size(self, view: SizingView) -> Sizing:
        requests = [
            (types_allowed(job), float(job.spec.replicas.requested))
            for job in view.cluster.jobs
        ]
        gpus = on_one_type(view.pools, requests, view.cluster.nodes)
        needed = nodes_for(view.pools, gpus)
        nodes: dict[OfferId, int] = {}
        kept = 0
        for pool in view.pools:
            offer_id = pool.offer.id
            nodes[offer_id] = needed[offer_id]
            if needed[offer_id] >= pool.num_coming:
                self._unneeded_since.pop(offer_id, None)
                continue
            since = self._unneeded_since.setdefault(offer_id, view.at)
            if view.at - since < self._idle_s:
                nodes[offer_id] = pool.num_coming
                kept += pool.num_coming - needed[offer_id]
        nodes = all_within(view.pools, nodes)
        asked = sum(count for _, count in requests)
        reason = f"{in_words(view.pools, nodes)}: jobs request {asked:.0f} GPUs"
        if kept:
            reason += f"; {kept} not needed, given back after {self._idle_s:.0f} s"
        return Sizing(nodes=nodes, reason=reason)
