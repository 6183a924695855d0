"""Stories: a few events, then the exact commands and books."""

from dataclasses import replace

import pytest

from coadapt.core.commands import Rescale, SetAlarm, Solve, Start, Stop
from coadapt.core.config import SchedulerConfig
from coadapt.core.events import (
    JobSubmitted,
    Outcome,
    PlanFailed,
    PlanReady,
    SchedulerConfigured,
    SchedulerRestarted,
    TrainingResumed,
)
from coadapt.core.lifecycle import JobState, Reason
from coadapt.core.scheduler import Scheduler
from coadapt.model import (
    WAITING,
    BatchConfig,
    Forecast,
    GradStats,
    Plan,
    RescaleContract,
    ThroughputParams,
    TrainingReport,
    TypeProfile,
)
from tests.core.stage import Stage, on, spec

RESTARTS = SchedulerConfig(rescale_in_place=False)


def test_a_submission_sets_the_alarm_for_the_next_whole_round() -> None:
    stage = Stage()
    stage.at = 61.0
    assert stage.submit() == [SetAlarm(at=120.0)]
    assert stage.job().state is JobState.PENDING


def test_a_submission_at_the_very_instant_of_a_round_takes_part_in_it() -> None:
    stage = Stage()
    stage.at = 120.0
    assert stage.submit() == [SetAlarm(at=120.0)]


def test_no_round_happens_at_instant_zero() -> None:
    assert Stage().submit() == [SetAlarm(at=60.0)]


def test_reaction_time_brings_the_round_forward() -> None:
    stage = Stage(SchedulerConfig(reaction_s=1.0))
    stage.at = 10.0
    assert stage.submit() == [SetAlarm(at=11.0)]
    assert stage.submit("b") == []


def test_a_round_asks_the_policy_and_starts_what_it_planned() -> None:
    stage = Stage()
    stage.submit()
    solve, alarm = stage.timer(60.0)
    assert isinstance(solve, Solve)
    assert solve.round == 1
    assert [job.id for job in solve.view.jobs] == ["a"]
    assert alarm == SetAlarm(at=120.0)
    assert stage.plan({"a": on(n0=2)}) == [
        Start(job="a", generation=1, spec=spec(), allocation=on(n0=2), batch=None)
    ]
    assert stage.job().state is JobState.STARTING


def test_a_second_submission_of_the_same_id_changes_nothing() -> None:
    stage = Stage()
    stage.running()
    before = stage.job()
    assert stage.submit("a", spec((2, 2))) == []
    assert stage.job() is before
    assert before.spec == spec()


def test_in_place_growth_holds_old_and_new_until_it_is_answered() -> None:
    stage = Stage()
    stage.running()
    rescale = Rescale(
        job="a", generation=2, spec=spec(), allocation=on(n1=3), batch=None
    )
    assert stage.round(120.0, {"a": on(n1=3)}) == [rescale]
    stage.submit("b")
    assert stage.round(180.0, {"a": on(n1=3), "b": on(n0=4)}) == []
    stage.at = 185.0
    commands = stage.started("a", 2)
    assert commands == [
        Start(job="b", generation=1, spec=spec(), allocation=on(n0=4), batch=None)
    ]
    assert stage.job().usage.num_rescales == 1


def test_without_in_place_a_change_is_stop_then_start() -> None:
    stage = Stage(RESTARTS)
    stage.running()
    assert stage.round(120.0, {"a": on(n0=4)}) == [Stop(job="a", generation=1)]
    assert stage.job().state is JobState.STOPPING
    stage.at = 125.0
    assert stage.exited(Outcome.STOPPED) == [
        Start(job="a", generation=2, spec=spec(), allocation=on(n0=4), batch=None)
    ]
    assert (stage.job().usage.num_rescales, stage.job().usage.num_starts) == (1, 2)


def test_gpus_are_given_on_only_after_the_replicas_on_them_exited() -> None:
    stage = Stage(num_nodes=1)
    stage.running(allocation=on(n0=4))
    stage.submit("b")
    assert stage.round(120.0, {"b": on(n0=4)}) == [Stop(job="a", generation=1)]
    stage.at = 130.0
    assert stage.exited(Outcome.STOPPED) == [
        Start(job="b", generation=1, spec=spec(), allocation=on(n0=4), batch=None)
    ]
    assert stage.job("a").reason is Reason.PREEMPTED


