"""castor's sizer: buys a node where the time that it saves is worth more than its
price.
"""

# The rule. With nodes for sale no job has to wait for another, so that each job has its
# own best number of GPUs. Let V be what an hour of its completion is worth, p the price
# of a GPU for an hour, W the progress that is left and g(k) its goodput on k GPUs. On k
# GPUs it ends after W / g(k) and costs p k W / g(k), so that
#
#     k* = argmin (V + p k) / g(k),
#
# which does not depend on W. With V = 0 that is the cheapest progress, mostly one GPU;
# the larger V, the wider the job. As the noise scale grows, g grows at large k, and k*
# with it. GPU types compare by the same figure.
#
# On spot GPUs g(k) counts without what is lost: the work since the last checkpoint, the
# restart, and the checkpoints themselves (model/checkpoint_period.py). The hazard
# grows with the nodes of a job, so that a wide job loses more.
#
# A deadline asks for at least the fewest GPUs that meet it, on demand. Where spot nodes
# are for sale as well, the job trains on many spot GPUs while they can be had, and on
# few on-demand ones, or none, while they cannot: pace.py has the rule.
#
# A budget per hour, or in total, raises p by a common factor until what is wanted fits
# it: at that factor each coin buys the same saving for every job, which is the most
# saving per coin.
#
# What is wanted is compared with what is there. A change is made where it pays: nodes
# come only after they are provisioned, jobs pay a rescale, and a job that ends before
# is not worth a node. The last node of a type, if jobs would not fill it, is bought
# where the time that it saves is worth more than the whole node.

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from coadapt.model import JobView
from coadapt.model.checkpoint_period import SAVE_DEFAULT_S, kept_share
from coadapt.model.measured import SAVE_S
from coadapt.model.offer import HOUR_S, OfferId, Pool, Sizing, SizingView
from coadapt.model.tenant import EVERYBODY, value_of_time
from coadapt.policies.sizers.base import SizerCard
from coadapt.policies.sizers.curves import (
    FloatArray,
    best_up_to,
    goodput_curve,
    is_timed,
    progress_left,
)
from coadapt.policies.sizers.growth import least_gpus, most_for
from coadapt.policies.sizers.offers import (
    all_within,
    cheapest_first,
    gpus_by_type,
    in_words,
    nodes_for,
)
from coadapt.policies.sizers.pace import Availability, Pace, cheapest_pace

# Of a job of unknown length as much is left as it has trained, at least this long.
LEFT_MIN_S = 600.0
# A restart by default, where no job is asked about, s.
RESCALE_S = 30.0
# A price is raised at most so far: what is wanted then is the least that jobs may have.
PRICE_FACTOR_MAX = 1e6
NUM_BISECTIONS = 40
# A total budget must pay for what is bought for so long, or it is not bought.
AHEAD_S = 900.0
# Part of the time up to a deadline that is kept in hand.
MARGIN = 0.1
# With spot nodes for sale: this part, so many changes of nodes, and so many seconds.
# All is computed again at each decision, which makes up for errors of the forecast.
PACE_MARGIN = 0.03
CHANGES_IN_HAND = 3.0
IN_HAND_S = 900.0
# A number of GPUs is kept while the planned one is between these parts of it: a change
# costs a rescale.
KEPT_FROM = 0.45
KEPT_TO = 1.1


@dataclass(frozen=True, slots=True, kw_only=True)
class _Option:
    """A job on the GPU type of an offer, as far as it does not depend on prices.

    whole_K: its goodput on 1..K GPUs. curve_K: the same, less the expected loss of work
    when nodes are lost. left: the rest of its progress. value: the worth of an hour of
    its completion time. due_gpus: the fewest GPUs that meet its deadline, 0 if it has
    none.
    """

    job: JobView
    pool: Pool
    whole_K: FloatArray
    curve_K: FloatArray
    left: float
    value: float
    due_gpus: int
    is_timed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class _Choice:
    """A job on one GPU type: its goodput on 1..K GPUs, and what is left of it.

    value: of an hour of its completion time. price: of a GPU-hour. least_gpus: that it
    must have. gpus: that it is to have.
    urgent: whether a deadline asks for more than its value of time does, on demand.
    paced: whether the GPUs follow from a deadline and the spot nodes of the moment.
    """

    job: JobView
    gpu_type: str
    curve_K: FloatArray
    value: float
    price: float
    left: float
    least_gpus: int
    gpus: int
    urgent: bool = False
    paced: bool = False

    def hours(self, gpus: int) -> float:
        """Return the hours up to its end on so many GPUs; infinity on none."""
        if gpus < 1:
            return math.inf
        goodput = float(self.curve_K[min(gpus, len(self.curve_K)) - 1])
        return self.left / goodput / HOUR_S if goodput > 0.0 else math.inf


