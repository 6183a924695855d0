"""Stories of a change in place that is taken back, or fails, while the replicas of
before train on.
"""

import pytest

from coadapt.core.commands import Rescale, RetractRescale, SetAlarm, Solve, Start, Stop
from coadapt.core.config import SchedulerConfig
from coadapt.core.events import Outcome, SchedulerRestarted, TrainingResumed
from coadapt.core.lifecycle import JobState, Reason
from coadapt.core.scheduler import Scheduler
from coadapt.model import Allocation, BatchConfig, TrainingReport
from tests.core.stage import Stage, on, spec


def rescale(
    generation: int, allocation: Allocation, batch: BatchConfig | None = None
) -> Rescale:
    return Rescale(
        job="a", generation=generation, spec=spec(), allocation=allocation, batch=batch
    )


@pytest.fixture
def stage() -> Stage:
    """Job a trains on two GPUs of n0 and was ordered to take four at 120 s."""
    stage = Stage()
    stage.running()
    assert stage.round(120.0, {"a": on(n0=4)}) == [rescale(2, on(n0=4))]
    return stage


def test_what_still_trains_is_heard_while_others_prepare(stage: Stage) -> None:
    stage.at = 130.0
    stage.reported(TrainingReport(progress=5.0, batch=BatchConfig(total=16, atomic=8)))
    stage.handle(TrainingResumed(at=131.0, job="a", generation=1, rescale_s=2.0))
    job = stage.job()
    assert (job.measured.progress, job.heard_at, job.usage.costs.total_s) == (
        5.0,
        131.0,
        2.0,
    )
    assert (job.state, job.running.generation, job.generation) == (
        JobState.RESCALING,
        1,
        2,
    )
    stage.started("a", 2)
    stage.reported(TrainingReport(progress=9.0))
    assert (job.running.generation, job.measured.progress) == (2, 5.0)


def test_another_plan_takes_the_order_back_and_the_next_follows(stage: Stage) -> None:
    assert stage.round(180.0, {"a": on(n0=3)}) == [
        RetractRescale(job="a", generation=2)
    ]
    assert stage.round(240.0, {"a": on(n0=3)}) == []
    assert stage.job().state is JobState.RESCALING
    stage.at = 250.0
    assert stage.kept() == [rescale(3, on(n0=3))]
    assert stage.kept() == []
    assert stage.started("a", 2) == []
    stage.reported(TrainingReport(progress=5.0))
    assert (stage.job().running.generation, stage.job().measured.progress) == (1, 5.0)
    stage.started("a", 3)
    assert (
        stage.job().usage.num_rescales,
        stage.job().running.num_replicas_before,
    ) == (1, 2)


def test_one_that_comes_too_late_continues_from_the_change(stage: Stage) -> None:
    stage.round(180.0, {"a": on(n0=3)})
    assert stage.started("a", 2) == [rescale(3, on(n0=3))]
    assert stage.kept() == []
    assert stage.job().usage.num_rescales == 1


def test_a_plan_that_wants_the_old_allocation_back_needs_no_other_order(
    stage: Stage,
) -> None:
    stage.submit("b")
    both = {"a": on(n0=2), "b": on(n0=2)}
    assert stage.round(180.0, both) == [RetractRescale(job="a", generation=2)]
    stage.at = 190.0
    (start,) = stage.kept()
    assert start == Start(
        job="b", generation=1, spec=spec(), allocation=on(n0=2), batch=None
    )
    job = stage.job()
    assert (job.state, job.reason, job.trains_on, job.ordered) == (
        JobState.RUNNING,
        Reason.ALLOCATED,
        on(n0=2),
        on(n0=2),
    )
    assert (job.usage.num_rescales, job.generation, job.running.generation) == (0, 2, 1)


def test_what_the_order_held_counts_until_it_was_taken_back(stage: Stage) -> None:
    stage.round(180.0, {"a": on(n0=2)})
    stage.at = 190.0
    stage.kept()
    stage.at = 200.0
    stage.exited(Outcome.SUCCEEDED, generation=2)
    assert stage.job().usage.attained_service_gpu_s == 2 * 60.0 + 4 * 70.0 + 2 * 10.0


def test_a_dictated_batch_goes_back_with_its_order() -> None:
    stage = Stage()
    stage.submit()
    first = BatchConfig(total=16, atomic=8)
    second = BatchConfig(total=32, atomic=16)
    stage.round(60.0, {"a": on(n0=2)}, batches={"a": first})
    stage.started()
    assert stage.round(120.0, {"a": on(n0=2)}, batches={"a": second}) == [
        rescale(2, on(n0=2), second)
    ]
    assert stage.round(180.0, {"a": on(n0=2)}, batches={"a": first}) == [
        RetractRescale(job="a", generation=2)
    ]
    assert stage.kept() == []
    assert (stage.job().order.grant.batch, stage.job().measured.batch_history) == (
        first,
        ((60.0, 16),),
    )


def test_a_retraction_is_repeated_until_it_is_answered(stage: Stage) -> None:
    stage.round(180.0, {"a": on(n0=3)})
    retract = RetractRescale(job="a", generation=2)
    assert retract not in stage.timer(240.0)
    assert retract in stage.timer(300.0)
    stage.at = 310.0
    assert stage.handle(SchedulerRestarted(at=310.0))[0] == retract


