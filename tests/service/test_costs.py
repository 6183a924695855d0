"""Costs add up to price times GPUs times wall time: in the core's books, in the history
on disk, and in what people see.
"""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coadapt.cli.jobs.describe import _bought, _cost
from coadapt.core.accounting import num_gpus_held
from coadapt.core.config import SchedulerConfig
from coadapt.core.costs import held_by_type, spent
from coadapt.core.events import Event, PricesConfigured
from coadapt.core.lifecycle import ENDED
from coadapt.core.scheduler import Scheduler
from coadapt.model.prices import HOUR_S, Prices
from coadapt.runtime.index_writer import IndexWriter
from coadapt.runtime.job_history import held_gpus_of
from coadapt.runtime.job_index import SPAN, JobIndex, Row
from coadapt.service.usage import Owner, usage_rows
from coadapt.sim.faults.fault_run import FaultRun
from coadapt.sim.faults.scenario import draw_scenario
from tests.service.figures.test_metrics import of, samples, staged
from tests.service.in_process import InProcess, until

BY = ("tenant", "job", "application", "day")
JOB = {
    "name": "a",
    "run": "true",
    "workdir": "/tmp",
    "resources": {"gpus": 2},
    "batch": {"initial": 8},
}

price = st.floats(0.0, 10.0)
prices = st.builds(
    Prices,
    currency=st.just("EUR"),
    default=price,
    gpus=st.dictionaries(st.sampled_from(["gpu", "fast", "slow", "a100"]), price),
)
NUM_SEEDS = 4
JOURNALS: dict[int, list[Event]] = {}


def journal_of(seed: int) -> list[Event]:
    """Return the events of a run with faults: nodes lost, replicas lost, cancels."""
    if seed not in JOURNALS:
        run = FaultRun(draw_scenario(seed), Scheduler, None)
        run.run()
        JOURNALS[seed] = list(run.host.store.events())
    return JOURNALS[seed]


@settings(deadline=None, max_examples=15)
@given(
    seed=st.integers(0, NUM_SEEDS - 1),
    changes=st.lists(st.tuples(st.floats(0.0, 1.0), prices), min_size=1, max_size=3),
)
def test_the_cost_is_price_times_gpus_times_wall_time(
    seed: int, changes: list[tuple[float, Prices]]
) -> None:
    """Three ledgers: the jobs' bills, the history on disk, and a sum that looks at all
    jobs before each event.
    """
    events = journal_of(seed)
    named = {int(part * len(events)): wanted for part, wanted in changes}
    index = JobIndex(":memory:")
    writer = IndexWriter(index, lambda: None, SchedulerConfig())
    scheduler = Scheduler()
    state = scheduler.state
    expected = 0.0
    number = 0
    for place, event in enumerate(events):
        new = named.get(place)
        before = [] if new is None else [PricesConfigured(at=event.at, prices=new)]
        for each in [*before, event]:
            since_s = max(each.at - state.at, 0.0)
            if state.prices is not None:
                for job in state.active:
                    gpus = held_by_type(job, state)
                    assert sum(gpus.values()) == pytest.approx(num_gpus_held(job))
                    per_h = state.prices.per_h(gpus)
                    assert job.bill.per_h == pytest.approx(per_h), (job.id, each)
                    expected += per_h * since_s / HOUR_S
            number += 1
            writer.observe(number, each, scheduler.handle(each), state)
    assert sum(spent(state, state.at).values()) == pytest.approx(expected)
    live = [
        Owner(job.id, job.spec.tenant, job.spec.application)
        for job in state.jobs.values()
        if job.state not in ENDED
    ]
    for by in BY:
        rows = usage_rows(index, live, by, 0.0, state.at)  # type: ignore[arg-type]
        total = sum(float(str(row["cost"])) for row in rows)
        assert total == pytest.approx(expected), by
    index.close()