def test_two_jobs_that_swap_nodes_do_not_wait_for_each_other_for_ever() -> None:
    stage = Stage()
    stage.submit("a")
    stage.submit("b")
    stage.round(60.0, {"a": on(n0=4), "b": on(n1=4)})
    stage.started("a")
    stage.started("b")
    assert stage.round(120.0, {"a": on(n1=4), "b": on(n0=4)}) == [
        Stop(job="a", generation=1)
    ]
    assert stage.exited(Outcome.STOPPED, "a") == [
        Rescale(job="b", generation=2, spec=spec(), allocation=on(n0=4), batch=None)
    ]
    assert stage.started("b", 2) == [
        Start(job="a", generation=2, spec=spec(), allocation=on(n1=4), batch=None)
    ]


def test_a_change_of_mind_waits_until_the_start_was_answered() -> None:
    stage = Stage()
    stage.submit()
    stage.round(60.0, {"a": on(n0=2)})
    assert stage.round(120.0, {"a": on(n0=4)}) == []
    assert stage.started() == [
        Rescale(job="a", generation=2, spec=spec(), allocation=on(n0=4), batch=None)
    ]


def test_a_dictated_batch_goes_with_the_order_and_its_change_is_a_rescale() -> None:
    stage = Stage()
    stage.submit()
    first = BatchConfig(total=16, atomic=8)
    second = BatchConfig(total=32, atomic=16)
    (start,) = stage.round(60.0, {"a": on(n0=2)}, batches={"a": first})
    assert isinstance(start, Start)
    assert start.batch == first
    stage.started()
    assert stage.round(120.0, {"a": on(n0=2)}, batches={"a": first}) == []
    assert stage.round(180.0, {"a": on(n0=2)}, batches={"a": second}) == [
        Rescale(job="a", generation=2, spec=spec(), allocation=on(n0=2), batch=second)
    ]
    stage.started("a", 2)
    assert stage.job().usage.num_rescales == 0
    assert stage.job().measured.batch_history == ((60.0, 16), (180.0, 32))


def test_a_frozen_job_is_never_rescaled() -> None:
    stage = Stage()
    stage.submit("a", spec(contract=RescaleContract.FROZEN))
    stage.round(60.0, {"a": on(n0=2)})
    stage.started()
    assert stage.round(120.0, {"a": on(n0=3)}) == []
    assert "frozen" in stage.scheduler.state.plan_error
    assert stage.job().ordered == on(n0=2)


@pytest.mark.parametrize("generation", [0, 3])
def test_messages_of_another_generation_are_ignored(generation: int) -> None:
    stage = Stage()
    stage.running()
    stage.round(120.0, {"a": on(n0=4)})
    before = stage.job().state
    assert stage.started("a", generation) == []
    assert stage.exited(Outcome.SUCCEEDED, "a", generation) == []
    stage.reported(TrainingReport(progress=5.0), "a", generation)
    assert (stage.job().state, stage.job().measured.progress) == (before, 0.0)


def test_messages_after_the_end_change_nothing() -> None:
    stage = Stage()
    stage.running()
    stage.exited(Outcome.SUCCEEDED)
    assert stage.exited(Outcome.FAILED) == []
    assert stage.started() == []
    assert stage.job().state is JobState.SUCCEEDED
    assert stage.cancel() == []


def test_a_cancelled_waiting_job_ends_at_once() -> None:
    stage = Stage()
    stage.submit()
    assert stage.cancel() == []
    assert stage.job().state is JobState.CANCELLED
    assert stage.timer(60.0) == []


@pytest.mark.parametrize("in_place", [True, False])
def test_a_cancelled_starting_job_is_stopped_and_ends_when_it_is_gone(
    in_place: bool,
) -> None:
    stage = Stage(SchedulerConfig(rescale_in_place=in_place))
    stage.submit()
    stage.round(60.0, {"a": on(n0=2)})
    assert stage.cancel() == [Stop(job="a", generation=1)]
    assert stage.cancel() == []
    assert stage.round(120.0, {}) == []
    stage.exited(Outcome.STOPPED)
    assert stage.job().state is JobState.CANCELLED


