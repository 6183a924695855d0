"""Books what the GPUs of jobs cost, once the operator has named prices."""

# A job's bill has its cost up to an instant, and the price per hour of what it holds
# since then. It is renewed after each event for the jobs that the event may have
# changed, so that the cost is the integral of price times GPUs held over time. Without
# prices nothing is booked: a journal that names none is replayed as before.
#
# Costs count from the moment at which prices were named. A change of prices counts from
# its moment on; what was booked before it stays.
#
# A tenant's budget may be for each day, week or month. Such a budget counts the cost
# since the start of the period: the present cost minus the cost at that start. The core
# notes the cost at the start for all tenants, at the first event of the period, before
# the event changes anything. So the bills give this cost exactly, however late that
# event comes. Tenants without a budget are noted, too, so a budget that is set in the
# middle of a month counts what the month has cost already.

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from coadapt.core.accounting import held
from coadapt.core.commands import Command, JobCommand
from coadapt.core.events import Event, TrainingReported
from coadapt.core.lifecycle import ENDED, HOLDING
from coadapt.core.state import JobRecord, SchedulerState
from coadapt.model import JobId, Tenant, TenantId
from coadapt.model.budget_period import BudgetPeriod, PeriodStart, midnight_text
from coadapt.model.prices import Prices
from coadapt.model.tenant import EVERYBODY


def held_by_type(job: JobRecord, state: SchedulerState) -> dict[str, float]:
    """Return how many GPUs of each type a job holds.

    A node that is gone, and not remembered, counts as of type "".
    """
    gpus: dict[str, float] = {}
    if job.status.state not in HOLDING:
        return gpus
    for node_id, count in held(job).by_node.items():
        node = state.nodes.get(node_id)
        if node is None and node_id in state.away:
            node = state.away[node_id].node
        gpu_type = "" if node is None else node.gpu_type
        gpus[gpu_type] = gpus.get(gpu_type, 0.0) + count
    return dict(sorted(gpus.items()))


def set_prices(state: SchedulerState, prices: Prices | None) -> None:
    """Count costs at other prices from now on; None: count no costs."""
    state.prices = prices
    book(state, state.jobs)
    begin_periods(state)
    state.changed |= {job.id for job in state.active if job.state in HOLDING}


def book_after(
    event: Event, commands: Sequence[Command], state: SchedulerState
) -> None:
    """Renew the bills of the jobs that an event may have changed."""
    if isinstance(event, TrainingReported) and not commands:
        return  # nearly all events: reports change nothing that a job holds
    names = {command.job for command in commands if isinstance(command, JobCommand)}
    names |= state.changed
    job = getattr(event, "job", None)
    if job is not None:
        names.add(job)
    book(state, names)


def book(state: SchedulerState, names: Iterable[JobId]) -> None:
    """Book what jobs cost until now, and the price of what they hold from now on."""
    for name in sorted(names):
        job = state.jobs.get(name)
        if job is None:
            continue
        per_h = 0.0
        if state.prices is not None and job.state not in ENDED:
            per_h = state.prices.per_h(held_by_type(job, state))
        if per_h == job.bill.per_h:
            continue
        bill = job.bill.after(state.at, per_h)
        tenant = job.spec.tenant
        booked = state.spent.get(tenant, 0.0)
        state.spent[tenant] = booked + (bill.cost - job.bill.cost)
        job.bill = bill


def spent(state: SchedulerState, at: float) -> dict[TenantId, float]:
    """Return what the jobs of each tenant have cost up to `at` (s), by name."""
    costs = dict(state.spent)
    for job in state.active:
        if job.bill.per_h:
            tenant = job.spec.tenant
            since = job.bill.upto(at) - job.bill.cost
            costs[tenant] = costs.get(tenant, 0.0) + since
    return dict(sorted(costs.items()))


# -- periods of budgets ----------------------------------------------------------------


def begin_periods(state: SchedulerState) -> bool:
    """Note the cost at the start of each period that has begun. Return whether one has.

    Call it before an event changes what jobs hold.
    """
    if state.prices is None:
        return False
    before = state.periods
    state.periods = periods_at(state, state.at)
    return state.periods is not before


def periods_at(state: SchedulerState, at: float) -> tuple[PeriodStart, ...]:
    """Return the day, week and month that contain `at` (s). No event comes before `at`
    that changes what jobs hold.
    """
    known = state.periods
    if known and at < min(each.ends_at for each in known):
        return known
    kept = {each.period: each for each in known if at < each.ends_at}
    return tuple(
        kept.get(period) or _start_of(period, state, at) for period in BudgetPeriod
    )


