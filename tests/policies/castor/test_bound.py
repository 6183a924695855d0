"""The proven bound: below every simulated schedule, and what a job alone takes where it
is alone.
"""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from benchmarks.castor import bound as castor_bound
from benchmarks.castor import ends as castor_ends
from benchmarks.castor import job_at_prices
from benchmarks.castor.bound import ROUNDING_S, Dual, alike, bounded, jobs_of, search
from benchmarks.castor.ends import WIDTH_S as ENDS_WIDTH_S
from benchmarks.castor.ends import Options, bound_of, needed, options_of
from benchmarks.castor.epochs import Setting, epochs_of
from benchmarks.castor.job_at_prices import (
    Phase,
    from_starts,
    job_of,
    price_out,
    room_of,
)
from coadapt.model import Node, RescaleContract
from coadapt.policies.solvers.arrays import FloatArray
from coadapt.sim.experiment import ExperimentConfig, simulate
from coadapt.sim.library.builtin import builtin_workload

CLUSTER = (Node(id="node-0", num_gpus=4),)
SETTING = Setting(num_gpus=4, node_gpus=4)
WIDTH_S = 60.0
# Concave curves on 1, 2 and 4 GPUs, unlike enough that their order on few and on many
# differs.
PHASES = [
    Phase(90.0, np.array([1.0, 2.0, 4.0]), np.array([0.6, 1.0, 1.3])),
    Phase(150.0, np.array([1.0, 2.0, 4.0]), np.array([0.4, 0.75, 1.4])),
    Phase(40.0, np.array([1.0, 4.0]), np.array([0.9, 1.2])),
]


def at_least(phases: list[Phase], start_s: float, price_I: FloatArray) -> float:
    """Return what a job costs from its start on, at least."""
    job = job_of(phases, WIDTH_S)
    room = room_of(job, len(price_I))
    price_out(job, price_I, room)
    return float(from_starts(job, np.array([start_s]), price_I, room)[0])


def cost_at(
    value_B: FloatArray, turn_s: float, start_s: float, price_I: FloatArray
) -> float:
    """Return what a job of as many of PHASES costs that has what is best at the value
    of its work.

    Of two sizes that are as good it has the smaller one before `turn_s`, then the
    larger one.
    """
    at = start_s
    cost = 0.0
    number = 0
    left = PHASES[0].work
    while number < len(value_B):
        interval = int(at / WIDTH_S + 1e-9)
        price = float(price_I[interval]) if interval < len(price_I) else 0.0
        border = (interval + 1) * WIDTH_S if interval < len(price_I) else np.inf
        phase = PHASES[number]
        value = value_B[number] * (0.999 if at < turn_s else 1.001)
        earns_V = value * phase.goodput_V - price * phase.gpus_V
        best = int(earns_V.argmax())
        gpus, rate = (
            (phase.gpus_V[best], phase.goodput_V[best])
            if earns_V[best] > 0.0
            else (0.0, 0.0)
        )
        until = min(
            border,
            turn_s if at < turn_s else np.inf,
            at + left / rate if rate else np.inf,
        )
        cost = cost + (until - at) * (1.0 + price * gpus)
        left = left - (until - at) * rate
        at = until
        if left <= 1e-9:
            number += 1
            left = PHASES[number].work if number < len(value_B) else 0.0
    return float(cost)


def cheap(count: int, start_s: float, price_I: FloatArray) -> float:
    """Return what a cheap schedule of so many of PHASES costs: values and the turn by
    coordinate descent.
    """
    value_B = np.full(count, 2.0)
    turn_s = 0.0
    least = np.inf
    factors = np.geomspace(0.1, 10.0, 41)
    turns_s = start_s + np.linspace(0.0, 900.0, 91)
    for _ in range(3):
        for turn in range(count + 1):  # all of them together, then one by one
            mine_B = (np.arange(count) == turn - 1) | (turn == 0)
            tried = [value_B * np.where(mine_B, factor, 1.0) for factor in factors]
            found = [cost_at(each, turn_s, start_s, price_I) for each in tried]
            if min(found) < least:
                least = min(found)
                value_B = tried[int(np.argmin(found))]
        found = [cost_at(value_B, each, start_s, price_I) for each in turns_s]
        if min(found) < least:
            least = min(found)
            turn_s = float(turns_s[np.argmin(found)])
        factors = factors**0.5
    return least