def test_a_job_that_finishes_while_it_is_cancelled_has_succeeded() -> None:
    stage = Stage()
    stage.running()
    stage.cancel()
    stage.exited(Outcome.SUCCEEDED)
    assert stage.job().state is JobState.SUCCEEDED


def test_failures_restart_the_job_until_they_are_too_many() -> None:
    stage = Stage()
    stage.submit("a", spec(max_failures=1))
    stage.round(60.0, {"a": on(n0=2)})
    stage.started()
    assert stage.exited(Outcome.FAILED, detail="boom") == [SetAlarm(at=65.0)]
    (start,) = stage.round(65.0, {"a": on(n0=2)})
    assert isinstance(start, Start)
    assert start.generation == 2
    stage.exited(Outcome.FAILED, generation=2, detail="boom again")
    job = stage.job()
    assert (job.state, job.reason) == (JobState.FAILED, Reason.TOO_MANY_FAILURES)
    assert job.explanation == "failed 2 times: boom again"


def test_lost_replicas_count_as_failure_only_if_they_got_nowhere() -> None:
    stage = Stage()
    stage.running()
    stage.reported(TrainingReport(progress=10.0))
    stage.exited(Outcome.LOST)
    assert stage.job().usage.num_failures == 0
    stage.started("a", 2)
    stage.exited(Outcome.LOST, generation=2)
    assert stage.job().usage.num_failures == 1


def test_a_lost_node_stops_its_jobs_and_frees_nothing_before_they_are_gone() -> None:
    stage = Stage()
    stage.running(allocation=on(n0=2, n1=2))
    stage.at = 70.0
    assert stage.lose("n0") == [Stop(job="a", generation=1)]
    # It goes before the job that lost its node.
    stage.submit("b", replace(spec(), priority=1))
    assert stage.round(120.0, {"b": on(n1=4)}) == []
    stage.exited(Outcome.LOST)
    assert stage.job("b").state is JobState.STARTING
    assert stage.job("a").usage.num_failures == 0
    assert stage.lose("n0") == []


def test_a_plan_made_before_a_node_was_lost_is_void() -> None:
    stage = Stage()
    stage.submit()
    stage.timer(60.0)
    stage.lose("n1")
    assert stage.plan({"a": on(n1=2)}) == []
    assert stage.scheduler.state.plan_error == ""
    assert stage.job().state is JobState.PENDING


@pytest.mark.parametrize(
    ("allocations", "error"),
    [
        ({"a": on(n0=5)}, "5 replicas"),
        ({"a": on(n9=1)}, "'n9'"),
        ({"ghost": on(n0=1)}, "'ghost'"),
    ],
)
def test_an_unlawful_plan_changes_nothing_and_says_why(
    allocations: dict, error: str
) -> None:
    stage = Stage()
    stage.running()
    assert stage.round(120.0, allocations) == []
    assert error in stage.scheduler.state.plan_error
    assert stage.job().target.allocation == on(n0=2)
    assert stage.round(180.0, {"a": on(n0=2)}) == []
    assert stage.scheduler.state.plan_error == ""


def test_a_failed_or_stale_or_repeated_plan_changes_nothing() -> None:
    stage = Stage()
    stage.running()
    stage.timer(120.0)
    stage.handle(PlanFailed(at=121.0, round=1, error="stale"))
    assert stage.scheduler.state.plan_error == ""
    stage.handle(PlanFailed(at=121.0, round=2, error="solver died"))
    assert stage.scheduler.state.plan_error == "solver died"
    assert stage.plan({}) == []
    stage.timer(180.0)
    assert stage.handle(PlanReady(at=180.0, round=2, plan=Plan())) == []
    assert stage.job().ordered == on(n0=2)


def test_a_job_that_ended_while_the_plan_was_made_is_dropped_from_it() -> None:
    stage = Stage()
    stage.running()
    stage.submit("b")
    stage.timer(120.0)
    stage.exited(Outcome.SUCCEEDED)
    (start,) = stage.plan({"a": on(n0=2), "b": on(n1=1)})
    assert isinstance(start, Start)
    assert start.job == "b"


