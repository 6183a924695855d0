"""Stories for guards whose absence costs time or work, but breaks no invariant: no seed could tell."""

from coadapt.core.commands import Resize, SetAlarm, Solve, Stop
from coadapt.core.config import SchedulerConfig
from coadapt.core.events import Outcome, PlanFailed, SchedulerRestarted
from coadapt.core.lifecycle import JobState
from tests.core.stage import Stage, on, spec


def test_a_blocked_job_is_left_alone_while_another_is_still_shrinking() -> None:
    stage = Stage()
    stage.submit("a")
    stage.submit("b")
    stage.submit("c")
    stage.round(60.0, {"a": on(n0=2), "b": on(n0=2), "c": on(n1=4)})
    for job in ("a", "b", "c"):
        stage.started(job)
    target = {"a": on(n0=3), "b": on(n0=1), "c": on(n1=4)}
    shrink = Resize(job="b", generation=2, spec=spec(), allocation=on(n0=1), batch=None)
    assert stage.round(120.0, target) == [shrink]
    # Any other news must not stop "a", which only waits for the answer of "b".
    assert stage.round(180.0, target) == []
    grow = Resize(job="a", generation=2, spec=spec(), allocation=on(n0=3), batch=None)
    assert stage.started("b", 2) == [grow]


def test_a_starting_job_is_not_stopped_for_a_change_of_mind() -> None:
    stage = Stage(SchedulerConfig(resize_in_place=False))
    stage.submit()
    stage.round(60.0, {"a": on(n0=2)})
    assert stage.round(120.0, {"a": on(n0=4)}) == []
    assert stage.job().state is JobState.STARTING


def test_a_restarted_scheduler_does_not_wait_for_the_solver_that_died_with_it() -> None:
    stage = Stage()
    stage.submit()
    (solve, _) = stage.timer(60.0)
    assert isinstance(solve, Solve)
    stage.at = 65.0
    stage.handle(SchedulerRestarted(at=65.0))
    again = stage.timer(120.0)
    assert [command.round for command in again if isinstance(command, Solve)] == [2]
    assert stage.handle(PlanFailed(at=121.0, round=1, error="late")) == []


def test_a_job_that_moves_away_from_a_node_when_that_is_lost_is_stopped() -> None:
    stage = Stage()
    stage.running(allocation=on(n0=2))
    (resize,) = stage.round(120.0, {"a": on(n1=2)})
    assert isinstance(resize, Resize)
    assert stage.lose("n0")[0] == Stop(job="a", generation=2)


def test_an_exit_that_no_plan_foresaw_calls_for_a_round() -> None:
    stage = Stage(SchedulerConfig(reaction_s=1.0))
    stage.submit("b")
    stage.running(allocation=on(n0=2))
    stage.at = 70.0
    assert stage.exited(Outcome.LOST)[-1] == SetAlarm(at=71.0)
