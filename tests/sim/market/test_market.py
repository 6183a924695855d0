"""Nodes for sale in a simulated run: both ledgers agree, no job is lost, the bill adds
up.
"""

import math
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from coadapt.core.events import Outcome, ReplicasExited
from coadapt.core.scheduler import Scheduler
from coadapt.core.state import SchedulerState
from coadapt.model import InputError
from coadapt.model.wire import from_json, to_json
from coadapt.runtime.memory_store import MemoryStore
from coadapt.sim.experiment import (
    ExperimentConfig,
    RunResult,
    Simulation,
    compose,
    new_policy,
    simulate,
)
from coadapt.sim.library.builtin import builtin_workload
from coadapt.sim.market.costs import Costs, costs_of
from coadapt.sim.market.files import parse_offer, read_availability, read_prices
from coadapt.sim.market.provider import NodeLife
from coadapt.sim.market.terms import MarketTerms

FIRM = "firm=4x4,most=4,provision=120"
SPOT = "spot=4x1.2,market=spot,most=6,provision=60,hazard=0.5,notice=120"


def market(*offers: str, sizer: str = "demand", seed: int = 0) -> MarketTerms:
    return MarketTerms(
        offers=tuple(parse_offer(text) for text in offers), sizer=sizer, seed=seed
    )


def run(terms: MarketTerms, *, jobs: int = 6, policy: str = "max-min") -> RunResult:
    workload, applications = builtin_workload("default", jobs, 0, num_gpus=16)
    config = ExperimentConfig(market=terms, figures_only=True)
    return simulate(workload, applications, terms.largest, policy, config=config)


def played(terms: MarketTerms, *, jobs: int = 6) -> tuple[Simulation, MemoryStore]:
    workload, applications = builtin_workload("default", jobs, 0, num_gpus=16)
    store = MemoryStore()
    simulation = compose(
        workload,
        applications,
        terms.largest,
        new_policy("max-min", 0),
        ExperimentConfig(market=terms, figures_only=True),
        store=store,
    )
    simulation.run()
    return simulation, store


def test_the_bill_is_what_the_nodes_cost_and_splits_into_jobs_and_idleness() -> None:
    result = run(market(FIRM))
    costs = result.costs
    assert costs is not None
    assert costs.total == pytest.approx(4.0 * costs.node_hours)
    assert costs.total == pytest.approx(sum(costs.jobs.values()) + costs.idle)
    assert costs.idle == pytest.approx(4.0 * costs.idle_node_hours)
    assert result.metrics.cost == costs.total
    assert sum(job.cost for job in result.jobs) == pytest.approx(
        sum(costs.jobs.values())
    )
    by_tenant = costs.by_tenant(result.history)
    assert by_tenant == {"default": pytest.approx(sum(costs.jobs.values()))}


@pytest.mark.long
@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    seed=st.integers(0, 1000),
    hazard=st.sampled_from([0.0, 0.5, 3.0]),
    notice=st.sampled_from(["", ",notice=0", ",notice=120"]),
    billing=st.sampled_from([0, 3600]),
    sizer=st.sampled_from(
        ["demand(idle_s=120)", "castor(value_of_time=20)", "pollux-utility(averaged=2)"]
    ),
)
def test_core_and_provider_agree_whatever_is_taken_away(
    seed: int, hazard: float, notice: str, billing: int, sizer: str
) -> None:
    spot = f"spot=4x1.2,market=spot,most=6,provision=60,hazard={hazard}{notice}"
    terms = market(f"{FIRM},billing={billing}", spot, sizer=sizer, seed=seed)
    simulation, store = played(terms)
    provider = simulation.provider
    state = simulation.runtime.scheduler.state
    assert provider is not None
    assert state.buying is not None
    assert set(state.nodes) == {
        life.node.id for life in provider.lives if life.left_at is None
    }
    assert set(state.nodes) == set(state.buying.nodes)
    assert set(simulation.world.ledger.nodes) == set(state.nodes)
    assert (
        len(state.ended) + sum(job.ended_at is not None for job in state.jobs.values())
        >= 6
    )
    at = simulation.clock.now()
    state.buying.book(at)
    lives = provider.close(at)
    rest = sum(life.cost - life.used for life in lives if life.node.id in state.nodes)
    assert state.buying.spent == pytest.approx(sum(life.cost for life in lives) - rest)
    losses = sum(use.num_losses for use in state.buying.use.values())
    assert losses == sum(life.taken for life in lives)
    replayed = Scheduler(simulation.config.scheduler)
    for event in store.events():
        replayed.handle(event)
    assert replayed.state.buying is not None
    replayed.state.buying.book(at)
    assert replayed.state == state
    text = to_json(state)
    assert from_json(SchedulerState, text) == state


def lost_generations(terms: MarketTerms) -> int:
    _, store = played(terms)
    return sum(
        isinstance(event, ReplicasExited) and event.outcome is Outcome.LOST
        for event in store.events()
    )


def test_a_notice_empties_the_node_before_it_goes() -> None:
    silent = "s=4x1,market=spot,most=4,hazard=2"
    assert lost_generations(market(silent)) > 0
    assert lost_generations(market(f"{silent},notice=120")) == 0


