"""Stories for guards whose absence costs time or work, but breaks no invariant: no seed
could tell.
"""

from coadapt.core.commands import Rescale, SetAlarm, Solve, Start, Stop
from coadapt.core.config import SchedulerConfig
from coadapt.core.events import NodeJoined, Outcome, PlanFailed, SchedulerRestarted
from coadapt.core.lifecycle import JobState
from coadapt.model import Allocation, Node
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
    shrink = Rescale(
        job="b", generation=2, spec=spec(), allocation=on(n0=1), batch=None
    )
    assert stage.round(120.0, target) == [shrink]
    # Any other news must not stop "a", which only waits for the answer of "b".
    assert stage.round(180.0, target) == []
    grow = Rescale(job="a", generation=2, spec=spec(), allocation=on(n0=3), batch=None)
    assert stage.started("b", 2) == [grow]


def test_a_starting_job_is_not_stopped_for_a_change_of_mind() -> None:
    stage = Stage(SchedulerConfig(rescale_in_place=False))
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
    (rescale,) = stage.round(120.0, {"a": on(n1=2)})
    assert isinstance(rescale, Rescale)
    assert stage.lose("n0")[0] == Stop(job="a", generation=2)


def test_an_exit_that_no_plan_foresaw_calls_for_a_round() -> None:
    stage = Stage(SchedulerConfig(reaction_s=1.0))
    stage.submit("b")
    stage.running(allocation=on(n0=2))
    stage.at = 70.0
    assert stage.exited(Outcome.LOST)[-1] == SetAlarm(at=71.0)


def test_what_one_job_was_just_given_is_not_given_to_the_next() -> None:
    stage = Stage()
    stage.running(allocation=on(n0=2))
    stage.submit("b")
    stage.submit("c")
    orders = stage.round(120.0, {"b": on(n0=2), "c": on(n0=2)})
    assert [
        (type(order).__name__, order.job)
        for order in orders
        if isinstance(order, Stop | Start)
    ] == [
        ("Stop", "a"),
        ("Start", "b"),
    ]


def test_a_share_waits_until_its_gpu_has_room() -> None:
    stage = Stage()
    stage.running(allocation=half(n0=(0, 1)))
    stage.submit("b")
    stage.submit("c")
    orders = stage.round(120.0, {"b": half(n0=(0,)), "c": half(n0=(0,))})
    assert [
        (type(order).__name__, order.job)
        for order in orders
        if isinstance(order, Stop | Start)
    ] == [
        ("Stop", "a"),
        ("Start", "b"),
    ]


def test_a_plan_beyond_the_gpus_of_a_node_is_refused() -> None:
    stage = Stage()
    stage.submit("a")
    stage.submit("b")
    assert stage.round(60.0, {"a": on(n0=4), "b": half(n0=(0,))}) == []
    assert (
        stage.scheduler.state.plan_error
        == "node 'n0': 5 GPUs given, 1 of them shared, it has 4"
    )


def half(**labels: tuple[int, ...]) -> Allocation:
    slots = tuple((node, len(on_node)) for node, on_node in labels.items())
    return Allocation(
        slots=slots, gpu_share=0.5, shared=tuple(sum(labels.values(), ()))
    )


def test_a_job_that_waits_for_its_place_on_a_lost_node_does_not_start_there_when_it_is_back() -> (
    None
):
    stage = Stage()
    stage.running(allocation=on(n0=4))
    stage.submit("b")
    stage.submit("c")
    stage.round(120.0, {"b": on(n0=4), "c": on(n1=4)})
    stage.lose("n0")
    stage.exited(Outcome.STOPPED)
    stage.handle(NodeJoined(at=stage.at, node=Node(id="n0", num_gpus=4)))
    assert (
        stage.started("c") == []
    )  # nor at any other event: that plan was for other nodes
    orders = stage.round(180.0, {"b": on(n0=4), "c": on(n1=4)})
    assert [order.job for order in orders if isinstance(order, Start)] == ["a"]
    # The job that lost its node restarts before the job that waits.
