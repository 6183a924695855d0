"""A job that reported and falls silent is started again; one that never reports is let
be.
"""

from dataclasses import replace

import pytest

from coadapt.core.commands import Solve, Start, Stop
from coadapt.core.events import Outcome, SchedulerRestarted
from coadapt.core.lifecycle import JobState, Reason
from coadapt.model import Launch, TrainingReport
from coadapt.runtime.snapshot import job_snapshot
from tests.core.stage import Stage, on, spec


def training(hang_timeout_s: float | None = 600.0, *, reports: bool = True) -> Stage:
    """Return a stage with job a on two GPUs since 60 s, which reported last at 70 s, if
    at all.
    """
    stage = Stage()
    launch = Launch(run="python train.py", hang_timeout_s=hang_timeout_s)
    stage.submit("a", replace(spec(max_failures=1), launch=launch))
    stage.round(60.0, {"a": on(n0=2)})
    stage.started()
    stage.at = 70.0
    if reports:
        stage.reported(TrainingReport(progress=100.0))
    return stage


def stops(stage: Stage, at: float) -> bool:
    return any(isinstance(command, Stop) for command in stage.timer(at))


def test_a_silent_job_is_stopped_and_starts_again_at_once() -> None:
    stage = training()
    assert not stops(stage, 660.0)
    assert stops(stage, 720.0)
    job = stage.job()
    assert (job.state, job.reason) == (JobState.STOPPING, Reason.HUNG)
    assert job.explanation == (
        "is being stopped, to start again: it has not reported for 11 min, its "
        "hang_timeout is 10 min"
    )
    (start,) = (
        command
        for command in stage.exited(Outcome.STOPPED)
        if isinstance(command, Start)
    )
    assert (start.generation, start.allocation) == (2, on(n0=2))
    assert stage.job().explanation == (
        "restarts, from a checkpoint if it saved one: it had not reported for too long"
    )
    assert stage.job().usage.num_failures == 0  # it had got somewhere
    # It is not watched before it reports again.
    stage.started(generation=2)
    assert not stops(stage, 7200.0)


def test_one_that_hangs_again_and_again_is_given_up() -> None:
    stage = training()
    assert stops(stage, 720.0)
    stage.exited(Outcome.STOPPED)
    for generation in (2, 3):
        stage.started(generation=generation)
        stage.reported(TrainingReport(progress=100.0), generation=generation)
        assert stops(stage, stage.at + 660.0)
        stage.exited(Outcome.STOPPED, generation=generation)
    assert (stage.job().state, stage.job().usage.num_failures) == (JobState.FAILED, 2)


@pytest.mark.parametrize(
    "stage", [training(None), training(reports=False)], ids=["never", "no report yet"]
)
def test_who_is_not_watched_is_let_be(stage: Stage) -> None:
    assert not stops(stage, 86_400.0)
    assert stage.job().state is JobState.RUNNING


def test_what_was_missed_while_the_scheduler_was_down_is_not_held_against_it() -> None:
    stage = training()
    stage.handle(SchedulerRestarted(at=5_000.0))
    assert not stops(stage, 5_040.0)
    assert stops(stage, 5_640.0)


def test_a_rescale_counts_as_a_sign_of_life() -> None:
    stage = training()
    assert any(isinstance(command, Solve) for command in stage.timer(600.0))
    stage.plan({"a": on(n0=4)})
    stage.at = 665.0
    stage.started(generation=2)
    assert not stops(stage, 720.0)


def test_the_age_of_the_last_report_is_shown() -> None:
    assert job_snapshot(training().job(), 100.0)["silent_s"] == 30.0
    assert job_snapshot(training(reports=False).job(), 100.0)["silent_s"] is None