def _start_of(period: BudgetPeriod, state: SchedulerState, at: float) -> PeriodStart:
    begins_at, ends_at = period.around(at)
    return PeriodStart(
        period=period,
        begins_at=begins_at,
        ends_at=ends_at,
        spent=spent(state, begins_at),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetUse:
    """How much of a tenant's budget is spent.

    period: that of the budget; None: all time since prices were set.
    """

    budget: float
    cost: float
    period: PeriodStart | None

    @property
    def share(self) -> float:
        """The share that is spent; 1: all."""
        return self.cost / self.budget if self.budget else 1.0


def budget_uses(state: SchedulerState, at: float) -> dict[TenantId, BudgetUse]:
    """Return how much of its budget each tenant has spent up to `at` (s), by name.
    Tenants without a budget are left out.
    """
    costs = spent(state, at)
    periods = periods_at(state, at)
    uses = {
        name: _budget_use(tenant, costs, periods)
        for name, tenant in sorted(state.tenants.items())
    }
    return {name: use for name, use in uses.items() if use is not None}


def _budget_use(
    tenant: Tenant, costs: Mapping[TenantId, float], periods: Sequence[PeriodStart]
) -> BudgetUse | None:
    if tenant.budget is None:
        return None
    cost = cost_of(costs, tenant.id)
    for period in periods:
        if period.period is tenant.budget_period:
            cost = max(cost - cost_of(period.spent, tenant.id), 0.0)
            return BudgetUse(budget=tenant.budget, cost=cost, period=period)
    return BudgetUse(budget=tenant.budget, cost=cost, period=None)


# -- limits ----------------------------------------------------------------------------

# Shares of a budget, in percent, at which its operator is warned. At the last one jobs
# that have not started wait.
BUDGET_LEVELS = (80, 100)
SPENT = BUDGET_LEVELS[-1]


def cost_of(costs: Mapping[TenantId, float], name: TenantId) -> float:
    """Return the cost of a tenant, or of all for EVERYBODY. costs: of `spent`."""
    return sum(costs.values()) if name == EVERYBODY else costs.get(name, 0.0)


def budget_levels(state: SchedulerState) -> dict[TenantId, int]:
    """Return the highest of BUDGET_LEVELS that each tenant has reached. Tenants below
    all levels are left out.
    """
    if state.prices is None:
        return {}
    levels: dict[TenantId, int] = {}
    for name, use in budget_uses(state, state.at).items():
        reached = [
            level for level in BUDGET_LEVELS if use.cost * 100.0 >= use.budget * level
        ]
        if reached:
            levels[name] = reached[-1]
    return levels


def spent_up(job: JobRecord, state: SchedulerState) -> TenantId | None:
    """Return the tenant whose spent budget keeps a job from its first start, None if
    there is none.
    """
    if job.usage.started_at is not None or not state.budget_levels:
        return None
    for name in (job.spec.tenant, EVERYBODY):
        if state.budget_levels.get(name) == SPENT:
            return name
    return None


def budget_text(name: TenantId, state: SchedulerState) -> str:
    """Return how much of its budget a tenant has spent, in words."""
    at = state.at
    use = _budget_use(state.tenants[name], spent(state, at), periods_at(state, at))
    assert use is not None
    has_spent = f"tenant {name} has spent {use.cost:.2f} of its"
    if name == EVERYBODY:
        has_spent = f"all tenants together have spent {use.cost:.2f} of their"
    currency = "" if state.prices is None else f" {state.prices.currency}"
    text = f"{has_spent} budget of {use.budget:.2f}{currency}"
    if use.period is None:
        return text
    until = midnight_text(use.period.ends_at)
    return f"{text} for the {use.period.period.value} until {until}"


def max_cost_text(job: JobRecord, state: SchedulerState) -> str:
    """Return that a job has reached its max_cost, as the end of a sentence; "" if it
    has not.
    """
    most = job.spec.max_cost
    if most is None or state.prices is None:
        return ""
    cost = job.bill.upto(state.at)
    if cost < most:
        return ""
    currency = state.prices.currency
    return f"its cost of {cost:.2f} {currency} reached max_cost {most:.2f} {currency}"
