"""Whole runs: the live scheduler in the virtual world."""

from dataclasses import replace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from coadapt.core.lifecycle import JobState
from coadapt.model import (
    Allocation,
    BatchSchedule,
    ClusterView,
    InputError,
    Plan,
    RescaleContract,
)
from coadapt.runtime.history import History
from coadapt.sim.experiment import (
    ExperimentConfig,
    RunResult,
    SimulationError,
    compose,
    new_policy,
    simulate,
)
from coadapt.sim.library.builtin import builtin_workload
from coadapt.sim.workload import ARRIVAL_MAX_S, Workload
from tests.sim.stage import NODES, TOY, spec, trace_job

JOBS = (("a", 0.0), ("b", 60.0), ("c", 61.0), ("d", 200.0))


class Idle:
    """Never starts anything."""

    def allocate(self, view: ClusterView) -> Plan:
        return Plan()


class Clumsy:
    """Fails in its first decision, and then gives each job the first GPU of the node of
    its number.
    """

    def __init__(self, seed: int = 0) -> None:
        self.seed = seed
        self._num_decisions = 0

    def allocate(self, view: ClusterView) -> Plan:
        self._num_decisions += 1
        if self._num_decisions == 1:
            raise ZeroDivisionError("oops")
        pairs = zip(view.jobs, view.nodes, strict=False)
        return Plan(
            allocations={
                job.id: Allocation(slots=((node.id, 1),)) for job, node in pairs
            }
        )


def run(policy: str, config: ExperimentConfig | None = None) -> RunResult:
    workload = Workload(name="w", jobs=tuple(trace_job(name, at) for name, at in JOBS))
    return simulate(workload, {"toy": TOY}, NODES, policy, config=config)


def crowded(config: ExperimentConfig | None = None) -> RunResult:
    """Run a workload in which jobs grow and shrink all the time."""
    workload, applications = builtin_workload(num_jobs=8, seed=1, num_gpus=12)
    return simulate(workload, applications, NODES, "optimus", config=config)


def named(policy: type) -> str:
    return f"{__name__}:{policy.__name__}"


def test_figures_need_no_curves() -> None:
    whole = crowded()
    lean = crowded(ExperimentConfig(figures_only=True))
    times = {"decision_ms_p50": 0.0, "decision_ms_max": 0.0}
    assert replace(lean.metrics, **times) == replace(whole.metrics, **times)
    kept = [
        (job.points, job.reasons, job.changes) for job in lean.history.jobs.values()
    ]
    assert kept == [([], [], [])] * 8
    assert all(job.points and job.reasons for job in whole.history.jobs.values())
    assert [job.spans for job in lean.history.jobs.values()] == [
        job.spans for job in whole.history.jobs.values()
    ]


def starts(history: History) -> dict[str, float | None]:
    return {job.id: job.usage.started_at for job in history.jobs.values()}


def jct(result: RunResult) -> dict[str, float]:
    return {
        job.id: (job.ended_at or 0.0) - job.submitted_at
        for job in result.history.jobs.values()
    }


def test_jobs_start_at_the_round_of_their_instant_or_the_next() -> None:
    result = run("fifo")
    assert starts(result.history) == {"a": 60.0, "b": 60.0, "c": 120.0, "d": 240.0}
    # 300 s of training after a start of 30 s.
    assert jct(result) == {"a": 390.0, "b": 330.0, "c": 389.0, "d": 370.0}
    assert result.metrics.jct_mean_s == 369.75


def test_a_job_that_ends_at_a_round_s_instant_frees_its_gpus_for_it() -> None:
    small = (replace(NODES[0], num_gpus=1),)
    workload = Workload(name="w", jobs=(trace_job("a"), trace_job("b")))
    result = simulate(
        workload, {"toy": TOY}, small, "fifo", config=ExperimentConfig(rescale_s=0.0)
    )
    assert starts(result.history) == {"a": 60.0, "b": 360.0}


def test_round_and_rescale_times_are_settings() -> None:
    result = run("fifo", ExperimentConfig(round_s=240.0, rescale_s=7.0))
    assert starts(result.history) == {"a": 240.0, "b": 240.0, "c": 240.0, "d": 240.0}
    assert jct(result)["a"] == 547.0


def test_a_run_is_the_same_each_time() -> None:
    first = crowded()
    second = crowded()
    assert first.history == second.history
    assert first.metrics.num_rescales > 10


def test_stopping_and_starting_takes_as_long_as_rescaling_in_place() -> None:
    apart = ExperimentConfig(rescales_in_place=False)
    assert jct(crowded(apart)) == jct(crowded())


@settings(max_examples=25, deadline=None)
@given(
    tenths=st.integers(10, 3000),
    reports=st.none() | st.floats(1.0, 300.0),
    reaction=st.none() | st.floats(0.0, 10.0),
)
@example(tenths=599, reports=None, reaction=None)
@example(tenths=73, reports=None, reaction=2.0)
@example(tenths=11, reports=7.3, reaction=0.0)
def test_runs_end_whatever_their_periods(
    tenths: int, reports: float | None, reaction: float | None
) -> None:
    config = ExperimentConfig(
        round_s=tenths / 10,
        report_s=reports,
        reaction_s=reaction,
        rescale_s=0.1,
        figures_only=True,
    )
    jobs = tuple(trace_job(name, at) for name, at in (("a", 0.0), ("b", 3601.7)))
    result = simulate(
        Workload(name="w", jobs=jobs), {"toy": TOY}, NODES, "fifo", config=config
    )
    # 300 s of training in three epochs that end at whole seconds, and a start, after
    # the wait for a round.
    wait_s = max(tenths / 10, reaction or 0.0)
    assert all(298.0 <= job.jct_s <= 302.0 + wait_s for job in result.jobs)


