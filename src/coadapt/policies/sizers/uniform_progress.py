"""Uniform Progress: spot nodes under a deadline (Wu et al., NSDI 2024)."""

# The rules of the paper, for a job that computes for C0 on its nodes and has R0 up to
# its deadline. ep(t) = t C0 / R0 is the progress of a uniform pace, cp(t) the one made,
# d the time that a change of nodes costs.
#
#   Thrifty: nothing is had once the job has ended.
#   Safety net: an idle job with R(t) < C(t) + 2 d left goes on demand up to its end.
#   Exploitation: a job on spot nodes stays there until they are taken away.
#   Uniform progress: an idle job that is behind ep(t) goes on demand.
#   Taking risks: a job goes to spot nodes where they can be had, even if it is behind.
#   Hysteresis: a job on demand stays there until cp(t) >= ep(t + 2 d).
#
# A job of several nodes has all of them of one market (the paper's polarization). Its
# number of nodes is fixed: those that it requests. The paper knows C0; here it is the
# progress that is left over the goodput on these GPUs, so a job that was never timed
# goes to spot nodes if it can, and on demand otherwise.
#
# With C known, the safety net holds up to the end, since on demand R - C stays as it
# is. Here C is a forecast, so the rule is looked at again at each decision. (A job
# whose first forecast was 10 % too long stayed on demand for 48 hours, although spot
# nodes were there for most of them.)
#
# With `elastic`, which is not in the paper, a job on spot nodes has the number of GPUs
# on which it trains fastest, as far as its progress costs no more there than on the
# on-demand GPUs that it requests. All other rules stay as they are.

from collections.abc import Mapping, Sequence
from typing import ClassVar

import numpy as np

from coadapt.model import JobId, JobView
from coadapt.model.offer import Market, Pool, Sizing, SizingView
from coadapt.policies.sizers.base import SizerCard
from coadapt.policies.sizers.curves import (
    best_up_to,
    goodput_curve,
    is_timed,
    progress_left,
)
from coadapt.policies.sizers.growth import most_for, offer_for
from coadapt.policies.sizers.offers import (
    all_within,
    cheapest_first,
    in_words,
    nodes_for,
    on_one_type,
    types_allowed,
)


class UniformProgress:
    """Spot nodes while they can be had, on-demand ones for jobs behind a uniform pace.

    decision_s: how often the sizer is asked; a job may be late by as much, s. elastic:
    whether a job has more GPUs than it requests while spot nodes can be had.
    """

    card: ClassVar[SizerCard] = SizerCard(
        source="Wu et al., Can't Be Late, NSDI 2024",
        decides="Spot nodes; on-demand ones while a job is behind a uniform pace.",
    )

    def __init__(self, *, decision_s: float = 60.0, elastic: bool = False) -> None:
        if not decision_s >= 0.0:
            raise ValueError(f"decision_s must be >= 0, got {decision_s}")
        self._decision_s = decision_s
        self._elastic = elastic
        self._markets: dict[JobId, Market] = {}

    def size(self, view: SizingView) -> Sizing:
        wanted: dict[Market, list[tuple[tuple[str, ...], float]]] = {
            market: [] for market in Market
        }
        chosen: dict[JobId, Market] = {}
        for job in view.cluster.jobs:
            market = self._market(job, view)
            if market is None:
                continue
            chosen[job.id] = market
            gpus = job.spec.replicas.requested
            if self._elastic and market is Market.SPOT:
                gpus = _most_on_spot(job, view.pools)
            wanted[market].append((types_allowed(job), float(gpus)))
        self._markets = chosen
        return _sizing(view, wanted, chosen)

    def _market(self, job: JobView, view: SizingView) -> Market | None:
        """Return the market that the job is to be in now; None: it waits."""
        has_spot = _fits(job, [pool for pool in view.pools if pool.offer.is_spot])
        usual = Market.SPOT if has_spot else Market.ON_DEMAND
        offer = offer_for(job, view.pools)
        due_at = job.spec.deadline_at
        left = progress_left(job)
        if offer is None or due_at is None or left is None:
            return usual
        if not is_timed(job, offer.gpu_type):
            return usual
        requested = job.spec.replicas.requested
        goodput = float(goodput_curve(job, offer, requested)[-1])
        if goodput <= 0.0:
            return usual
        left_s = left / goodput
        done_s = job.measured.progress / goodput
        change_s = job.rescale_s + offer.provision_s
        before = self._markets.get(job.id)
        runs_on_spot = before is Market.SPOT and has_spot
        time_s = due_at - view.at
        unsafe = time_s < left_s + 2.0 * change_s + self._decision_s
        if unsafe and not runs_on_spot:
            return Market.ON_DEMAND
        pace = (left_s + done_s) / (due_at - job.submitted_at)
        age_s = view.at - job.submitted_at
        stays = done_s < pace * (age_s + 2.0 * change_s)
        if before is Market.ON_DEMAND and stays:
            return Market.ON_DEMAND
        if has_spot:
            return Market.SPOT
        return Market.ON_DEMAND if done_s < pace * age_s else None


def _fits(job: JobView, spot: Sequence[Pool]) -> bool:
    """Return whether there are spot nodes for all GPUs that the job requests."""
    gpus = sum(
        pool.offer.most * pool.offer.num_gpus
        for pool in spot
        if job.spec.replicas.allows_type(pool.offer.gpu_type)
    )
    return gpus >= job.spec.replicas.requested


def _most_on_spot(job: JobView, pools: Sequence[Pool]) -> int:
    """Return on how many spot GPUs the job trains fastest, where its progress costs no
    more than on the on-demand GPUs that it requests; these, before it was timed.
    """
    requested = job.spec.replicas.requested
    allowed = [
        pool.offer
        for pool in cheapest_first(pools)
        if job.spec.replicas.allows_type(pool.offer.gpu_type)
        and is_timed(job, pool.offer.gpu_type)
    ]
    spot = next((each for each in allowed if each.is_spot and each.most), None)
    firm = next((each for each in allowed if not each.is_spot), None)
    if spot is None or firm is None:
        return requested
    curve_K = best_up_to(goodput_curve(job, spot, most_for(job, spot)))
    usual = float(goodput_curve(job, firm, requested)[-1])
    num_gpus_K = np.arange(1, len(curve_K) + 1)
    # Progress per coin on spot GPUs, over that on demand.
    cheaper_K = curve_K * firm.price_per_gpu_h * requested >= (
        usual * spot.price_per_gpu_h * num_gpus_K
    )
    fastest = int(np.where(cheaper_K, curve_K, 0.0).argmax()) + 1
    return max(fastest, requested)


def _sizing(
    view: SizingView,
    wanted: Mapping[Market, Sequence[tuple[tuple[str, ...], float]]],
    chosen: Mapping[JobId, Market],
) -> Sizing:
    nodes: dict[str, int] = {}
    for market, requests in wanted.items():
        pools = [pool for pool in view.pools if pool.offer.market is market]
        nodes |= nodes_for(pools, on_one_type(pools, requests, view.cluster.nodes))
    nodes = all_within(view.pools, nodes)
    counts = {market: list(chosen.values()).count(market) for market in Market}
    waiting = len(view.cluster.jobs) - len(chosen)
    reason = (
        f"{in_words(view.pools, nodes)}: jobs on spot nodes {counts[Market.SPOT]}, "
        f"on demand {counts[Market.ON_DEMAND]}, waiting for spot nodes {waiting}"
    )
    return Sizing(nodes=nodes, reason=reason)
