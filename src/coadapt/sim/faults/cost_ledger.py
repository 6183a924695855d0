"""The cost of jobs and nodes, computed a second time from the events, and checks of the
limits: a job's `max_cost` and a tenant's budget.
"""

# Nothing here calls core/costs.py or core/node_buying.py, which this module checks. The
# core updates a bill when something changes. This module adds price times GPUs between
# any two events.
#
# The core checks the limits in rounds, and when tenants or prices change. So a job may
# exceed its max_cost until the next round. It may start until the round that finds its
# tenant's budget spent.

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from coadapt.core.accounting import held
from coadapt.core.commands import Command, Start
from coadapt.core.events import (
    Event,
    NodeJoined,
    OfferChanged,
    OffersConfigured,
    PricesConfigured,
    TenantConfigured,
    TimerFired,
)
from coadapt.core.lifecycle import ENDED, JobState, Reason
from coadapt.core.state import JobRecord, SchedulerState
from coadapt.model import JobId, Node, NodeId, TenantId
from coadapt.model.offer import HOUR_S, Offer, OfferId
from coadapt.model.prices import Prices
from coadapt.model.tenant import EVERYBODY
from coadapt.sim.faults.invariants import InvariantError

ROUNDING = 1e-9  # relative, and absolute below 1; sums of many stretches of time round


@dataclass(frozen=True, slots=True, kw_only=True)
class _Holding:
    tenant: TenantId
    by_node: Mapping[NodeId, float]