class CastorSizer:
    """Buys the GPUs whose saving of completion time is worth more than their price.

    value_of_time: what an hour of a job's completion is worth, in the currency of the
    prices, where its tenant sets none. budget_per_h: the most that nodes may cost in an
    hour. budget: the most that they may cost in total. deadlines: whether jobs'
    deadlines are met. spot: whether spot nodes are bought.
    """

    card: ClassVar[SizerCard] = SizerCard(
        source="this project",
        decides="Each job's GPUs minimise (value of time + price x GPUs) / goodput.",
    )

    def __init__(
        self,
        *,
        value_of_time: float = 1.0,
        budget_per_h: float | None = None,
        budget: float | None = None,
        deadlines: bool = True,
        spot: bool = True,
    ) -> None:
        if not (math.isfinite(value_of_time) and value_of_time >= 0.0):
            raise ValueError(
                f"value_of_time must be finite and >= 0, got {value_of_time}"
            )
        for name, limit in (("budget_per_h", budget_per_h), ("budget", budget)):
            if limit is not None and not limit >= 0.0:
                raise ValueError(f"{name} must be >= 0, got {limit}")
        self._value = value_of_time
        self._budget_per_h = budget_per_h
        self._budget = budget
        self._deadlines = deadlines
        self._spot = spot
        self._availability: dict[OfferId, Availability] = {}

    def size(self, view: SizingView) -> Sizing:
        self._see(view)
        pools = [
            pool
            for pool in view.pools
            if pool.offer.most and (self._spot or not pool.offer.is_spot)
        ]
        room = gpus_by_type(pools, view.cluster.nodes, lambda offer: offer.most)
        options = [
            self._options_of(job, view, pools, room) for job in view.cluster.jobs
        ]
        options = [each for each in options if each]
        factor = self._price_factor(view, pools, options)
        choices = self._choices(view, pools, options, factor)
        nodes = self._nodes(view, pools, choices)
        kept = self._if_it_pays(view, nodes, choices, factor)
        changed = kept != nodes
        nodes = self._within_budget(view, kept)
        reason = f"{in_words(view.pools, nodes)}: "
        if not choices:
            return Sizing(nodes=nodes, reason=reason + "no job needs any")
        gpus = sum(each.gpus for each in choices)
        words = (
            f"{len(choices)} jobs are worth {gpus} GPUs at {_values(choices)} an hour"
        )
        if factor > 1.0:
            words = f"the budget pays for {gpus} GPUs of {len(choices)} jobs"
        if any(each.urgent for each in choices):
            words += ", deadlines included"
        if changed:
            words += "; a change does not pay yet"
        return Sizing(nodes=nodes, reason=reason + words)

    def _value_of(self, job: JobView, view: SizingView) -> float:
        """Return the worth of an hour of the job's completion time: its tenant's, else
        that of all tenants, else the sizer's.
        """
        names = (job.spec.tenant, EVERYBODY)
        found = value_of_time(map(view.cluster.tenant, names))
        return self._value if found is None else found[1]

    def _see(self, view: SizingView) -> None:
        """Note which spot offers can be had now."""
        for pool in view.pools:
            if pool.offer.is_spot:
                seen = self._availability.setdefault(pool.offer.id, Availability())
                seen.see(view.at, is_there=pool.offer.most > 0)

    # -- GPUs of each job

    def _options_of(
        self,
        job: JobView,
        view: SizingView,
        pools: Sequence[Pool],
        room: Mapping[str, float],
    ) -> list[_Option]:
        """Return the job on each GPU type that it may have; before it was timed, on the
        cheapest only. room: GPUs of each type that can be had.
        """
        best_of_type: dict[str, Pool] = {}
        for pool in cheapest_first(pools, spot_price):
            best_of_type.setdefault(pool.offer.gpu_type, pool)
        allowed = {
            gpu_type: pool
            for gpu_type, pool in best_of_type.items()
            if job.spec.replicas.allows_type(gpu_type)
        }
        roomy = {
            gpu_type: pool
            for gpu_type, pool in allowed.items()
            if room[gpu_type] >= least_gpus(job)
        }
        allowed = roomy or allowed
        timed = [pool for name, pool in allowed.items() if is_timed(job, name)]
        chosen = timed or list(allowed.values())[:1]
        return [self._option(job, view, pool) for pool in chosen]

    def _option(self, job: JobView, view: SizingView, pool: Pool) -> _Option:
        most = most_for(job, pool.offer)
        whole_K = best_up_to(goodput_curve(job, pool.offer, most))
        curve_K = best_up_to(whole_K * kept_shares(job, pool, most))
        left = _left(job, view.at, curve_K)
        return _Option(
            job=job,
            pool=pool,
            whole_K=whole_K,
            curve_K=curve_K,
            left=left,
            value=self._value_of(job, view),
            due_gpus=self._due_gpus(job, view, pool, curve_K, left),
            is_timed=is_timed(job, pool.offer.gpu_type),
        )

    def _choices(
        self,
        view: SizingView,
        pools: Sequence[Pool],
        options: Sequence[Sequence[_Option]],
        factor: float,
    ) -> list[_Choice]:
        """Return each job's choice among its options at raised prices."""
        chosen = [self._choice(each, view, factor) for each in options]
        for gpu_type in sorted({each.gpu_type for each in chosen}):
            chosen = self._fill_nodes(chosen, gpu_type, pools, factor)
        return chosen

    def _choice(
        self, options: Sequence[_Option], view: SizingView, factor: float
    ) -> _Choice:
        rated: list[tuple[float, _Choice]] = []
        for option in options:
            choice = self._on_type(option, view, factor)
            cost = choice.value + choice.price * factor * choice.gpus
            goodput = float(choice.curve_K[max(choice.gpus, 1) - 1])
            rated.append((cost / goodput if goodput > 0.0 else math.inf, choice))
        return min(rated, key=lambda each: (each[0], each[1].gpu_type))[1]

    def _on_type(self, option: _Option, view: SizingView, factor: float) -> _Choice:
        job = option.job
        curve_K = option.curve_K
        value = option.value
        offer = option.pool.offer
        price = offer.price_per_gpu_h
        least = least_gpus(job)
        as_few_as_can_be = _Choice(
            job=job,
            gpu_type=offer.gpu_type,
            curve_K=curve_K,
            value=value,
            price=price,
            left=option.left,
            least_gpus=least,
            gpus=least,
        )
        if not option.is_timed:
            return as_few_as_can_be
        num_gpus_K = np.arange(1, len(curve_K) + 1)
        rate_K = value + price * factor * num_gpus_K
        runs_K = (curve_K > 0.0) & (num_gpus_K >= least)
        cost_K = np.where(runs_K, rate_K / np.where(runs_K, curve_K, 1.0), np.inf)
        gpus = int(cost_K.argmin()) + 1
        pace = self._pace(job, view, offer.gpu_type, option.whole_K, factor)
        if pace is not None:
            paced = pace.on_spot if offer.is_spot else pace.on_demand
            gpus = max(paced, gpus) if value else paced
            return replace(
                as_few_as_can_be,
                least_gpus=gpus,
                gpus=gpus,
                urgent=not offer.is_spot,
                paced=True,
            )
        due = option.due_gpus
        return replace(
            as_few_as_can_be,
            least_gpus=max(least, due),
            gpus=max(gpus, least, due),
            urgent=due > gpus,
        )

    def _pace(
        self,
        job: JobView,
        view: SizingView,
        gpu_type: str,
        curve_K: FloatArray,
        factor: float,
    ) -> Pace | None:
        """Return the GPUs with and without spot nodes that meet the job's deadline at
        the least cost; None where there is no deadline, or not both markets.
        """
        left = progress_left(job)
        due_at = job.spec.deadline_at
        if not self._deadlines or not self._spot or due_at is None or left is None:
            return None
        of_type = [pool for pool in view.pools if pool.offer.gpu_type == gpu_type]
        spot = [pool for pool in of_type if pool.offer.is_spot]
        firm = [pool for pool in of_type if not pool.offer.is_spot and pool.offer.most]
        if not spot or not firm:
            return None
        cheapest_spot = cheapest_first(spot, spot_price)[0]
        cheapest_firm = cheapest_first(firm)[0]
        change_s = job.rescale_s + cheapest_firm.offer.provision_s
        in_hand_s = CHANGES_IN_HAND * change_s + IN_HAND_S
        time_s = (due_at - view.at) * (1.0 - PACE_MARGIN) - in_hand_s
        pace = cheapest_pace(
            curve_K,
            left / max(time_s, 1.0),
            spot_price=spot_price(cheapest_spot) * factor,
            firm_price=cheapest_firm.offer.price_per_gpu_h * factor,
            share=self._availability[cheapest_spot.offer.id].share,
        )
        planned = Pace(
            on_spot=_kept(job, pace.on_spot), on_demand=_kept(job, pace.on_demand)
        )
        left_K = _seconds_left(left, curve_K)
        return _without_haste(job, planned, left_K, due_at - view.at, change_s)

    def _due_gpus(
        self,
        job: JobView,
        view: SizingView,
        pool: Pool,
        curve_K: FloatArray,
        left: float,
    ) -> int:
        """Return the fewest GPUs that meet the job's deadline; 0 without one."""
        if not self._deadlines or job.spec.deadline_at is None:
            return 0
        delay_s = job.rescale_s
        if not job.allocation:
            delay_s += pool.offer.provision_s
        time_s = (job.spec.deadline_at - view.at) * (1.0 - MARGIN) - delay_s
        if time_s <= 0.0:
            return int(curve_K.argmax()) + 1
        enough = np.flatnonzero(curve_K >= left / time_s)
        return int(enough[0]) + 1 if enough.size else int(curve_K.argmax()) + 1

    def _fill_nodes(
        self,
        choices: list[_Choice],
        gpu_type: str,
        pools: Sequence[Pool],
        factor: float,
    ) -> list[_Choice]:
        """Return the choices without the GPUs of a last node that is not worth its
        price.
        """
        mine = [each for each in choices if each.gpu_type == gpu_type]
        offers = [pool.offer for pool in pools if pool.offer.gpu_type == gpu_type]
        per_node = min(offer.num_gpus for offer in offers)
        over = sum(each.gpus for each in mine) % per_node
        before = {each.job.id: each.gpus for each in mine}
        gpus = dict(before)
        loss = 0.0
        for _ in range(over):
            options = [
                (self._loss(each, gpus[each.job.id]), each.job.id)
                for each in mine
                if gpus[each.job.id] > each.least_gpus
            ]
            if not options:
                return choices
            least, job_id = min(options)
            loss += least
            gpus[job_id] -= 1
        hours = [each.hours(each.gpus) for each in mine]
        mean_h = sum(hours) / len(hours) if hours else 0.0
        price = min(each.price for each in mine) * factor * per_node
        if not over or loss >= price * mean_h:
            return choices
        return [
            replace(each, gpus=gpus.get(each.job.id, each.gpus)) for each in choices
        ]

    def _loss(self, choice: _Choice, gpus: int) -> float:
        """Return what it costs in time to have one GPU less."""
        return choice.value * (choice.hours(gpus - 1) - choice.hours(gpus))

    # -- nodes

    def _nodes(
        self, view: SizingView, pools: Sequence[Pool], choices: Sequence[_Choice]
    ) -> dict[str, int]:
        urgent: dict[tuple[str, ...], float] = {}
        wanted: dict[tuple[str, ...], float] = {}
        for each in choices:
            key = (each.gpu_type,)
            wanted[key] = wanted.get(key, 0.0) + each.gpus
            if each.urgent:
                urgent[key] = urgent.get(key, 0.0) + each.gpus
        firm = [pool for pool in pools if not pool.offer.is_spot]
        first = nodes_for(firm, urgent)
        held = [
            replace(
                pool,
                offer=replace(
                    pool.offer, least=first.get(pool.offer.id, pool.offer.least)
                ),
            )
            for pool in pools
        ]
        return all_within(view.pools, nodes_for(held, wanted, spot_price))

    def _price_factor(
        self,
        view: SizingView,
        pools: Sequence[Pool],
        options: Sequence[Sequence[_Option]],
    ) -> float:
        """Return by how much prices are raised so that what is wanted fits
        the budgets.
        """
        if self._budget_per_h is None and self._budget is None:
            return 1.0
        if self._fits(view, pools, self._choices(view, pools, options, 1.0)):
            return 1.0
        low = 0.0
        high = math.log(PRICE_FACTOR_MAX)
        for _ in range(NUM_BISECTIONS):
            middle = (low + high) / 2.0
            choices = self._choices(view, pools, options, math.exp(middle))
            if self._fits(view, pools, choices):
                high = middle
            else:
                low = middle
        return math.exp(high)

    def _fits(
        self, view: SizingView, pools: Sequence[Pool], choices: Sequence[_Choice]
    ) -> bool:
        if self._budget_per_h is not None:
            nodes = self._nodes(view, pools, choices)
            if _cost_per_h(view, nodes) > self._budget_per_h:
                return False
        if self._budget is not None:
            to_come = sum(
                each.price * each.gpus * each.hours(each.gpus) for each in choices
            )
            return view.spent + to_come <= self._budget
        return True

    def _within_budget(self, view: SizingView, nodes: dict[str, int]) -> dict[str, int]:
        """Return `nodes`, fewer where the budget does not pay for them for a while."""
        limits = [math.inf]
        if self._budget_per_h is not None:
            limits.append(self._budget_per_h)
        if self._budget is not None:
            limits.append(max(self._budget - view.spent, 0.0) * HOUR_S / AHEAD_S)
        limit = min(limits)
        kept = dict(nodes)
        for pool in reversed(cheapest_first(view.pools)):
            offer = pool.offer
            while kept[offer.id] > offer.least and _cost_per_h(view, kept) > limit:
                kept[offer.id] -= 1
        return kept

    def _if_it_pays(
        self,
        view: SizingView,
        nodes: dict[str, int],
        choices: Sequence[_Choice],
        factor: float,
    ) -> dict[str, int]:
        """Return `nodes`, or what is there already where the change costs more than it
        saves.
        """
        there = all_within(
            view.pools, {pool.offer.id: pool.num_coming for pool in view.pools}
        )
        if nodes == there:
            return nodes
        grows = any(nodes[name] > there[name] for name in nodes)
        idle = all(
            nodes[pool.offer.id] >= pool.num_coming - pool.num_idle
            for pool in view.pools
        )
        if not grows and idle:
            return nodes
        if any(each.paced for each in choices):
            return nodes
        delay_h = 0.0
        if grows:
            delay_h = max(
                pool.offer.provision_s
                for pool in view.pools
                if nodes[pool.offer.id] > there[pool.offer.id]
            )
            delay_h /= HOUR_S
        saved = sum(self._saved(each, delay_h, factor) for each in choices)
        return nodes if saved > 0.0 else there

    def _saved(self, choice: _Choice, delay_h: float, factor: float) -> float:
        """Return what it saves, in currency, to change from what the job holds to its
        choice.
        """
        held = choice.job.allocation.num_replicas
        if held == choice.gpus:
            return 0.0
        before_h = choice.hours(held)
        if math.isinf(before_h):
            return math.inf
        price = choice.price * factor
        stay_h = min(delay_h, before_h)
        part_left = 1.0 - stay_h / before_h if before_h > 0.0 else 0.0
        if part_left <= 0.0:
            return -price * choice.gpus * delay_h
        rescale_h = choice.job.rescale_s / HOUR_S
        after_h = stay_h + rescale_h + part_left * choice.hours(choice.gpus)
        cost_before = (choice.value + price * held) * before_h
        cost_after = choice.value * after_h + price * held * stay_h
        cost_after += price * choice.gpus * (after_h - stay_h)
        return cost_before - cost_after


