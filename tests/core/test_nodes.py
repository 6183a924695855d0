"""Nodes that are lost, and those that are set aside: what their jobs say."""

import pytest

from coadapt.core.commands import Start, Stop
from coadapt.core.events import NodeJoined, NodeLost, Outcome
from coadapt.core.lifecycle import JobState, Reason
from coadapt.model import Node
from coadapt.model.view import current_allocations
from tests.core.stage import Stage, on, spec

N1_JOINED = NodeJoined(at=121.0, node=Node(id="n1", num_gpus=4))


@pytest.mark.parametrize("why", ["was lost", "was set aside: it fails jobs"])
def test_a_job_says_what_became_of_its_node(why: str) -> None:
    stage = Stage()
    stage.running()
    event = (
        NodeLost(at=stage.at, node="n0")
        if why == "was lost"
        else NodeLost(at=stage.at, node="n0", why=why)
    )
    assert Stop(job="a", generation=1) in stage.handle(event)
    assert (stage.job().reason, stage.job().explanation) == (
        Reason.NODE_LOST,
        f"stopped: node n0 {why}",
    )


def test_a_job_that_waits_says_what_the_cluster_has_now_though_the_plan_says_the_same() -> (
    None
):
    stage = Stage()
    stage.submit(job_spec=spec((6, 8)))
    reasons = list[str]()
    for at, event in (
        (60.0, None),
        (120.0, NodeLost(at=61.0, node="n1")),
        (180.0, N1_JOINED),
    ):
        if event is not None:
            stage.handle(event)
        stage.round(at, {})
        reasons.append(stage.job().explanation)
    needs = "waits: needs at least 6 GPUs, "
    waits = needs + "8 of 8 are free, and the policy gives it none"
    small = needs + "the cluster has 4 of one type; node n1 with 4 was lost"
    assert reasons == [waits, small, waits]


def test_a_node_that_comes_back_is_full_of_those_who_have_not_ended_there() -> None:
    """Its agent was gone for a moment: who holds what is known, whoever was to be
    stopped may still live.
    """
    stage = Stage()
    stage.running(allocation=on(n0=3))
    stage.lose("n0")
    stage.handle(NodeJoined(at=stage.at, node=Node(id="n0", num_gpus=4)))
    stage.submit("b")
    assert stage.round(120.0, {"b": on(n0=2)}) == []
    commands = stage.exited(Outcome.STOPPED)
    assert [command.job for command in commands if isinstance(command, Start)] == ["b"]


def test_a_job_that_ended_just_before_its_node_was_lost_gives_nothing_back_to_the_next() -> (
    None
):
    stage = Stage()
    stage.running(allocation=on(n0=3))
    stage.submit("b")
    stage.round(120.0, {"a": on(n0=3)})
    stage.exited(Outcome.SUCCEEDED)
    stage.lose("n0")
    stage.handle(NodeJoined(at=stage.at, node=Node(id="n0", num_gpus=4)))
    assert current_allocations(stage.scheduler.view()).free.whole == {"n0": 4, "n1": 4}


@pytest.mark.parametrize(
    ("now", "stops"),
    [
        (Node(id="n0", num_gpus=4), False),
        (Node(id="n0", num_gpus=6), False),
        (Node(id="n0", num_gpus=2), False),
        (Node(id="n0", num_gpus=1), True),
        (Node(id="n0", num_gpus=4, gpu_type="other"), True),
    ],
)
def test_a_known_node_that_joins_again_stops_its_jobs_if_it_is_another_or_too_small(
    now: Node, stops: bool
) -> None:
    stage = Stage()
    stage.running()
    joined = stage.handle(NodeJoined(at=80.0, node=now))
    assert [each for each in joined if isinstance(each, Stop)] == [
        Stop(job="a", generation=1)
    ] * stops


def test_a_node_that_got_smaller_gives_what_it_has_left() -> None:
    stage = Stage()
    stage.running()
    for count, free in ((6, 4), (3, 1), (2, 0)):
        stage.handle(NodeJoined(at=stage.at, node=Node(id="n0", num_gpus=count)))
        assert current_allocations(stage.scheduler.view()).free.whole == {
            "n0": free,
            "n1": 4,
        }
    stage.submit("b")
    stage.round(120.0, {"a": on(n0=2), "b": on(n0=1)})
    assert "3 GPUs given, it has 2" in stage.scheduler.state.plan_error
    stage.round(180.0, {"a": on(n0=2), "b": on(n1=1)})
    assert stage.job("b").state is JobState.STARTING
    stage.exited(Outcome.SUCCEEDED)
    assert current_allocations(stage.scheduler.view()).free.whole == {"n0": 2, "n1": 3}


def test_who_was_to_start_on_a_node_that_got_too_small_waits_for_the_next_plan() -> (
    None
):
    stage = Stage()
    stage.running()
    stage.submit("b")
    stage.round(120.0, {"b": on(n0=4)})  # once `a` has ended
    assert stage.handle(NodeJoined(at=stage.at, node=Node(id="n0", num_gpus=3))) == []
    assert [
        each for each in stage.exited(Outcome.STOPPED) if isinstance(each, Start)
    ] == []
    stage.round(180.0, {"b": on(n0=3)})
    assert stage.job("b").state is JobState.STARTING