@dataclass(slots=True)
class CostLedger:
    """An observer of the runtime that raises InvariantError if the core's bills or cost
    limits are wrong.

    A copy continues from the event after which it was made.
    """

    at: float = 0.0
    prices: Prices | None = None
    budgets: dict[TenantId, float] = field(default_factory=dict)
    jobs: dict[JobId, float] = field(default_factory=dict)
    """What each job cost so far."""
    tenants: dict[TenantId, float] = field(default_factory=dict)
    """What the jobs of each tenant cost so far."""
    offers: dict[OfferId, Offer] = field(default_factory=dict)
    nodes: dict[NodeId, tuple[OfferId, float]] = field(default_factory=dict)
    """The live nodes that were bought: the offer of each, and since when it is live."""
    nodes_cost: float = 0.0
    waited: set[JobId] = field(default_factory=set)
    """The jobs that waited for a budget."""
    _dearest: dict[OfferId, float] = field(default_factory=dict)
    """The highest price of each offer so far."""
    _late_h: dict[OfferId, float] = field(default_factory=dict)
    """The node-hours of each offer by which the two bills may differ."""
    _late_prices: float = 0.0
    """The cost by which the two bills may differ because news of prices is late."""
    _types: dict[NodeId, str] = field(default_factory=dict)
    _held: dict[JobId, _Holding] = field(default_factory=dict)
    _round_due_at: float | None = None
    _spent_up: set[TenantId] = field(default_factory=set)
    """The tenants whose budget was spent at the core's last check."""

    def __call__(
        self, event: Event, commands: Sequence[Command], state: SchedulerState
    ) -> None:
        self._go_on(state.at)
        looked = self._note(event, state)
        if looked:
            self._spent_up = self._over_budget(1.0 + ROUNDING)
        wrongs = [
            *self._wrong_bills(state),
            *self._wrong_limits(
                state, in_round=looked and isinstance(event, TimerFired)
            ),
            *self._wrong_starts(commands, state),
        ]
        if wrongs:
            raise InvariantError(f"costs after {event}: " + "; ".join(wrongs))

    # -- the second ledger

    def _go_on(self, at: float) -> None:
        """Add the cost of the time since the last event."""
        hours = (at - self.at) / HOUR_S
        for job_id, holding in self._held.items():
            cost = self._per_h(holding.by_node) * hours
            self.jobs[job_id] = self.jobs.get(job_id, 0.0) + cost
            tenant = holding.tenant
            self.tenants[tenant] = self.tenants.get(tenant, 0.0) + cost
        self.nodes_cost += hours * sum(
            self.offers[offer].price_per_h for offer, _ in self.nodes.values()
        )
        self.at = at

    def _per_h(self, by_node: Mapping[NodeId, float]) -> float:
        if self.prices is None:
            return 0.0
        return sum(
            self.prices.gpus.get(self._types[node], self.prices.default) * count
            for node, count in by_node.items()
        )

    def _note(self, event: Event, state: SchedulerState) -> bool:
        """Apply the event's changes. Return whether the core checks limits at this
        event.
        """
        looked = False
        late_h = max(state.at - event.at, 0.0) / HOUR_S
        match event:
            case PricesConfigured():
                self.prices = event.prices
                looked = True
            case TenantConfigured():
                looked = self._note_budget(event)
            case OffersConfigured():
                self.offers = {offer.id: offer for offer in event.offers}
                self._note_prices()
            case OfferChanged() if event.offer.id in self.offers:
                before = self.offers[event.offer.id].price_per_h
                changed = abs(event.offer.price_per_h - before)
                self._late_prices += changed * late_h * len(self.nodes)
                self.offers[event.offer.id] = event.offer
                self._note_prices()
            case NodeJoined():
                self._types[event.node.id] = event.node.gpu_type
            case TimerFired():
                due_at = self._round_due_at
                looked = due_at is not None and state.at >= due_at
            case _:
                pass
        self._note_nodes(state.nodes, late_h)
        self._round_due_at = state.round_due_at
        self._held = {
            job.id: _Holding(tenant=job.spec.tenant, by_node=held(job).by_node)
            for job in state.jobs.values()
            if job.state not in ENDED
        }
        return looked

    def _note_budget(self, event: TenantConfigured) -> bool:
        tenant = event.tenant
        before = self.budgets.get(tenant.id)
        if tenant.budget is None:
            self.budgets.pop(tenant.id, None)
        else:
            self.budgets[tenant.id] = tenant.budget
        return before != tenant.budget

    def _note_nodes(self, live: Mapping[NodeId, Node], late_h: float) -> None:
        """Begin and end the lives of bought nodes."""
        for node in live.values():
            if node.offer in self.offers and node.id not in self.nodes:
                self.nodes[node.id] = (node.offer, self.at)
                self._allow_for(node.offer, late_h)
        for node_id in sorted(self.nodes.keys() - live.keys()):
            offer_id, since = self.nodes.pop(node_id)
            offer = self.offers[offer_id]
            if offer.billing_s:
                lived_s = self.at - since
                left_s = -lived_s % offer.billing_s if lived_s else offer.billing_s
                self.nodes_cost += offer.price_per_h * left_s / HOUR_S
            self._allow_for(offer_id, late_h)

    def _note_prices(self) -> None:
        for offer in self.offers.values():
            before = self._dearest.get(offer.id, 0.0)
            self._dearest[offer.id] = max(before, offer.price_per_h)

    def _allow_for(self, offer_id: OfferId, late_h: float) -> None:
        """Allow a node's life, and with it its billing periods, to begin or end
        later.
        """
        if late_h > 0.0:
            billing_h = self.offers[offer_id].billing_s / HOUR_S
            before = self._late_h.get(offer_id, 0.0)
            self._late_h[offer_id] = before + late_h + billing_h

    @property
    def slack(self) -> float:
        """The largest allowed difference between the core's and the provider's bill.
        The core gets news of nodes and prices late.
        """
        late_nodes = sum(
            self._dearest[offer_id] * hours for offer_id, hours in self._late_h.items()
        )
        return self._late_prices + late_nodes

    # -- what the core must say of it

    def _wrong_bills(self, state: SchedulerState) -> Iterator[str]:
        open_bills: defaultdict[TenantId, float] = defaultdict(float)
        for job in state.jobs.values():
            cost = self.jobs.get(job.id, 0.0)
            if not _equal(job.bill.upto(state.at), cost):
                yield f"job {job.id} cost {cost}, its bill says {job.bill}"
            open_bills[job.spec.tenant] += job.bill.upto(state.at) - job.bill.cost
        for tenant in sorted({*self.tenants, *state.spent}):
            booked = state.spent.get(tenant, 0.0) + open_bills[tenant]
            cost = self.tenants.get(tenant, 0.0)
            if not _equal(booked, cost):
                yield f"jobs of tenant {tenant} cost {cost}, booked are {booked}"
        buying = state.buying
        if buying is None:
            return
        open_s = state.at - buying.booked_at
        booked = buying.spent + open_s / HOUR_S * sum(
            self.offers[offer].price_per_h for offer, _ in self.nodes.values()
        )
        if not _equal(booked, self.nodes_cost):
            yield f"nodes cost {self.nodes_cost}, booked are {booked}"

    def _wrong_limits(self, state: SchedulerState, *, in_round: bool) -> Iterator[str]:
        for job in state.jobs.values():
            most = job.spec.max_cost
            cost = self.jobs.get(job.id, 0.0)
            counts = self.prices is not None and most is not None
            if job.reason is Reason.MAX_COST:
                if most is None or cost < most * (1.0 - ROUNDING):
                    yield f"job {job.id} is stopped for its cost of {cost}, not {most}"
                continue
            over = counts and most is not None and cost > most * (1.0 + ROUNDING)
            stays = job.state not in ENDED and not job.status.cancel_requested
            if in_round and over and stays:
                yield f"job {job.id} cost {cost} of at most {most}, and goes on"
            if job.reason is Reason.BUDGET and job.state is JobState.PENDING:
                yield from self._wrong_wait(job)

    def _wrong_wait(self, job: JobRecord) -> Iterator[str]:
        """Yield an error if a job waits for a budget that is not spent, or if it has
        already started.
        """
        self.waited.add(job.id)
        spent = self._over_budget(1.0 - ROUNDING)
        if not spent & {job.spec.tenant, EVERYBODY}:
            yield f"job {job.id} waits for a budget that is not spent: {self.budgets}"
        if job.usage.num_starts:
            yield f"job {job.id} had started, and waits for a budget"

    def _wrong_starts(
        self, commands: Sequence[Command], state: SchedulerState
    ) -> Iterator[str]:
        for command in commands:
            if not isinstance(command, Start):
                continue
            job = state.jobs[command.job]
            spent = self._spent_up & {job.spec.tenant, EVERYBODY}
            if spent and job.usage.num_starts <= 1 and job.order.num_attempts <= 1:
                yield f"job {job.id} starts, but {sorted(spent)} has spent its budget"

    def _over_budget(self, part: float) -> set[TenantId]:
        """Return the tenants that have spent `part` of their budgets."""
        if self.prices is None:
            return set()
        costs = {**self.tenants, EVERYBODY: sum(self.tenants.values())}
        return {
            tenant
            for tenant, budget in self.budgets.items()
            if costs.get(tenant, 0.0) >= budget * part
        }


def _equal(booked: float, cost: float) -> bool:
    return abs(booked - cost) <= ROUNDING * max(abs(cost), 1.0)
