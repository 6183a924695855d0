"""Limits of costs: max_cost of a job, and the budget of a tenant."""

import logging
from dataclasses import replace

import pytest

from coadapt.core.commands import Solve, Start, Stop
from coadapt.core.costs import budget_uses
from coadapt.core.events import (
    NodeLost,
    Outcome,
    PricesConfigured,
    TenantConfigured,
)
from coadapt.core.lifecycle import JobState, Reason
from coadapt.core.scheduler import Scheduler
from coadapt.model import Tenant
from coadapt.model.budget_period import BudgetPeriod
from coadapt.model.prices import Prices
from coadapt.model.tenant import EVERYBODY
from coadapt.service.figures.budget_log import BudgetLog
from tests.core.stage import Stage, on, spec

HOUR = 3_600.0
DAY_S = 24.0 * HOUR
EUR = Prices(currency="EUR", default=1.0)


def priced(budget: float | None = None, tenant: str = "default") -> Stage:
    stage = Stage()
    stage.handle(PricesConfigured(at=0.0, prices=EUR))
    if budget is not None:
        grant(stage, budget, tenant)
    return stage


def grant(stage: Stage, budget: float | None, tenant: str = "default") -> None:
    stage.handle(TenantConfigured(at=stage.at, tenant=Tenant(id=tenant, budget=budget)))


def limited(max_cost: float) -> Stage:
    stage = priced()
    stage.submit("a", replace(spec(), max_cost=max_cost))
    stage.round(60.0, {"a": on(n0=2)})
    stage.started()
    return stage


def test_a_job_at_its_max_cost_saves_and_ends_and_names_both_figures() -> None:
    stage = limited(1.0)
    assert not any(isinstance(order, Stop) for order in stage.timer(60.0 + 0.4 * HOUR))
    orders = stage.timer(60.0 + 0.6 * HOUR)
    (stop,) = [order for order in orders if isinstance(order, Stop)]
    assert stop.job == "a"
    assert stage.job().state is JobState.STOPPING
    being = "is being stopped: its cost of 1.20 EUR reached max_cost 1.00 EUR"
    assert stage.job().explanation == being
    stage.exited(Outcome.STOPPED)
    job = stage.job()
    assert (job.state, job.reason) == (JobState.CANCELLED, Reason.MAX_COST)
    reason = "stopped: its cost of 1.20 EUR reached max_cost 1.00 EUR"
    assert job.explanation == reason


def test_a_job_whose_node_is_lost_while_it_stops_still_ended_for_its_max_cost() -> None:
    stage = limited(1.0)
    stage.timer(60.0 + HOUR)
    stage.handle(NodeLost(at=stage.at, node="n0"))
    assert stage.job().reason is Reason.NODE_LOST
    stage.exited(Outcome.LOST)
    job = stage.job()
    assert (job.state, job.reason) == (JobState.CANCELLED, Reason.MAX_COST)


def test_a_job_that_waits_after_a_preemption_ends_at_its_max_cost_too() -> None:
    stage = limited(1.0)
    stage.round(60.0 + 0.45 * HOUR, {})
    stage.at += 0.1 * HOUR
    stage.exited(Outcome.STOPPED)
    assert stage.job().state is JobState.PENDING
    stage.timer(60.0 + HOUR)
    assert stage.job().state is JobState.CANCELLED
    assert stage.job().reason is Reason.MAX_COST
    assert not stage.scheduler.state.active


def test_without_prices_a_max_cost_stops_nothing() -> None:
    stage = Stage()
    stage.submit("a", replace(spec(), max_cost=1e-6))
    stage.round(60.0, {"a": on(n0=2)})
    stage.started()
    stage.timer(60.0 + 99 * HOUR)
    assert stage.job().state is JobState.RUNNING


@pytest.mark.parametrize("tenant", ["default", EVERYBODY])
def test_jobs_that_have_not_started_wait_while_the_budget_is_spent(tenant: str) -> None:
    stage = priced(2.0, tenant)
    stage.running()
    stage.timer(60.0 + 1.1 * HOUR)
    assert stage.scheduler.state.budget_levels == {tenant: 100}
    assert stage.job().state is JobState.RUNNING
    stage.submit("b")
    assert stage.job("b").reason is Reason.BUDGET
    who = "all tenants together have" if tenant == EVERYBODY else "tenant default has"
    whose = "their" if tenant == EVERYBODY else "its"
    reason = f"waits: {who} spent 2.20 of {whose} budget of 2.00 EUR"
    assert stage.job("b").explanation == reason
    orders = stage.timer(60.0 + 1.2 * HOUR)
    (solve,) = [order for order in orders if isinstance(order, Solve)]
    assert [job.id for job in solve.view.jobs] == ["a"]
    stage.plan({"a": on(n0=2)})
    assert stage.job("b").explanation == reason
    grant(stage, 20.0, tenant)
    assert stage.job("b").reason is Reason.SUBMITTED
    orders = stage.round(60.0 + 1.3 * HOUR, {"a": on(n0=2), "b": on(n1=1)})
    assert [order.job for order in orders if isinstance(order, Start)] == ["b"]