def test_a_kept_job_is_asked_and_stopped_under_the_last_number(stage: Stage) -> None:
    stage.round(180.0, {"a": on(n0=2)})
    stage.kept()
    probe = Start(job="a", generation=2, spec=spec(), allocation=on(n0=2), batch=None)
    stage.at = 190.0
    assert stage.handle(SchedulerRestarted(at=190.0))[0] == probe
    assert stage.kept() == []
    assert stage.cancel() == [Stop(job="a", generation=2)]
    assert stage.kept() == []
    assert stage.exited(Outcome.STOPPED, generation=1) == []
    stage.exited(Outcome.STOPPED, generation=2)
    assert stage.job().state is JobState.CANCELLED


def test_a_job_that_is_to_stop_is_stopped_not_retracted(stage: Stage) -> None:
    assert stage.round(180.0, {}) == [Stop(job="a", generation=2)]


def test_a_start_is_never_taken_back() -> None:
    stage = Stage()
    stage.submit()
    stage.round(60.0, {"a": on(n0=2)})
    assert stage.round(120.0, {"a": on(n0=4)}) == []
    assert stage.kept(generation=1) == []
    assert stage.job().state is JobState.STARTING


FAILURE = "replica 2 exited with code 1: RuntimeError: boom"


def test_a_change_that_failed_is_let_be_until_another_plan_asks(stage: Stage) -> None:
    stage.submit("b")
    stage.at = 130.0
    assert stage.kept(detail=FAILURE) == []
    job = stage.job()
    assert (job.state, job.reason, job.ordered) == (
        JobState.RUNNING,
        Reason.RESCALE_FAILED,
        on(n0=2),
    )
    assert job.explanation == (
        f"trains on with 2 GPUs, a later round may try again: the change to 4 "
        f"failed: {FAILURE}"
    )
    assert stage.cancel("b") == []
    assert stage.timer(180.0)[0] == Solve(round=3, view=stage.scheduler.view())
    assert stage.plan({"a": on(n0=4)}) == [rescale(3, on(n0=4))]


def test_one_that_wants_nothing_else_any_more_is_quiet_again(stage: Stage) -> None:
    stage.kept(detail=FAILURE)
    assert stage.round(180.0, {"a": on(n0=2)}) == []
    assert not stage.job().failed_rescales.waits_for_plan


def test_a_failure_of_what_another_plan_replaced_is_followed_by_that(
    stage: Stage,
) -> None:
    stage.round(180.0, {"a": on(n0=3)})
    assert stage.kept(detail=FAILURE) == [rescale(3, on(n0=3))]


def test_who_waits_for_gpus_of_a_failed_change_is_not_stopped_for_it() -> None:
    stage = Stage()
    stage.submit("a")
    stage.submit("b")
    stage.round(60.0, {"a": on(n0=4), "b": on(n1=2)})
    stage.started("a")
    stage.started("b")
    plan = {"a": on(n0=1), "b": on(n0=3)}
    assert stage.round(120.0, plan) == [rescale(2, on(n0=1))]
    assert stage.kept(detail=FAILURE) == []
    assert stage.round(180.0, plan) == [rescale(3, on(n0=1))]


def test_after_three_failures_in_a_row_it_is_stopped_and_started(stage: Stage) -> None:
    for generation in (2, 3):
        stage.kept(generation=generation, detail=FAILURE)
        order = rescale(generation + 1, on(n0=4))
        assert stage.round(60.0 * (generation + 1), {"a": on(n0=4)}) == [order]
    stage.kept(generation=4, detail=FAILURE)
    assert (
        "with 2 GPUs, a later round may restart it for that: the change"
        in stage.job().explanation
    )
    assert stage.round(300.0, {"a": on(n0=2)}) == []
    assert stage.round(360.0, {"a": on(n0=4)}) == [Stop(job="a", generation=4)]
    assert stage.exited(Outcome.STOPPED, generation=4) == [
        Start(job="a", generation=5, spec=spec(), allocation=on(n0=4), batch=None)
    ]
    stage.started("a", 5)
    assert stage.round(420.0, {"a": on(n0=2)}) == [rescale(6, on(n0=2))]


def test_a_change_that_came_about_forgives_those_that_failed(stage: Stage) -> None:
    for generation in (2, 3):
        stage.kept(generation=generation, detail=FAILURE)
        stage.round(60.0 * (generation + 1), {"a": on(n0=4)})
    stage.started("a", 4)
    stage.round(300.0, {"a": on(n0=2)})
    stage.kept(generation=5, detail=FAILURE)
    assert stage.round(360.0, {"a": on(n0=2)}) == [rescale(6, on(n0=2))]


def test_a_failed_change_does_not_bring_the_next_round_forward() -> None:
    stage = Stage(SchedulerConfig(reaction_s=1.0))
    stage.running()
    stage.round(120.0, {"a": on(n0=4)})
    stage.at = 125.0
    assert not [
        command
        for command in stage.kept(detail=FAILURE)
        if isinstance(command, SetAlarm)
    ]


def test_a_journal_with_all_of_it_replays_to_an_equal_state(stage: Stage) -> None:
    stage.kept(detail=FAILURE)
    stage.round(180.0, {"a": on(n0=3)})
    stage.round(240.0, {"a": on(n0=1)})
    stage.kept(generation=3)
    twin = Scheduler()
    for event in stage.journal:
        twin.handle(event)
    assert twin.state == stage.scheduler.state
