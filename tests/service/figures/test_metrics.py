"""The page for Prometheus: it parses, it tells the truth of a recount, and its length
has an end.
"""

from collections import Counter

import pytest
from prometheus_client.parser import text_string_to_metric_families

from coadapt.core.accounting import num_gpus_held
from coadapt.core.lifecycle import ENDED, JobState
from coadapt.core.scheduler import Scheduler
from coadapt.core.state import SchedulerState
from coadapt.model import TrainingReport
from coadapt.service.figures import metrics
from coadapt.service.figures.contributions import Sums, contribution_of
from coadapt.service.figures.metrics import metrics_text
from coadapt.service.figures.tally import Tally
from coadapt.sim.faults.fault_run import FaultRun
from coadapt.sim.faults.scenario import draw_scenario
from tests.core.stage import Stage, on

Samples = dict[tuple[str, tuple[str, ...]], float]


def samples(state: SchedulerState, tally: Tally, at: float) -> Samples:
    """Return what a scrape reads, by name and values of labels."""
    text = metrics_text(
        lambda question: question(state), tally, at, ended={"failed": 2}, num_waiting=3
    )
    found: Samples = {}
    for family in text_string_to_metric_families(text.decode()):
        for sample in family.samples:
            key = (sample.name, tuple(sample.labels.values()))
            assert key not in found, key
            found[key] = sample.value
    return found


def of(found: Samples, name: str) -> dict[tuple[str, ...], float]:
    return {
        labels: value for (its_name, labels), value in found.items() if its_name == name
    }


@pytest.mark.parametrize("seed", range(4))
def test_sums_that_go_with_changes_are_those_of_a_recount(seed: int) -> None:
    run = FaultRun(draw_scenario(seed), Scheduler, None)
    run.run()
    scheduler = Scheduler()
    tally = Tally()
    tally.begin(scheduler.state)
    for event in run.host.store.events():
        tally(event, scheduler.handle(event), scheduler.state)
        state = scheduler.state
        live = [job for job in state.jobs.values() if job.state not in ENDED]
        again = Sums()
        for job in live:
            again.put(contribution_of(job, state.nodes))
        assert +tally.sums.by_state == Counter(job.state for job in live)
        assert (tally.sums.waiting, +tally.sums.by_state) == (
            again.waiting,
            again.by_state,
        )
        assert tally.sums.num_gpus == pytest.approx(again.num_gpus)
        assert tally.sums.num_held == pytest.approx(
            sum(num_gpus_held(job) for job in live)
        )


def staged() -> tuple[SchedulerState, Tally]:
    """Return a cluster where `a` and `c` run, `b` and `d` wait, and `a` was heard of
    before `c`.
    """
    stage = Stage()
    for name in "abcd":
        stage.submit(name)
    stage.round(60.0, {"a": on(n0=2), "c": on(n0=1)})
    for seconds, name in ((70.0, "a"), (80.0, "c")):
        stage.at = seconds
        stage.started(name)
        stage.reported(TrainingReport(progress=1.0), name)
    scheduler = Scheduler()
    tally = Tally()
    tally.begin(scheduler.state)
    for event in stage.journal:
        tally(event, scheduler.handle(event), scheduler.state)
    return scheduler.state, tally


def test_all_of_a_small_cluster_is_told() -> None:
    state, tally = staged()
    found = samples(state, tally, at=100.0)
    assert {
        labels: value for labels, value in of(found, "coadapt_jobs").items() if value
    } == {
        (JobState.RUNNING,): 2.0,
        (JobState.PENDING,): 2.0,
        ("failed",): 2.0,
    }
    assert sum(of(found, "coadapt_jobs_pending").values()) == 2.0
    assert of(found, "coadapt_job_gpus") == {
        ("a",): 2.0,
        ("b",): 0.0,
        ("c",): 1.0,
        ("d",): 0.0,
    }
    assert of(found, "coadapt_job_last_report_age_seconds") == {
        ("a",): 30.0,
        ("c",): 20.0,
    }
    assert of(found, "coadapt_longest_silence_seconds") == {(): 30.0}
    assert of(found, "coadapt_jobs_without_series") == {(): 0.0}
    assert (of(found, "coadapt_gpus_used"), of(found, "coadapt_events_waiting")) == (
        {(): 3.0},
        {(): 3.0},
    )


def test_series_of_jobs_have_an_end_and_the_silent_one_is_told_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    state, tally = staged()
    monkeypatch.setattr(metrics, "JOB_SERIES_MAX", 3)
    found = samples(state, tally, at=100.0)
    assert set(of(found, "coadapt_job_gpus")) == {
        ("a",),
        ("b",),
        ("c",),
    }  # those with GPUs, then others
    assert of(found, "coadapt_jobs_without_series") == {(): 1.0}
    monkeypatch.setattr(metrics, "JOB_SERIES_MAX", 1)
    state.jobs["a"], state.jobs["c"] = state.jobs.pop("c"), state.jobs.pop("a")
    found = samples(state, tally, at=100.0)
    assert len(of(found, "coadapt_job_gpus")) == 1
    assert of(found, "coadapt_longest_silence_seconds") == {(): 30.0}
    assert of(found, "coadapt_jobs_without_series") == {(): 3.0}


def test_labels_cannot_write_lines_of_their_own() -> None:
    state, tally = staged()
    state.jobs["a"].id = 'a"} 1\ncoadapt_gpus 99 \\'
    found = samples(state, tally, at=100.0)
    assert ("coadapt_job_gpus", ('a"} 1\ncoadapt_gpus 99 \\',)) in found
