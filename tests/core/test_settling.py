"""Stories of a job that starts and is left in peace until it took a step."""

import pytest

from coadapt.core.commands import Rescale, Start, Stop
from coadapt.core.events import (
    Outcome,
    SetupStarted,
    TenantConfigured,
    TrainerSeen,
    TrainingResumed,
)
from coadapt.core.lifecycle import JobState, Reason
from coadapt.core.scheduler import Scheduler
from coadapt.model import Tenant, TrainingReport
from coadapt.runtime.story import why_now
from tests.core.stage import Stage, on, spec

SETTLE_S = 600.0


@pytest.fixture
def stage() -> Stage:
    """Job a was started on two GPUs at 60 s, and has not taken a step."""
    stage = Stage(settle_s=SETTLE_S)
    stage.submit()
    stage.round(60.0, {"a": on(n0=2)})
    return stage


def took_step(stage: Stage, generation: int = 1) -> list[object]:
    event = TrainingResumed(at=stage.at, job="a", generation=generation, rescale_s=30.0)
    return list(stage.handle(event))


def test_a_policy_that_changes_its_mind_each_round_stops_nothing_before_the_first_step(
    stage: Stage,
) -> None:
    """22 stops in 130 s were seen."""
    stage.submit("b")
    orders = []
    for number in range(2, 10):
        plan = {"b": on(n1=4)} if number % 2 else {"a": on(n0=4)}
        orders += stage.round(60.0 * number, plan)
        stage.started("a")
    assert [type(order) for order in orders if order.job == "a"] == []  # type: ignore[union-attr]
    assert stage.job().state is JobState.RUNNING


def test_what_the_last_plan_wants_comes_about_with_the_first_step(stage: Stage) -> None:
    stage.started()
    assert stage.round(120.0, {"a": on(n0=4)}) == []
    assert (
        stage.job().explanation
        == "takes its first step before anything else: runs on 4 GPUs"
    )
    stage.at = 130.0
    rescale = Rescale(
        job="a", generation=2, spec=spec(), allocation=on(n0=4), batch=None
    )
    assert took_step(stage) == [rescale]
    assert took_step(stage) == []


def test_a_job_that_is_to_give_way_gives_way_after_its_first_step(stage: Stage) -> None:
    stage.submit("b", spec((8, 8)))
    assert stage.round(120.0, {"b": on(n0=4, n1=4)}) == []
    assert (stage.job().state, stage.job().reason) == (
        JobState.STARTING,
        Reason.ALLOCATED,
    )
    stage.started()
    assert took_step(stage) == [Stop(job="a", generation=1)]


def test_a_job_that_waits_for_a_starting_one_says_which_and_until_when(
    stage: Stage,
) -> None:
    stage.submit("b", spec((8, 8)))
    stage.round(120.0, {"b": on(n0=4, n1=4)})
    assert why_now(stage.job("b").status)[1] == (
        "waits for 8 GPUs of a, which gives them up after a first step, "
        "or in 9 min at the latest"
    )
    stage.started()
    took_step(stage)
    stage.round(180.0, {"b": on(n0=4, n1=4)})
    assert why_now(stage.job("b").status)[1] == (
        "waits for 8 GPUs of a; they are free once its replicas have stopped"
    )
    stage.exited(Outcome.STOPPED)
    assert stage.job("b").state is JobState.STARTING
    assert why_now(stage.job("b").status)[1] == "runs on 8 GPUs"


def test_a_job_that_the_plan_drops_waits_for_no_job(stage: Stage) -> None:
    stage.submit("b", spec((8, 8)))
    stage.round(120.0, {"b": on(n0=4, n1=4)})
    assert stage.job("b").status.blocked
    stage.round(180.0, {"a": on(n0=2)})
    assert not stage.job("b").status.blocked


def test_a_report_of_progress_is_a_step_and_one_without_is_not(stage: Stage) -> None:
    stage.started()
    stage.round(120.0, {"a": on(n0=4)})
    assert stage.reported(TrainingReport(progress=0.0)) == []
    assert len(stage.reported(TrainingReport(progress=1.0))) == 1