def test_stretches_of_an_earlier_version_have_neither_types_nor_cost() -> None:
    index = JobIndex(":memory:")
    old = Row(job="a", seq=1, n=0, kind=SPAN, at=0.0, payload=[2.0, [2], "running"])
    new_payload = [2.0, [2], "running", {"a100": 2.0}, 6.0]
    new = Row(job="a", seq=2, n=0, kind=SPAN, at=HOUR_S, payload=new_payload)  # type: ignore[arg-type]
    index.add(2, [old, new])
    first, second = held_gpus_of(index, "a", 3 * HOUR_S)
    assert (first.by_type, first.per_h) == (None, 0.0)
    assert (second.by_type, second.per_h) == ({"a100": 2.0}, 6.0)
    owner = Owner("a", "t", "app")
    (row,) = usage_rows(index, [owner], "tenant", 0.0, 3 * HOUR_S)
    assert row == {"key": "t", "gpu_hours": 6.0, "cost": 12.0}
    index.close()


def test_a_scheduler_with_prices_shows_costs_wherever_people_look(
    tmp_path: Path,
) -> None:
    eur = Prices(currency="EUR", default=1.0, gpus={"cpu": 3_600_000.0 / 1_000})
    run = InProcess(tmp_path, prices=eur)
    with run.turning(), run.client() as client:
        job = client.post("/v1/jobs", json=JOB).json()["id"]
        until(lambda: client.get(f"/v1/jobs/{job}").json()["cost"] > 0.0)
        described = client.get(f"/v1/jobs/{job}").json()
        assert described["currency"] == "EUR"
        usage = client.get("/v1/usage?by=job").json()
        (row,) = usage["rows"]
        assert usage["currency"] == "EUR"
        # 3,600 for an hour of a GPU is 1 for a second.
        assert row["cost"] == pytest.approx(row["gpu_hours"] * 3600.0)
        assert row["cost"] >= described["cost"] > 0.0
        assert 'coadapt_cost_total{currency="EUR",tenant="default"}' in (
            client.get("/metrics").text
        )
    again = InProcess(tmp_path)
    with again.turning(), again.client() as client:
        assert client.get("/v1/usage").json()["currency"] is None
        later = client.get(f"/v1/jobs/{job}").json()
        assert later["currency"] is None
        assert later["cost"] >= described["cost"]


def test_describe_says_what_a_job_costs() -> None:
    job = {"currency": "EUR", "cost": 1.5, "cost_foreseen": 4.0, "ended_at": None}
    assert _cost(job) == [("Cost", "1.50 EUR so far, about 4.00 EUR at its end")]  # type: ignore[arg-type]
    ended = {"currency": "EUR", "cost": 1.5, "ended_at": 9.0}
    assert _cost(ended) == [("Cost", "1.50 EUR")]  # type: ignore[arg-type]
    assert _cost({**ended, "currency": None}) == []  # type: ignore[arg-type]


def test_describe_says_what_an_hour_of_a_job_is_worth() -> None:
    buying = {"offers": [], "reason": "none needed", "error": ""}
    value = {"tenant": "vision", "value": 2.5}
    job = {"ended_at": None, "currency": "EUR", "value_of_time": value}
    nodes = ("Nodes", " (none needed)")
    worth = ("Value of time", "2.5 EUR an hour, the value of its tenant")
    assert _bought(job, buying) == [worth, nodes]  # type: ignore[arg-type]
    shared = {**job, "value_of_time": {"tenant": "*", "value": 3.0}}
    worth = ("Value of time", "3 EUR an hour, the value of all tenants")
    assert _bought(shared, buying) == [worth, nodes]  # type: ignore[arg-type]
    assert _bought({**job, "value_of_time": None}, buying) == [nodes]  # type: ignore[arg-type]
    assert _bought(job, None) == []  # type: ignore[arg-type]


def test_a_job_has_the_value_of_time_of_its_tenant_else_that_of_all(
    tmp_path: Path,
) -> None:
    run = InProcess(tmp_path)
    with run.turning(), run.client() as client:
        job = client.post("/v1/jobs", json=JOB).json()["id"]

        def value() -> object:
            return client.get(f"/v1/jobs/{job}").json()["value_of_time"]

        assert value() is None
        client.put("/v1/tenants/*", json={"value_of_time": 3.0})
        assert value() == {"tenant": "*", "value": 3.0}
        client.put("/v1/tenants/default", json={"value_of_time": 5.0})
        assert value() == {"tenant": "default", "value": 5.0}
        client.put("/v1/tenants/default", json={})
        assert value() == {"tenant": "*", "value": 3.0}


def test_without_prices_there_is_no_metric_of_costs() -> None:
    state, tally = staged()
    assert not of(samples(state, tally, at=100.0), "coadapt_cost_total")
