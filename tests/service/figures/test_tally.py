"""What is counted for Prometheus: GPU time adds up to GPUs times wall time, and
counters never fall.
"""

import math

import pytest

from coadapt.core.events import NodeJoined, NodeLost, Outcome
from coadapt.core.scheduler import Scheduler
from coadapt.model import TrainingReport
from coadapt.service.figures.tally import Tally
from coadapt.sim.faults.fault_run import FaultRun
from coadapt.sim.faults.scenario import draw_scenario
from tests.core.stage import Stage, on


def told(tally: Tally) -> dict[str, float]:
    """Return the samples by name, labels in order behind it."""
    return {
        " ".join([sample.name, *sample.labels.values()]): sample.value
        for metric in tally.registry.collect()
        for sample in metric.samples
    }


def counted(stage: Stage) -> Tally:
    scheduler = Scheduler()
    tally = Tally()
    tally.begin(scheduler.state)
    for event in stage.journal:
        tally(event, scheduler.handle(event), scheduler.state)
    tally.upto(stage.at)
    return tally


@pytest.mark.parametrize("seed", range(6))
def test_gpu_time_by_use_adds_up_to_gpus_times_wall_time(seed: int) -> None:
    run = FaultRun(draw_scenario(seed), Scheduler, None)
    run.run()
    scheduler = Scheduler()
    tally = Tally()
    tally.begin(scheduler.state)
    there_gpu_s = 0.0
    num_gpus = 0
    since = 0.0
    before: dict[str, float] = {}
    for number, event in enumerate(run.host.store.events()):
        tally(event, scheduler.handle(event), scheduler.state)
        if isinstance(event, NodeJoined | NodeLost):
            there_gpu_s += num_gpus * (scheduler.state.at - since)
            since = scheduler.state.at
            num_gpus = sum(node.num_gpus for node in scheduler.state.nodes.values())
        if number % 50 == 0:
            tally.upto(scheduler.state.at)
            now = {
                name: value
                for name, value in told(tally).items()
                if name.startswith("coadapt_job_gpu_s")
            }
            assert all(
                now[name] >= value
                for name, value in before.items()
                if "created" not in name
            )
            before = now
    tally.upto(scheduler.state.at)
    there_gpu_s += num_gpus * (scheduler.state.at - since)
    used = {
        name: value
        for name, value in told(tally).items()
        if "gpu_seconds_total" in name
    }
    assert set(used) == {
        f"coadapt_job_gpu_seconds_total {use}"
        for use in (
            "startup",
            "rescale",
            "stopping",
            "productive",
            "unreported",
            "idle",
        )
    }
    assert math.isclose(sum(used.values()), there_gpu_s, rel_tol=1e-9)


def test_uses_waits_ends_and_counters_that_outlive_their_jobs() -> None:
    stage = Stage()
    stage.submit()
    stage.round(60.0, {"a": on(n0=2)})
    stage.at = 70.0
    stage.started()
    stage.at = 75.0
    stage.reported(TrainingReport(progress=1.0))
    stage.at = 95.0
    stage.exited(Outcome.FAILED)
    stage.started(generation=2)
    stage.at = 100.0
    stage.exited(Outcome.SUCCEEDED, generation=2)
    stage.submit("b")
    figures = told(counted(stage))
    expected = {
        "coadapt_job_gpu_seconds_total startup": 20.0,
        "coadapt_job_gpu_seconds_total unreported": 2 * 5.0 + 2 * 5.0,
        "coadapt_job_gpu_seconds_total productive": 40.0,
        "coadapt_job_gpu_seconds_total idle": 8 * 100.0 - 80.0,
        "coadapt_failures_total": 1.0,
        "coadapt_rescales_total": 1.0,
        "coadapt_job_wait_seconds_sum": 60.0,
        "coadapt_job_wait_seconds_count": 1.0,
        "coadapt_job_completion_seconds_sum succeeded": 100.0,
        "coadapt_decision_seconds_count": 1.0,
        "coadapt_plan_failures_total": 0.0,
    }
    assert {name: figures[name] for name in expected} == expected


def test_rounds_without_a_plan_are_counted() -> None:
    stage = Stage()
    stage.submit()
    stage.round(60.0, {"a": on(nowhere=2)})
    tally = counted(stage)
    assert told(tally)["coadapt_plan_failures_total"] == 1.0
    assert tally.plan_at is None
    stage.round(120.0, {"a": on(n0=2)})
    assert counted(stage).plan_at == 120.0