def test_a_job_that_has_started_goes_on_after_a_preemption() -> None:
    stage = priced(2.0)
    stage.running()
    stage.round(60.0 + 1.1 * HOUR, {})
    stage.exited(Outcome.STOPPED)
    orders = stage.round(60.0 + 1.2 * HOUR, {"a": on(n0=1)})
    assert [order.job for order in orders if isinstance(order, Start)] == ["a"]


def test_a_job_that_the_plan_chose_but_that_has_not_started_waits_too() -> None:
    stage = priced(2.0)
    stage.running("a", on(n0=4))
    stage.submit("b")
    stage.round(60.0 + 0.4 * HOUR, {"a": on(n0=1), "b": on(n0=3)})
    assert stage.job("b").state is JobState.PENDING
    assert stage.job("b").target
    stage.timer(60.0 + 0.6 * HOUR)
    assert not stage.job("b").target
    assert stage.job("b").reason is Reason.BUDGET


def test_a_tenant_is_warned_about_at_80_and_at_100_percent(
    caplog: pytest.LogCaptureFixture,
) -> None:
    stage = priced(10.0)
    stage.running()
    log = BudgetLog()
    caplog.set_level(logging.WARNING)
    for hours in (1.0, 4.1, 4.2, 5.1, 5.2):
        orders = stage.timer(60.0 + hours * HOUR)
        log(stage.journal[-1], orders, stage.scheduler.state)
    assert [record.getMessage() for record in caplog.records] == [
        "tenant default has spent 8.20 of its budget of 10.00 EUR",
        (
            "tenant default has spent 10.20 of its budget of 10.00 EUR; "
            "jobs that have not started wait"
        ),
    ]


def test_a_replay_decides_the_same() -> None:
    stage = limited(1.0)
    grant(stage, 1.0)
    stage.submit("b")
    stage.timer(60.0 + 0.6 * HOUR)
    stage.exited(Outcome.STOPPED)
    again = Scheduler()
    for event in stage.journal:
        again.handle(event)
    assert again.state == stage.scheduler.state
    assert again.state.budget_levels == {"default": 100}


def test_a_job_at_its_max_cost_gets_one_order_where_another_is_to_be_repeated() -> None:
    stage = priced()
    stage.submit("a", replace(spec(), max_cost=1.0))
    stage.round(60.0, {"a": on(n0=2)})
    orders = stage.timer(60.0 + HOUR)
    assert [type(order) for order in orders if isinstance(order, Start | Stop)] == [
        Stop
    ]


# -- budgets for each day, week or month -----------------------------------------------


def daily(budget: float, tenant: str = "default") -> Tenant:
    return Tenant(id=tenant, budget=budget, budget_period=BudgetPeriod.DAY)


def on_a_daily_budget(budget: float, tenant: str = "default") -> Stage:
    """Return a stage on which job a costs 2 EUR an hour from 0:01 on."""
    stage = priced()
    stage.handle(TenantConfigured(at=0.0, tenant=daily(budget, tenant)))
    stage.running()
    return stage


@pytest.mark.parametrize("tenant", ["default", EVERYBODY])
def test_jobs_wait_until_the_budget_of_the_next_day(tenant: str) -> None:
    stage = on_a_daily_budget(40.0, tenant)
    stage.timer(60.0 + 21.0 * HOUR)
    stage.submit("b")
    has_spent = "tenant default has spent 42.00 of its"
    if tenant == EVERYBODY:
        has_spent = "all tenants together have spent 42.00 of their"
    assert stage.job("b").explanation == (
        f"waits: {has_spent} budget of 40.00 EUR for the day until 1970-01-02 00:00 UTC"
    )
    stage.timer(DAY_S - 1.0)
    assert stage.job("b").reason is Reason.BUDGET
    stage.timer(DAY_S)
    assert stage.job("b").reason is Reason.SUBMITTED
    orders = stage.timer(DAY_S + 60.0)
    (solve,) = [order for order in orders if isinstance(order, Solve)]
    assert [job.id for job in solve.view.jobs] == ["a", "b"]
    assert stage.scheduler.state.budget_levels == {}
    stage.plan({"a": on(n0=2), "b": on(n1=1)})
    stage.timer(DAY_S + 21.0 * HOUR)
    assert stage.scheduler.state.budget_levels == {tenant: 100}