def test_a_slow_solver_is_waited_for_and_then_given_up() -> None:
    stage = Stage(SchedulerConfig(solve_timeout_s=100.0))
    stage.submit()
    stage.timer(60.0)
    assert stage.timer(120.0) == [SetAlarm(at=180.0)]
    solve, _ = stage.timer(180.0)
    assert isinstance(solve, Solve)
    assert solve.round == 2


def test_an_early_or_repeated_alarm_is_ignored() -> None:
    stage = Stage()
    stage.submit()
    assert stage.timer(59.0) == []
    stage.timer(60.0)
    assert stage.timer(60.0) == []


def test_an_unanswered_order_is_repeated_with_the_same_generation() -> None:
    stage = Stage()
    stage.submit()
    (start,) = stage.round(60.0, {"a": on(n0=2)})
    assert start not in stage.timer(120.0)
    assert start in stage.timer(180.0)
    assert stage.job().order.num_attempts == 2
    assert start not in stage.timer(240.0)
    assert start in stage.timer(300.0)


def test_a_silent_job_is_asked_by_repeating_its_order_and_a_report_is_a_sign_of_life() -> (
    None
):
    stage = Stage()
    stage.running()
    present = Start(job="a", generation=1, spec=spec(), allocation=on(n0=2), batch=None)
    stage.at = 100.0
    stage.reported(TrainingReport(progress=1.0))
    for at in (120.0, 180.0, 240.0):
        assert present not in stage.round(at, {"a": on(n0=2)})
        assert present not in stage.timer(at)
    assert present in stage.timer(300.0)
    stage.plan({"a": on(n0=2)})
    assert present not in stage.timer(360.0)


def test_a_restarted_scheduler_repeats_every_order_and_runs_a_round() -> None:
    stage = Stage(RESTARTS)
    stage.running()
    stage.submit("b")
    stage.round(120.0, {"a": on(n0=1), "b": on(n1=2)})
    assert stage.job("a").state is JobState.STOPPING
    stage.at = 130.0
    assert stage.handle(SchedulerRestarted(at=130.0)) == [
        Stop(job="a", generation=1),
        Start(job="b", generation=1, spec=spec(), allocation=on(n1=2), batch=None),
        SetAlarm(at=180.0),
    ]


def test_other_settings_count_from_the_event_on_and_bring_the_next_round_forward() -> (
    None
):
    stage = Stage()
    stage.running()
    stage.at = 130.0
    often = SchedulerConfig(round_s=15.0, rescale_in_place=False, settle_s=0.0)
    assert stage.handle(SchedulerConfigured(at=130.0, config=often)) == [
        SetAlarm(at=135.0)
    ]
    assert stage.scheduler.config == often
    assert stage.round(135.0, {"a": on(n0=4)}) == [Stop(job="a", generation=1)]
    again = Scheduler()
    for event in stage.journal:
        again.handle(event)
    assert again.state == stage.scheduler.state


def test_other_settings_set_no_alarm_while_no_job_is_active() -> None:
    stage = Stage()
    assert (
        stage.handle(SchedulerConfigured(at=1.0, config=SchedulerConfig(round_s=15.0)))
        == []
    )


def test_attained_service_counts_every_second_that_gpus_are_held() -> None:
    stage = Stage(RESTARTS)
    stage.submit()
    stage.round(60.0, {"a": on(n0=2)})
    stage.at = 90.0
    stage.started()
    stage.round(120.0, {"a": on(n0=4)})
    stage.at = 130.0
    stage.exited(Outcome.STOPPED)
    assert stage.job().usage.attained_service_gpu_s == 2 * 70.0
    stage.at = 140.0
    stage.exited(Outcome.SUCCEEDED, generation=2)
    assert stage.job().usage.attained_service_gpu_s == 2 * 70.0 + 4 * 10.0


