"""Pollux's autoscaling of one large job (Qiao et al., OSDI 2021, §5.3.1)."""

# The rule of the paper. Goodput per GPU falls as GPUs are added, and rises in the
# course of training, as the noise scale and with it the useful batch grow. While
# goodput(a) / GPUs(a) is above U x goodput(1 GPU), nodes are added, up to the number at
# which the ratio is L. It only grows: the paper calls the rule preliminary. Several
# jobs are each sized alone.

from typing import ClassVar

import numpy as np

from coadapt.model import JobView
from coadapt.model.offer import Offer, Sizing, SizingView
from coadapt.policies.sizers.base import SizerCard
from coadapt.policies.sizers.curves import (
    FloatArray,
    best_up_to,
    goodput_curve,
    is_timed,
)
from coadapt.policies.sizers.growth import (
    least_gpus,
    most_for,
    offer_for,
    wanted_by_types,
)
from coadapt.policies.sizers.offers import all_within, in_words, nodes_for

UPPER = 2.0 / 3.0  # U of the paper
LOWER = 1.0 / 2.0  # L of the paper


class PolluxJob:
    """Adds nodes while a job's goodput per GPU stays high, for jobs that train alone.

    upper: nodes are added above this part of the goodput on one GPU, per GPU. lower:
    up to as many as keep this part.
    """

    card: ClassVar[SizerCard] = SizerCard(
        source="Qiao et al., Pollux, OSDI 2021, §5.3.1",
        decides="Nodes are added while goodput per GPU is high; none is given back.",
    )

    def __init__(self, *, upper: float = UPPER, lower: float = LOWER) -> None:
        if not 0.0 < lower <= upper <= 1.0:
            raise ValueError(
                f"0 < lower <= upper <= 1 is needed, got lower {lower}, upper {upper}"
            )
        self._upper = upper
        self._lower = lower

    def size(self, view: SizingView) -> Sizing:
        wanted: dict[str, float] = {}
        ratios: list[float] = []
        for job in view.cluster.jobs:
            offer = offer_for(job, view.pools)
            if offer is None:
                continue
            gpus, ratio = self._gpus(job, offer)
            wanted[job.id] = gpus
            if ratio is not None:
                ratios.append(ratio)
        nodes = nodes_for(view.pools, wanted_by_types(view, wanted))
        if view.cluster.jobs:
            nodes = {
                pool.offer.id: max(nodes[pool.offer.id], pool.num_coming)
                for pool in view.pools
            }
        nodes = all_within(view.pools, nodes)
        reason = in_words(view.pools, nodes)
        if ratios:
            share = min(ratios)
            reason += f": a GPU has {share:.0%} of the goodput that one alone has"
        else:
            reason += ": no job was timed yet" if wanted else ": no job needs any"
        return Sizing(nodes=nodes, reason=reason)

    def _gpus(self, job: JobView, offer: Offer) -> tuple[float, float | None]:
        """Return the GPUs that the job is to have, and the ratio on those
        that it has.
        """
        least = least_gpus(job)
        held = max(job.allocation.num_replicas, least)
        if not is_timed(job, offer.gpu_type):
            return float(held), None
        most = max(most_for(job, offer), held)
        ratio_K = per_gpu(goodput_curve(job, offer, most), least)
        now = float(ratio_K[held - 1])
        if now <= self._upper:
            return float(held), now
        enough = np.flatnonzero(ratio_K >= self._lower)
        target = int(enough[-1]) + 1 if enough.size else held
        return float(max(target, held)), now


def per_gpu(curve_K: FloatArray, least: int) -> FloatArray:
    """Return value per GPU on 1, 2, ... GPUs over that on the fewest that
    are allowed.
    """
    alone = float(curve_K[least - 1]) / least
    num_gpus_K = np.arange(1, len(curve_K) + 1)
    if alone <= 0.0:
        return np.zeros(len(curve_K))
    return best_up_to(curve_K) / num_gpus_K / alone