def test_any_event_of_the_new_day_lets_jobs_go_on() -> None:
    stage = on_a_daily_budget(40.0)
    stage.timer(60.0 + 21.0 * HOUR)
    stage.submit("b")
    assert stage.job("b").reason is Reason.BUDGET
    stage.at = DAY_S + 1.0
    stage.submit("c")
    assert stage.job("b").reason is Reason.SUBMITTED
    assert stage.job("c").reason is Reason.SUBMITTED


@pytest.mark.parametrize("late_h", [0.0, 1.0, 30.0])
def test_a_day_counts_from_midnight_on_however_late_the_first_event_is(
    late_h: float,
) -> None:
    stage = on_a_daily_budget(40.0)
    stage.timer(60.0 + 21.0 * HOUR)
    stage.at = DAY_S + late_h * HOUR
    stage.exited(Outcome.SUCCEEDED)
    stage.timer(stage.at + 1.0)
    use = budget_uses(stage.scheduler.state, stage.at)["default"]
    assert use.cost == pytest.approx(2.0 * (late_h % 24.0))


def test_between_events_the_share_is_that_of_the_day_that_is_asked_about() -> None:
    stage = on_a_daily_budget(40.0)
    stage.timer(60.0 + 21.0 * HOUR)
    state = stage.scheduler.state
    assert budget_uses(state, DAY_S - 1e-6)["default"].cost > 47.0
    use = budget_uses(state, DAY_S + HOUR)["default"]
    assert use.cost == pytest.approx(2.0)
    assert use.period is not None
    assert (use.period.begins_at, use.period.ends_at) == (DAY_S, 2.0 * DAY_S)


def test_a_budget_set_later_counts_what_its_period_has_cost_already() -> None:
    stage = priced()
    stage.running()
    stage.timer(DAY_S + 60.0 + 10.0 * HOUR)
    stage.handle(TenantConfigured(at=stage.at, tenant=daily(100.0)))
    state = stage.scheduler.state
    assert budget_uses(state, state.at)["default"].cost == pytest.approx(20.0 + 1 / 30)
    monthly = replace(daily(100.0), budget_period=BudgetPeriod.MONTH)
    stage.handle(TenantConfigured(at=stage.at, tenant=monthly))
    assert budget_uses(state, state.at)["default"].cost == pytest.approx(68.0)


def test_what_cost_nothing_between_two_times_with_prices_counts_for_no_day() -> None:
    stage = on_a_daily_budget(40.0)
    stage.timer(60.0 + 10.0 * HOUR)
    stage.handle(PricesConfigured(at=stage.at, prices=None))
    stage.timer(DAY_S + 60.0)
    stage.handle(PricesConfigured(at=DAY_S + HOUR, prices=EUR))
    state = stage.scheduler.state
    assert budget_uses(state, state.at)["default"].cost == pytest.approx(0.0)
    assert budget_uses(state, DAY_S + 2 * HOUR)["default"].cost == pytest.approx(2.0)


def test_the_warnings_come_again_in_the_next_period(
    caplog: pytest.LogCaptureFixture,
) -> None:
    stage = on_a_daily_budget(40.0)
    log = BudgetLog()
    caplog.set_level(logging.WARNING)
    for hours in (17.0, 21.0, 24.5, 41.0, 45.0):
        orders = stage.timer(hours * HOUR)
        log(stage.journal[-1], orders, stage.scheduler.state)
    assert len(caplog.records) == 4
    assert caplog.records[-1].getMessage() == (
        "tenant default has spent 42.00 of its budget of 40.00 EUR for the day until "
        "1970-01-03 00:00 UTC; jobs that have not started wait"
    )


def test_a_replay_over_a_new_day_decides_the_same() -> None:
    stage = on_a_daily_budget(40.0)
    for hours in (21.0, 25.0, 45.0, 49.0):
        stage.timer(hours * HOUR)
        stage.submit(f"at{hours:g}")
    again = Scheduler()
    for event in stage.journal:
        again.handle(event)
    assert again.state == stage.scheduler.state