def _kept(job: JobView, wanted: int) -> int:
    """Return `wanted` GPUs, at least the job's fewest unless none, or those that it
    holds where these are nearly as many.
    """
    if not wanted:
        return 0
    held = job.allocation.num_replicas
    keeps = KEPT_FROM * held <= wanted <= KEPT_TO * held
    return held if keeps else max(wanted, least_gpus(job))


def _seconds_left(left: float, curve_K: FloatArray) -> FloatArray:
    """Return the seconds up to the job's end on 1, 2, ... GPUs."""
    runs_K = curve_K > 0.0
    return np.where(runs_K, left / np.where(runs_K, curve_K, 1.0), np.inf)


def _without_haste(
    job: JobView, pace: Pace, left_K: FloatArray, time_s: float, change_s: float
) -> Pace:
    """Return the pace without changes that a job on course does not need.

    left_K: seconds up to its end on 1, 2, ... GPUs. time_s: up to its deadline.
    change_s: what a change of GPUs costs, s. On demand nodes are not lost, so that a
    job needs no more than what ends it IN_HAND_S before its deadline, and a job that
    ends within the time of a change keeps what it has.
    """
    held = min(job.allocation.num_replicas, len(left_K))
    if held and left_K[held - 1] <= change_s:
        return Pace(on_spot=held, on_demand=held)
    on_demand = pace.on_demand
    if 0 < held < on_demand and left_K[held - 1] <= time_s - IN_HAND_S:
        on_demand = held
    enough = np.flatnonzero(left_K + change_s <= time_s - IN_HAND_S)
    if enough.size:
        on_demand = min(on_demand, max(int(enough[0]) + 1, least_gpus(job)))
    return Pace(on_spot=pace.on_spot, on_demand=on_demand)