def mean_hours(hazard: float, checkpoint_s: float, *, follows: bool) -> float:
    """Return the mean completion time of three runs on spot nodes without notice, where
    a checkpoint costs 20 s. follows: whether checkpoints follow the hazard.
    """
    ends: list[float] = []
    for seed in range(3):
        offer = f"s=4x1,market=spot,most=4,hazard={hazard}"
        terms = market(offer, sizer="fixed", seed=seed)
        workload, applications = builtin_workload("default", 3, 0, num_gpus=16)
        config = ExperimentConfig(
            market=terms, figures_only=True, save_s=20.0, checkpoint_s=checkpoint_s
        )
        policy = new_policy("max-min", 0)
        simulation = compose(workload, applications, terms.largest, policy, config)
        if not follows:
            simulation.world.hazard_of = lambda _: 0.0
        simulation.run()
        jobs = simulation.recorder.history.jobs.values()
        ends += [job.ended_at or 0.0 for job in jobs]
    return sum(ends) / len(ends) / 3600.0


@pytest.mark.parametrize("hazard", [0.5, 2.0])
def test_checkpoints_that_follow_the_hazard_beat_short_and_long_ones(
    hazard: float,
) -> None:
    best_h = mean_hours(hazard, 0.0, follows=True)
    assert best_h < mean_hours(hazard, 0.0, follows=False)  # at each report
    assert best_h < mean_hours(hazard, 3600.0, follows=False)


def test_a_running_job_hears_of_the_hazard_of_all_its_nodes() -> None:
    terms = market("s=4x1,market=spot,most=4,hazard=0.5", sizer="fixed")
    workload, applications = builtin_workload("default", 1, 0, num_gpus=16)
    simulation = compose(
        workload,
        applications,
        terms.largest,
        new_policy("max-min", 0),
        ExperimentConfig(market=terms, figures_only=True),
    )
    simulation.clock.run(until=600.0)
    state = simulation.runtime.scheduler.state
    assert state.buying is not None
    (job,) = state.jobs.values()
    nodes = [node for node, _ in job.ordered.slots]
    alone = state.buying.hazard_per_h(nodes[:1])
    assert 0.0 < alone < 0.06  # the prior, and what was seen in ten minutes
    hazard = simulation.runtime.hazard_of(job.id)
    assert hazard == pytest.approx(len(nodes) * alone)
    assert simulation.runtime.hazard_of("unknown") == 0.0
    assert state.buying.hazard_per_h(["unknown"]) == 0.0


def test_idle_nodes_are_given_back_and_an_empty_cluster_costs_nothing() -> None:
    result = run(market(FIRM, sizer="demand(idle_s=0)"), jobs=2)
    costs = result.costs
    assert costs is not None
    last = max(job.ended_s for job in result.jobs)
    assert costs.node_hours < 4 * last / 3600.0


def test_billing_time_is_paid_to_its_end() -> None:
    life = NodeLife(node=market(FIRM).largest[0], joined_at=100.0)
    life.leave(4000.0, parse_offer(f"{FIRM},billing=3600"))
    assert life.cost == pytest.approx(8.0)
    assert life.used == pytest.approx(4.0 * 3900.0 / 3600.0)


def test_prices_and_availability_are_read_from_files(tmp_path: Path) -> None:
    prices = tmp_path / "prices.csv"
    prices.write_text("at,price\n0,1.0\n1800,3.0\n")
    trace = tmp_path / "trace.json"
    trace.write_text('{"metadata": {"gap_seconds": 600}, "data": [1, 1, 0, 2]}')
    assert read_prices(prices) == ((0.0, 1.0), (1800.0, 3.0))
    assert read_availability(trace) == ((0.0, 1), (1200.0, 0), (1800.0, 2))
    terms = parse_offer(f"s=4x9,most=4,prices={prices},available={trace}")
    assert terms.used(0.0, 3600.0) == pytest.approx(2.0)
    assert [terms.most_at(at) for at in (0.0, 1300.0, 1800.0)] == [1, 0, 2]
    result = run(market(f"s=4x9,most=4,prices={prices},available={trace}", FIRM))
    assert result.metrics.num_nodes_lost == 1


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("spot", "NAME=GPUSxPRICE"),
        ("spot=4x1,colour=red", "each once of most, least"),
        ("spot=4x1,most=1.5", "0 to 9999 nodes"),
        ("spot=4x1,market=free", "on-demand, spot"),
        ("spot=4x1,most=1,least=2", "0 <= least <= most"),
        ("spot=4x1,hazard=nan", "a number >= 0"),
        ("spot=4x1,prices=/no/such/file", "a file"),
    ],
)
def test_an_offer_that_cannot_be_read_says_why(text: str, words: str) -> None:
    with pytest.raises(InputError, match=words):
        parse_offer(text)


def test_a_run_without_nodes_bought_costs_nothing() -> None:
    lives: Sequence[NodeLife] = ()
    result = run(market(FIRM), jobs=1)
    empty = costs_of(result.history, lives)
    assert isinstance(empty, Costs)
    assert (empty.total, empty.idle, empty.most_nodes) == (0.0, 0.0, 0)
    assert math.isfinite(empty.node_hours)