def test_a_restart_must_take_a_step_of_its_own(stage: Stage) -> None:
    stage.started()
    took_step(stage)
    stage.reported(TrainingReport(progress=50.0))
    (start,) = stage.exited(Outcome.LOST)
    assert isinstance(start, Start)
    stage.started("a", 2)
    assert stage.round(120.0, {"a": on(n0=4)}) == []
    assert stage.reported(TrainingReport(progress=50.0), generation=2) == []
    assert took_step(stage, 1) == []
    assert len(stage.reported(TrainingReport(progress=51.0), generation=2)) == 1


def test_a_rescale_in_place_that_was_answered_needs_no_peace(stage: Stage) -> None:
    stage.started()
    took_step(stage)
    stage.round(120.0, {"a": on(n0=4)})
    stage.started("a", 2)
    assert len(stage.round(180.0, {"a": on(n0=1)})) == 1


def test_peace_ends_after_a_while(stage: Stage) -> None:
    stage.started()
    assert stage.round(600.0, {}) == []
    assert stage.round(660.0, {}) == [Stop(job="a", generation=1)]


@pytest.mark.parametrize("answered", [True, False])
def test_who_takes_gpus_away_does_not_wait(stage: Stage, answered: bool) -> None:
    if answered:
        stage.started()
    if answered:
        assert stage.cancel() == [Stop(job="a", generation=1)]
    else:
        assert stage.lose("n0")[0] == Stop(job="a", generation=1)


def test_a_quota_that_is_cut_does_not_wait(stage: Stage) -> None:
    stage.started()
    stage.handle(TenantConfigured(at=100.0, tenant=Tenant(id="default", quota_gpus=1)))
    assert stage.round(120.0, {"a": on(n0=1)}) == [
        Rescale(job="a", generation=2, spec=spec(), allocation=on(n0=1), batch=None)
    ]


def two_that_settle(quota: int | None) -> Stage:
    """Jobs a and b, of one GPU each, are to grow to three once they have settled. They
    settle until 660 and 720 s.
    """
    stage = Stage(settle_s=SETTLE_S)
    stage.handle(TenantConfigured(at=0.0, tenant=Tenant(id="default", quota_gpus=8)))
    stage.submit("a")
    stage.round(60.0, {"a": on(n0=1)})
    stage.started("a")
    stage.submit("b")
    stage.round(120.0, {"a": on(n0=1), "b": on(n1=1)})
    stage.started("b")
    assert stage.round(180.0, {"a": on(n0=3), "b": on(n1=3)}) == []
    stage.handle(
        TenantConfigured(at=190.0, tenant=Tenant(id="default", quota_gpus=quota))
    )
    return stage


def test_jobs_that_rest_are_changed_with_the_next_event_after_a_quota_was_cut() -> None:
    """Which jobs hold more than the quota may change with any event."""
    for quota, sent in ((8, []), (None, []), (1, ["a", "b"])):
        stage = two_that_settle(quota)
        stage.at = 200.0
        stage.submit("c")
        orders = stage.cancel("c") + stage.lose("n9")
        seen = TrainerSeen(at=200.0, job="a", generation=1, seen=True)
        orders += stage.handle(seen)
        assert [order.job for order in orders if isinstance(order, Rescale)] == sent


def test_each_job_that_rests_settles_at_its_own_instant() -> None:
    stage = two_that_settle(None)
    changed = []
    for at in (640.0, 659.9, 660.0, 719.9, 720.0):
        seen = TrainerSeen(at=at, job="a", generation=1, seen=True)
        orders = stage.handle(seen)
        changed += [(at, each.job) for each in orders if isinstance(each, Rescale)]
    assert changed == [(660.0, "a"), (720.0, "b")]


