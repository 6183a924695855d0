"""Autoscaling by throughput: Or, Zhang and Freedman, MLSys 2020 (Pollux's rival,
§5.3.1).
"""

# Or et al. add workers while the throughput that the last ones added, over the mean
# throughput of a worker before, is above a threshold: (R(k + d) - R(k)) / d over
# R(k) / k. The batch grows with the workers, and every sample counts alike, so the
# answer does not change in the course of training: the cluster is large from the start.
# Their threshold is not known to us; the default here is our choice.

from typing import ClassVar

from coadapt.model import JobView
from coadapt.model.offer import Offer, Sizing, SizingView
from coadapt.policies.sizers.base import SizerCard
from coadapt.policies.sizers.curves import best_up_to, is_timed, throughput_curve
from coadapt.policies.sizers.growth import (
    least_gpus,
    most_for,
    offer_for,
    wanted_by_types,
)
from coadapt.policies.sizers.offers import all_within, in_words, nodes_for

THRESHOLD = 0.5


class Throughput:
    """Adds nodes while each brings enough samples per second, for jobs that train
    alone.

    threshold: what a further node must bring, over what a node brings in the mean now.
    """

    card: ClassVar[SizerCard] = SizerCard(
        source="Or, Zhang and Freedman, MLSys 2020",
        decides="Nodes are added while each adds enough throughput.",
    )

    def __init__(self, *, threshold: float = THRESHOLD) -> None:
        if not 0.0 < threshold <= 1.0:
            raise ValueError(f"threshold must be in (0, 1], got {threshold}")
        self._threshold = threshold

    def size(self, view: SizingView) -> Sizing:
        wanted: dict[str, float] = {}
        for job in view.cluster.jobs:
            offer = offer_for(job, view.pools)
            if offer is not None:
                wanted[job.id] = float(self._gpus(job, offer))
        nodes = all_within(
            view.pools, nodes_for(view.pools, wanted_by_types(view, wanted))
        )
        total = sum(wanted.values())
        reason = (
            f"{in_words(view.pools, nodes)}: up to {total:.0f} GPUs each node adds at "
            f"least {self._threshold:.0%} of the throughput of one"
        )
        return Sizing(nodes=nodes, reason=reason)

    def _gpus(self, job: JobView, offer: Offer) -> int:
        least = least_gpus(job)
        if not is_timed(job, offer.gpu_type):
            return max(job.allocation.num_replicas, least)
        most = most_for(job, offer)
        rate_K = best_up_to(throughput_curve(job, offer, most))
        gpus = min(max(offer.num_gpus, least), most)
        while gpus < most:
            more = min(gpus + offer.num_gpus, most)
            gained = (rate_K[more - 1] - rate_K[gpus - 1]) / (more - gpus)
            mean = rate_K[gpus - 1] / gpus
            if mean <= 0.0 or gained < self._threshold * mean:
                break
            gpus = more
        return gpus