def test_a_clock_that_stands_ends_the_run_with_what_calls() -> None:
    workload = Workload(name="w", jobs=(trace_job("a"),))
    simulation = compose(workload, {"toy": TOY}, NODES, new_policy("fifo", 0))
    simulation.clock._standing_max = 2_000

    def again() -> None:
        simulation.clock.call_at(90.0, again)

    simulation.clock.call_at(90.0, again)
    with pytest.raises(
        SimulationError, match=r"w: virtual time stands at 90\.0 s.*again"
    ):
        simulation.run()


def test_a_failed_plan_costs_a_round_and_is_told() -> None:
    result = run(named(Clumsy))
    assert (result.num_plans_failed, result.plan_error) == (
        1,
        "ZeroDivisionError: oops",
    )
    assert starts(result.history)["a"] == 120.0


def test_costs_are_measured() -> None:
    result = run("fifo")
    assert result.cpu_s > 0.0
    assert 10.0 < result.peak_rss_mb < 10_000.0
    assert result.metrics.decision_ms_max >= result.metrics.decision_ms_p50 > 0.0


def test_a_policy_that_starts_nothing_is_found_out() -> None:
    messages = set()
    for figures_only in (False, True):
        config = ExperimentConfig(figures_only=figures_only)
        with pytest.raises(
            SimulationError,
            match=r"w: after \d+ s of virtual time 4 jobs have not ended.*'a'.*12 are free",
        ) as caught:
            run(named(Idle), config)
        messages.add(str(caught.value))
    assert len(messages) == 1, "the reason is the same where no page will show it"


def test_a_run_longer_than_its_horizon_is_ended() -> None:
    with pytest.raises(SimulationError, match="have not ended"):
        run("fifo", ExperimentConfig(rescale_s=50_000.0, horizon_s=7200.0))


@pytest.mark.parametrize("first_s", [1_700_000_000.0, ARRIVAL_MAX_S - 7_000.0])
def test_jobs_that_arrive_by_the_clock_of_1970_are_played(first_s: float) -> None:
    """The horizon counted from instant 0: the run ended before the first arrival. And
    it looked around once in each hour since 1970.
    """
    jobs = tuple(trace_job(name, at + first_s) for name, at in JOBS)
    later = Workload(name="w", jobs=jobs)
    looks: list[float] = []
    result = simulate(
        later,
        {"toy": TOY},
        NODES,
        "fifo",
        on_progress=lambda now, _: looks.append(now),
    )
    assert first_s <= looks[0] + 3600.0
    assert len(looks) < 10
    expected = run("fifo").metrics.jct_mean_s
    assert result.metrics.jct_mean_s == pytest.approx(expected, abs=61.0)


def test_the_seed_goes_to_policies_that_draw() -> None:
    policy = new_policy(named(Clumsy), 7)
    assert isinstance(policy, Clumsy)
    assert policy.seed == 7
    new_policy("fifo", 7)


def test_an_unknown_policy_is_refused() -> None:
    with pytest.raises(InputError, match="policy: got 'best'; allowed: fifo"):
        run("best")


def test_progress_is_told_on_the_way() -> None:
    calls: list[tuple[float, int]] = []
    workload = Workload(name="w", jobs=(trace_job("a"), trace_job("b", 7200.0)))
    simulate(
        workload,
        {"toy": TOY},
        NODES,
        "fifo",
        on_progress=lambda now, ended: calls.append((now, ended)),
    )
    assert calls[0] == (3600.0, 1)
    assert calls[-1][1] == 2


@pytest.mark.parametrize("policy", ["fifo", "pollux", "optimus", "tiresias"])
def test_the_batch_history_of_a_scheduled_job_is_its_schedule(policy: str) -> None:
    ramp = BatchSchedule.parse("0:8 400:16 1200:32")
    scheduled = replace(
        spec(most=4),
        contract=RescaleContract.SCHEDULE,
        batch=replace(spec().batch, schedule=ramp),
    )
    workload = Workload(
        name="w", jobs=(trace_job("a", 0.0, scheduled), trace_job("b", 10.0))
    )
    result = simulate(workload, {"toy": TOY}, NODES, policy)
    job = result.history.jobs["a"]
    assert job.state is JobState.SUCCEEDED
    assert [total for _, total in job.measured.batch_history] == [8, 16, 32]
    assert job.measured.samples > 1200.0
    # What it was last expected to take is that of batch 32: on one GPU two passes of 1
    # s, at first one.
    assert job.measured.forecast is not None
    assert job.measured.forecast.step_time_s[0] == pytest.approx(2.0)


def test_jobs_of_one_instant_are_taken_in_the_order_of_their_ids() -> None:
    small = (replace(NODES[0], num_gpus=1),)
    workload = Workload(name="w", jobs=(trace_job("b"), trace_job("a")))
    result = simulate(workload, {"toy": TOY}, small, "fifo")
    assert starts(result.history)["a"] == 60.0


def test_jobs_that_seldom_report_are_neither_asked_nor_slower() -> None:
    usual = run("fifo")
    seldom = run("fifo", ExperimentConfig(report_s=3600.0))
    assert [len(job.points) for job in usual.history.jobs.values()] > [0] * len(JOBS)
    assert [len(job.points) for job in seldom.history.jobs.values()] == [0] * len(JOBS)
    assert [job.jct_s for job in seldom.jobs] == [job.jct_s for job in usual.jobs]
    assert ExperimentConfig(report_s=3600.0).scheduler.silence_s > 3600.0