def test_nobody_is_stopped_for_a_ring_while_a_job_settles() -> None:
    stage = Stage(settle_s=SETTLE_S)
    stage.submit("a")
    stage.submit("b")
    stage.round(60.0, {"a": on(n0=4), "b": on(n1=4)})
    stage.started("a")
    stage.started("b")
    took_step(stage)
    assert stage.round(120.0, {"a": on(n1=4), "b": on(n0=4)}) == []
    stage.handle(TrainingResumed(at=130.0, job="b", generation=1, rescale_s=1.0))
    assert stage.job("a").state is JobState.STOPPING


def test_it_replays_to_an_equal_state(stage: Stage) -> None:
    stage.started()
    stage.round(120.0, {"a": on(n0=4)})
    took_step(stage)
    twin = Scheduler()
    for event in stage.journal:
        twin.handle(event)
    assert twin.state == stage.scheduler.state


def test_a_plain_script_is_preempted_at_once(stage: Stage) -> None:
    """It never tells of a first step: a job of priority waited ten minutes for it."""
    stage.started()
    stage.submit("b", spec((8, 8)))
    assert stage.round(120.0, {"b": on(n0=4, n1=4)}) == []
    plain = TrainerSeen(at=stage.at, job="a", generation=1, seen=False)
    assert stage.handle(plain) == [Stop(job="a", generation=1)]


def test_a_script_that_trains_after_all_is_left_in_peace_again(stage: Stage) -> None:
    stage.started()
    for seen in (False, True):
        event = TrainerSeen(at=stage.at, job="a", generation=1, seen=seen)
        assert stage.handle(event) == []
    assert stage.round(120.0, {}) == []
    stage.handle(TrainerSeen(at=stage.at, job="a", generation=7, seen=False))
    assert not stage.job().running.is_plain


def test_what_a_job_waits_for_says_that_its_setup_runs_and_since_when(
    stage: Stage,
) -> None:
    event = SetupStarted(at=stage.at, job="a", generation=1, since=3_600.0)
    assert stage.handle(event) == []
    assert why_now(stage.job().status)[1].startswith(
        "its setup runs since 01:00:00 UTC"
    )
    stage.started()
    assert "setup" not in why_now(stage.job().status)[1]


def test_a_failure_without_progress_is_repeated_after_a_pause_that_doubles() -> None:
    """A setup that fails was repeated four times within 12 s."""
    stage = Stage()
    stage.submit()
    starts = []
    stage.round(60.0, {"a": on(n0=2)})
    for number in (1, 2, 3):
        stage.exited(Outcome.FAILED, generation=number, detail="no such package")
        failed_at = stage.at
        assert stage.job().state is JobState.PENDING
        assert f"after a pause of {5 * 2 ** (number - 1)} s" in stage.job().explanation
        # A plan that was made meanwhile does not know the job, and changes nothing.
        assert [job.id for job in stage.scheduler.view().jobs] == []
        due = failed_at + 5.0 * 2.0 ** (number - 1)
        commands = stage.round(due, {"a": on(n0=2)})
        assert [type(each) for each in commands] == [Start]
        starts.append(due - failed_at)
    assert starts == [5.0, 10.0, 20.0]
    stage.exited(Outcome.FAILED, generation=4, detail="no such package")
    assert stage.job().state is JobState.FAILED


def test_a_failure_after_progress_or_a_long_run_is_repeated_at_once() -> None:
    stage = Stage()
    stage.submit()
    stage.round(60.0, {"a": on(n0=2)})
    stage.reported(TrainingReport(progress=8.0))
    commands = stage.exited(Outcome.FAILED)
    assert Start in [type(each) for each in commands]
    stage.at += 300.0
    commands = stage.exited(Outcome.FAILED, generation=2)
    assert Start in [type(each) for each in commands]


def test_a_job_that_rests_can_be_cancelled() -> None:
    stage = Stage()
    stage.submit()
    stage.round(60.0, {"a": on(n0=2)})
    stage.exited(Outcome.FAILED)
    stage.cancel()
    assert stage.job().state is JobState.CANCELLED
