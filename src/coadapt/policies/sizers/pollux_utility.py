"""Pollux's autoscaling of a cluster: a band for the mean speedup per GPU (its
artifact).
"""

# UTILITY(n) = sum over jobs of speedup / GPUs of n nodes, in (0, 1], a speedup being
# the goodput of a job over that on one GPU. Averaged over some decisions, it is to stay
# between `low` and `high`; where it leaves the band, the number of nodes is wanted
# whose utility is nearest the middle. The authors' code asks its genetic search for the
# speedups at each number of nodes, and as shipped fails on the way; here they come from
# Pollux's objective with p = -1 on whole GPUs, which is solved exactly: the cost 1/S of
# each job falls by less with every GPU, so that the GPU that lowers the sum most is
# next.

import heapq
from collections import deque
from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from coadapt.model import JobView
from coadapt.model.offer import Sizing, SizingView
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

# The artifact's band, and over how many decisions it averages.
LOW = 0.35
HIGH = 0.65
NUM_AVERAGED = 15


class PolluxUtility:
    """Keeps the mean speedup per GPU of the cluster within a band.

    low, high: the band. averaged: decisions over which the utility is averaged, and
    between two changes.
    """

    card: ClassVar[SizerCard] = SizerCard(
        source="Qiao et al., Pollux, OSDI 2021, the authors' simulator",
        decides="Nodes are added and given back so that utility stays within a band.",
    )

    def __init__(
        self, *, low: float = LOW, high: float = HIGH, averaged: int = NUM_AVERAGED
    ) -> None:
        if not 0.0 < low < high <= 1.0:
            raise ValueError(f"0 < low < high <= 1 is needed, got {low} and {high}")
        if averaged < 1:
            raise ValueError(f"averaged must be >= 1, got {averaged}")
        self._low = low
        self._high = high
        self._seen: deque[float] = deque(maxlen=averaged)

    def size(self, view: SizingView) -> Sizing:
        jobs = [job for job in view.cluster.jobs if offer_for(job, view.pools)]
        if not jobs:
            self._seen.clear()
            nodes = all_within(view.pools, {})
            return Sizing(
                nodes=nodes, reason=f"{in_words(view.pools, nodes)}: no job needs any"
            )
        speedups = [self._speedup(job, view) for job in jobs]
        coming = {pool.offer.id: pool.num_coming for pool in view.pools}
        # A job that cannot run on what there is needs a first node, band or no band.
        first = nodes_for(
            view.pools,
            wanted_by_types(view, {jobs[0].id: float(least_gpus(jobs[0]))}),
        )
        kept = {name: max(count, coming[name]) for name, count in first.items()}
        nodes = all_within(view.pools, kept)
        num_gpus = sum(
            pool.offer.num_gpus * coming[pool.offer.id] for pool in view.pools
        )
        if not num_gpus:
            return Sizing(
                nodes=nodes, reason=f"{in_words(view.pools, nodes)}: a first job waits"
            )
        utility = _utility(speedups, num_gpus)
        self._seen.append(utility)
        mean = sum(self._seen) / len(self._seen)
        words = f"utility {mean:.2f}, wanted {self._low:.2f} to {self._high:.2f}"
        full = len(self._seen) == self._seen.maxlen
        if full and not self._low <= mean <= self._high:
            nodes = self._nearest(view, jobs, speedups)
            self._seen.clear()
        return Sizing(nodes=nodes, reason=f"{in_words(view.pools, nodes)}: {words}")

    def _nearest(
        self, view: SizingView, jobs: Sequence[JobView], speedups: Sequence[FloatArray]
    ) -> dict[str, int]:
        """Return the nodes at which utility is nearest the middle of the band, the
        fewest.
        """
        middle = (self._low + self._high) / 2.0
        usable = sum(len(each) for each in speedups)
        total_gpus = sum(pool.offer.num_gpus * pool.offer.most for pool in view.pools)
        best: dict[str, int] = {}
        best_gap = np.inf
        tried: list[dict[str, int]] = []
        for num_gpus in range(1, min(usable, total_gpus) + 1):
            share = {job.id: num_gpus / len(jobs) for job in jobs}
            nodes = all_within(
                view.pools, nodes_for(view.pools, wanted_by_types(view, share))
            )
            if tried and nodes == tried[-1]:
                continue
            tried.append(nodes)
            there = sum(
                pool.offer.num_gpus * nodes[pool.offer.id] for pool in view.pools
            )
            gap = abs(_utility(speedups, there) - middle) if there else np.inf
            if gap < best_gap:
                best = nodes
                best_gap = gap
        return best or all_within(view.pools, {})

    def _speedup(self, job: JobView, view: SizingView) -> FloatArray:
        """Return goodput on 1, 2, ... GPUs over that on one; 1 while it is
        not timed.
        """
        offer = offer_for(job, view.pools)
        assert offer is not None
        least = least_gpus(job)
        if not is_timed(job, offer.gpu_type):
            return np.ones(least)
        curve_K = best_up_to(goodput_curve(job, offer, most_for(job, offer)))
        alone = curve_K[least - 1] / least
        if alone <= 0.0:
            return np.ones(least)
        found: FloatArray = curve_K / alone
        found[: least - 1] = 0.0
        return found


def _utility(speedups: Sequence[FloatArray], num_gpus: int) -> float:
    """Return the sum of speedups on `num_gpus` GPUs under Pollux's
    objective, per GPU.
    """
    given = [0] * len(speedups)
    left = num_gpus
    heap: list[tuple[float, int]] = []
    for index, speedup_K in enumerate(speedups):
        first = int(np.flatnonzero(speedup_K > 0.0)[0]) + 1
        if first <= left:
            given[index] = first
            left -= first
            heapq.heappush(heap, (-_gain(speedup_K, first), index))
    while left and heap:
        negative, index = heapq.heappop(heap)
        if negative >= 0.0:
            break
        given[index] += 1
        left -= 1
        heapq.heappush(heap, (-_gain(speedups[index], given[index]), index))
    total = sum(
        float(speedup_K[count - 1])
        for speedup_K, count in zip(speedups, given, strict=True)
        if count
    )
    return total / num_gpus


def _gain(speedup_K: FloatArray, count: int) -> float:
    """Return by how much one GPU more lowers 1/S."""
    if count >= len(speedup_K):
        return 0.0
    return float(1.0 / speedup_K[count - 1] - 1.0 / speedup_K[count])