def test_a_measured_rescale_is_booked_once_and_its_mean_reaches_the_policy() -> None:
    stage = Stage()
    stage.running()
    assert stage.scheduler.view().jobs[0].rescale_s == 30.0
    for _ in range(2):
        stage.handle(TrainingResumed(at=70.0, job="a", generation=1, rescale_s=8.0))
    assert stage.scheduler.view().jobs[0].rescale_s == 8.0
    stage.round(120.0, {"a": on(n0=4)})
    stage.started("a", 2)
    stage.handle(TrainingResumed(at=130.0, job="a", generation=2, rescale_s=4.0))
    assert stage.scheduler.view().jobs[0].rescale_s == 6.0


def test_a_report_reaches_the_view_and_leaves_open_what_it_does_not_say() -> None:
    stage = Stage()
    stage.running()
    params = ThroughputParams(alpha_c=0.1, beta_c=0.01)
    profile = TypeProfile(params=params, num_replicas_profiled=2)
    stage.reported(
        TrainingReport(
            progress=5.0,
            batch=BatchConfig(total=16, atomic=8),
            by_type={"gpu": profile},
            grad=GradStats(sqr=1.0, var=2.0),
            forecast=Forecast(remaining_steps=3.0, step_time_s=(1.0,)),
        )
    )
    stage.reported(TrainingReport(progress=4.0))
    (job,) = stage.scheduler.view().jobs
    assert (job.measured.progress, job.measured.num_replicas_profiled) == (5.0, 2)
    assert job.measured.by_type == {"gpu": profile}
    assert job.measured.grad == GradStats(sqr=1.0, var=2.0)
    assert job.measured.batch == BatchConfig(total=16, atomic=8)
    assert job.measured.forecast == Forecast(remaining_steps=3.0, step_time_s=(1.0,))


def test_a_job_that_the_policy_fails_with_waits_for_a_reason_of_its_own() -> None:
    stage = Stage()
    stage.submit("a", spec((1, 2)))
    stage.round(60.0, {}, set_aside={"a": 660.0})
    assert stage.job().reason is Reason.SET_ASIDE
    stage.round(120.0, {})
    assert stage.job().reason is Reason.NO_CAPACITY


def test_a_job_larger_than_the_cluster_waits_and_says_so() -> None:
    stage = Stage()
    stage.submit("a", spec((16, 16)))
    stage.round(60.0, {})
    assert stage.job().reason is Reason.IMPOSSIBLE
    assert (
        stage.job().explanation
        == "waits: needs at least 16 GPUs, the cluster has 8 of one type"
    )


def test_the_view_is_ordered_and_leaves_out_what_is_on_its_way_out() -> None:
    stage = Stage()
    stage.running("b")
    stage.handle(JobSubmitted(at=stage.at, job="c", spec=spec()))
    stage.handle(JobSubmitted(at=stage.at, job="a", spec=spec()))
    assert [job.id for job in stage.scheduler.view().jobs] == ["b", "a", "c"]
    stage.cancel("b")
    assert [job.id for job in stage.scheduler.view().jobs] == ["a", "c"]
    assert stage.scheduler.view().jobs[0].allocation == WAITING


def test_books_never_go_back_in_time() -> None:
    stage = Stage()
    stage.running()
    stage.at = 30.0
    stage.reported(TrainingReport(progress=1.0))
    assert stage.scheduler.state.at == 60.0


def test_a_replayed_journal_gives_an_equal_state() -> None:
    stage = Stage(RESTARTS)
    stage.running()
    stage.submit("b")
    stage.round(120.0, {"a": on(n0=1), "b": on(n1=2)})
    stage.exited(Outcome.STOPPED)
    stage.lose("n1")
    twin = Scheduler(RESTARTS)
    for event in stage.journal:
        twin.handle(event)
    assert twin.state == stage.scheduler.state


@pytest.mark.parametrize(
    "settings",
    [
        {"round_s": 0.0},
        {"round_s": float("nan")},
        {"round_s": 1e-4},
        {"retry_s": -1.0},
        {"reaction_s": -1.0},
    ],
)
def test_a_configuration_that_cannot_work_is_refused(
    settings: dict[str, float],
) -> None:
    with pytest.raises(ValueError, match=next(iter(settings))):
        SchedulerConfig(**settings)