def spot_price(pool: Pool) -> float:
    """Return the price of an hour of training that is kept, on a GPU of a job on one
    node: the list price for on demand.
    """
    pause_s = pool.offer.provision_s + RESCALE_S
    kept = kept_share(SAVE_DEFAULT_S, pause_s, pool.hazard_per_h)
    return pool.offer.price_per_gpu_h / kept


def kept_shares(job: JobView, pool: Pool, most: int) -> FloatArray:
    """Return which part of the time on 1..most GPUs of an offer advances the job:
    (most,).
    """
    if not pool.hazard_per_h:
        return np.ones(most)
    save_s = job.measured.metrics.get(SAVE_S, SAVE_DEFAULT_S)
    pause_s = pool.offer.provision_s + job.rescale_s
    num_nodes = -(-most // pool.offer.num_gpus)
    by_nodes = [
        kept_share(save_s, pause_s, pool.hazard_per_h * count)
        for count in range(1, num_nodes + 1)
    ]
    return np.repeat(by_nodes, pool.offer.num_gpus)[:most]


def _values(choices: Sequence[_Choice]) -> str:
    """Return the worth of an hour of the jobs, as a number or a range."""
    values = sorted({each.value for each in choices})
    if len(values) == 1:
        return f"{values[0]:g}"
    return f"{values[0]:g} to {values[-1]:g}"


def _left(job: JobView, at: float, curve_K: FloatArray) -> float:
    """Return the progress left; of a job of unknown length, as much as it
    has trained.
    """
    left = progress_left(job)
    if left is not None:
        return left
    started = job.usage.started_at
    age_s = LEFT_MIN_S if started is None else max(at - started, LEFT_MIN_S)
    held = max(job.allocation.num_replicas, least_gpus(job))
    return age_s * float(curve_K[min(held, len(curve_K)) - 1])


def _cost_per_h(view: SizingView, nodes: dict[str, int]) -> float:
    return sum(
        nodes.get(pool.offer.id, 0) * pool.offer.price_per_h for pool in view.pools
    )
