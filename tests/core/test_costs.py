"""What the core books of costs: price times GPUs held times wall time, from the moment
at which prices were named.
"""

from dataclasses import replace

import pytest

from coadapt.core.costs import held_by_type, spent
from coadapt.core.events import NodeJoined, Outcome, PricesConfigured
from coadapt.core.scheduler import Scheduler
from coadapt.core.state import SchedulerState
from coadapt.model import Node, TrainingReport
from coadapt.model.measured import REMAINING_S
from coadapt.model.prices import NO_BILL, Prices
from coadapt.model.wire import dumps, loads
from coadapt.runtime.snapshot import foreseen_cost
from tests.core.stage import Stage, on

HOUR = 3_600.0
EUR = Prices(currency="EUR", default=1.0, gpus={"a100": 3.0})


def priced() -> Stage:
    stage = Stage()
    node = Node(id="n2", num_gpus=4, gpu_type="a100")
    stage.handle(NodeJoined(at=0.0, node=node))
    stage.handle(PricesConfigured(at=0.0, prices=EUR))
    return stage


def test_gpus_cost_from_the_order_until_they_are_free() -> None:
    stage = priced()
    stage.running(allocation=on(n2=2))
    assert stage.job().bill.per_h == 6.0
    stage.at = 60.0 + HOUR
    stage.exited(Outcome.SUCCEEDED)
    assert stage.job().bill.cost == pytest.approx(6.0)
    assert spent(stage.scheduler.state, stage.at + HOUR) == {
        "default": pytest.approx(6.0)
    }


def test_another_price_counts_from_its_moment_on() -> None:
    stage = priced()
    stage.running(allocation=on(n0=2))
    stage.at = 60.0 + HOUR
    dearer = replace(EUR, default=5.0)
    stage.handle(PricesConfigured(at=stage.at, prices=dearer))
    assert stage.job().bill.upto(stage.at + HOUR) == pytest.approx(2.0 + 10.0)
    stage.at += HOUR
    stage.handle(PricesConfigured(at=stage.at, prices=None))
    assert stage.job().bill.upto(stage.at + HOUR) == pytest.approx(12.0)
    assert spent(stage.scheduler.state, stage.at + HOUR) == {
        "default": pytest.approx(12.0)
    }


def test_without_prices_nothing_is_booked() -> None:
    stage = Stage()
    stage.running(allocation=on(n0=2))
    stage.at = HOUR
    stage.exited(Outcome.SUCCEEDED)
    assert stage.job().bill == NO_BILL
    assert not stage.scheduler.state.spent


def test_gpus_of_a_node_that_is_lost_keep_their_price_until_their_end_is_known() -> (
    None
):
    stage = priced()
    stage.running(allocation=on(n2=2))
    stage.lose("n2")
    assert held_by_type(stage.job(), stage.scheduler.state) == {"a100": 2.0}
    assert stage.job().bill.per_h == 6.0


def test_a_snapshot_keeps_costs_and_one_without_them_is_read() -> None:
    stage = priced()
    stage.running(allocation=on(n2=2))
    kinds = {"SchedulerState": SchedulerState}
    again = loads(kinds, dumps(stage.scheduler.state))
    assert again.prices == EUR
    assert again.jobs["a"].bill == stage.job().bill
    on_again = Scheduler(state=again)
    assert spent(on_again.state, HOUR) == spent(stage.scheduler.state, HOUR)
    plain = Stage()
    plain.running()
    text = dumps(plain.scheduler.state)
    bill = '"bill":{"cost":0.0,"at":0.0,"per_h":0.0}'
    assert text.count(f",{bill}") == 1
    old = text.replace(f",{bill}", "").replace(',"prices":null,"spent":{}', "")
    assert "spent" not in old
    assert loads(kinds, old).jobs["a"].bill == NO_BILL


def test_the_cost_at_the_end_is_foreseen_where_an_end_is_known() -> None:
    stage = priced()
    stage.running(allocation=on(n2=2))
    at = 60.0 + HOUR
    assert foreseen_cost(stage.job(), at) is None
    stage.at = at
    stage.reported(TrainingReport(progress=25.0, progress_target=100.0))
    assert foreseen_cost(stage.job(), at) == pytest.approx(24.0)
    stage.reported(TrainingReport(progress=25.0, metrics={REMAINING_S: 2 * HOUR}))
    assert foreseen_cost(stage.job(), at) == pytest.approx(18.0)
    stage.exited(Outcome.SUCCEEDED)
    assert foreseen_cost(stage.job(), at) is None