@pytest.fixture
def coarse(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few steps and places: what makes the bound one would then be missed most."""
    for name, value in (
        ("STEPS_ALONE", 12.0),
        ("STEP_MIN_S", 1.0),
        ("PLACES_MIN", 8),
        ("PLACES_MAX", 8),
    ):
        monkeypatch.setattr(job_at_prices, name, value)


@pytest.mark.usefixtures("coarse")
@settings(
    max_examples=50,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    price_I=st.lists(st.floats(0.0, 3.0), min_size=4, max_size=12).map(np.array),
    start_s=st.floats(0.0, 300.0),
    count=st.integers(1, 3),
)
def test_no_schedule_of_a_job_costs_less_than_its_bound(
    price_I: FloatArray, start_s: float, count: int
) -> None:
    assert (
        at_least(PHASES[:count], start_s, price_I)
        <= cheap(count, start_s, price_I) + 1e-6
    )


@pytest.mark.parametrize("seed", range(6))
def test_the_bound_is_close_to_a_cheap_schedule(seed: int) -> None:
    price_I = np.convolve(
        np.random.default_rng(seed).uniform(0.0, 2.0, 14), np.full(3, 1 / 3), "valid"
    )
    assert at_least(PHASES, 13.0, price_I) >= 0.95 * cheap(len(PHASES), 13.0, price_I)


@pytest.mark.usefixtures("coarse")
@pytest.mark.parametrize("phase", PHASES)
def test_the_bound_of_one_phase_at_one_price_is_what_its_cheapest_size_costs(
    phase: Phase,
) -> None:
    cheapest = phase.work * ((1.0 + 0.7 * phase.gpus_V) / phase.goodput_V).min()
    assert 0.9 * cheapest <= at_least([phase], 7.0, np.full(40, 0.7)) <= cheapest + 1e-9


@pytest.mark.parametrize("fast", [0.3, 3.0])
def test_a_step_from_one_phase_into_a_faster_one_is_no_slower_than_it_can_be(
    fast: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        job_at_prices, "STEPS_ALONE", 3.0
    )  # of 200 places, so each step passes many
    phases = [PHASES[0], Phase(90.0, PHASES[0].gpus_V, fast * PHASES[0].goodput_V)]
    alone_s = sum(phase.work / phase.goodput_V[-1] for phase in phases)
    for start_s in np.linspace(0.0, 30.0, 16).tolist():
        assert at_least(phases, start_s, np.zeros(20)) <= alone_s + 1e-6


def test_a_job_waits_for_the_end_of_a_high_price_and_nothing_of_the_wait_is_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        job_at_prices, "STEP_MIN_S", 0.5
    )  # 2,400 steps: were each worth a bit, it would tell
    alone_s = sum(phase.work / phase.goodput_V[-1] for phase in PHASES)
    low = at_least(PHASES, 0.0, np.full(20, 1e3))
    assert 1200.0 + 0.95 * alone_s <= low <= 1200.0 + alone_s


@pytest.mark.slow
def test_no_schedule_is_below_the_bound_and_prices_make_it_tighter() -> None:
    workload, applications = builtin_workload("busy", 8, 3, num_gpus=4)
    config = ExperimentConfig(figures_only=True)
    found = simulate(workload, applications, CLUSTER, "castor", config=config).metrics
    jobs = jobs_of(workload, applications, SETTING)
    waits_s = jobs.starts_J.sum() - sum(job.at for job in workload.jobs)
    dual = Dual(jobs, 4, found.makespan_s)
    free_s, _ = dual(np.zeros(dual.num_intervals))
    least_s, price_I = search(dual, steps=5)
    assert price_I.max() > 0.0
    assert 1.1 * free_s < least_s
    assert least_s + waits_s <= found.jct_mean_s * len(workload.jobs)


def test_a_job_alone_that_keeps_its_batch_is_bounded_by_what_it_takes() -> None:
    workload, applications = builtin_workload("default", 1, 5, num_gpus=4)
    job = workload.jobs[0]
    spec = replace(job.spec, contract=RescaleContract.FIXED)
    workload = replace(workload, jobs=(replace(job, spec=spec),))
    work_E, rate_EK = epochs_of(applications[job.application], spec, SETTING)
    epoch_E = (work_E[:, None] / rate_EK).min(axis=1)
    alone_s = SETTING.rescale_s + (epoch_E - ROUNDING_S).sum()
    least_s = bounded(workload, applications, SETTING, 10_000.0)
    assert 0.9999 * alone_s <= least_s <= alone_s + 1e-6
    result = simulate(
        workload,
        applications,
        CLUSTER,
        "fifo",
        config=ExperimentConfig(figures_only=True),
    )
    assert least_s <= result.metrics.jct_mean_s


@pytest.mark.slow
def test_as_simulated_jobs_end_they_can_and_sooner_they_need_more() -> None:
    workload, applications = builtin_workload("busy", 8, 3, num_gpus=4)
    config = ExperimentConfig(figures_only=True)
    run = simulate(workload, applications, CLUSTER, "castor", config=config)
    took_s = {job.id: job.jct_s for job in run.jobs}
    bound = bound_of(workload.jobs, applications, CLUSTER, took_s, config.rescale_s)
    as_simulated = bound.needed(1.0, run.metrics.makespan_s)
    assert 0.2 < as_simulated <= 1.0
    assert bound.needed(0.8, run.metrics.makespan_s) > as_simulated
    assert bound.needed(1e-3, run.metrics.makespan_s) == np.inf
    least = bound.least_rho(1.0, run.metrics.makespan_s)
    assert bound.needed(least, run.metrics.makespan_s) > 1.0
    assert 0.2 < least < 1.0


def test_a_job_alone_can_end_when_it_would_and_hardly_sooner() -> None:
    workload, applications = builtin_workload("default", 1, 5, num_gpus=4)
    job = workload.jobs[0]
    spec = replace(job.spec, contract=RescaleContract.FIXED)
    work_E, rate_EK = epochs_of(applications[job.application], spec, SETTING)
    best_s = float((work_E[:, None] / rate_EK).min(axis=1).sum())
    took_s = SETTING.rescale_s + best_s
    bound = bound_of(
        [replace(job, spec=spec)],
        applications,
        CLUSTER,
        {job.id: took_s},
        SETTING.rescale_s,
    )
    assert best_s > 3.0 * ENDS_WIDTH_S  # so that it is cut into intervals
    assert bound.needed(1.0, np.inf) <= 1.0
    assert 0.9 < bound.least_rho(1.0, np.inf) < 1.0


@pytest.mark.parametrize(
    ("work_s", "begin_s", "part"),
    [
        (600.0, 0.0, 0.25),
        (600.0, 300.0, 0.25),
        (900.0, 0.0, 0.5),
        (1_200.0, 0.0, 1.0),
        (1_220.0, 0.0, np.inf),
    ],
)
def test_what_a_job_needs_is_the_least_size_that_ends_in_time(
    work_s: float, begin_s: float, part: float
) -> None:
    sizes = Options(
        [0, 0, 0],
        np.array([1.0, 2.0, 4.0]),
        np.array([work_s]),
        np.array([[1.0, 1.5, 2.0]]),
    )
    assert needed([(sizes, begin_s, begin_s + 600.0)], [4]) == pytest.approx(
        part, rel=1e-4
    )
    # In an interval that it is not there for whole, GPUs of before and after count,
    # too.
    assert needed([(sizes, begin_s + 90.0, begin_s + 690.0)], [4]) <= part * (
        1.0 + 1e-4
    )


def test_jobs_that_are_there_at_once_need_their_sum_and_go_where_there_is_more_left() -> (
    None
):
    one = Options([0], np.array([1.0]), np.array([300.0, 300.0]), np.ones((2, 1)))
    assert needed([(one, 0.0, 600.0)] * 2, [4]) == pytest.approx(0.5, rel=1e-4)
    assert needed([(one, 0.0, 600.0), (one, 600.0, 1_200.0)], [4]) == pytest.approx(
        0.25, rel=1e-4
    )
    either = Options([0, 1], np.array([1.0, 1.0]), np.array([600.0]), np.ones((1, 2)))
    # Three jobs on six GPUs of two types, a half of each.
    assert needed([(either, 0.0, 600.0)] * 3, [4, 2]) == pytest.approx(0.5, rel=1e-4)


@pytest.mark.slow
def test_no_size_is_slower_in_the_bound_than_in_truth(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Epochs whose order by size differs are one part, and nothing is left for
    rounding.
    """
    monkeypatch.setattr(castor_ends, "PARTS", 1)
    monkeypatch.setattr(castor_bound, "ROUNDING_S", 0.0)
    workload, applications = builtin_workload("default", 6, 2, num_gpus=4)
    for job in workload.jobs:
        spec = alike(job.spec)
        work_E, rate_EK = epochs_of(applications[job.application], spec, SETTING)
        found = options_of(applications[job.application], spec, CLUSTER)
        for option, gpus in enumerate(found.gpus_O.tolist()):
            true_s = (work_E / rate_EK[:, round(gpus) - 1]).sum()
            bound_s = (found.seconds_P / found.rate_PO[:, option]).sum()
            assert 0.5 * true_s < bound_s <= true_s * (1.0 + 1e-9)
