"""A node that lacks something of one job: the job goes on elsewhere, is not blamed, and
others keep the node.
"""

from coadapt.core.commands import Command, Start
from coadapt.core.events import Outcome, ReplicasExited
from coadapt.core.lifecycle import JobState
from coadapt.core.unfit_nodes import moved
from coadapt.model import WAITING, Allocation, Node
from coadapt.model.wire import from_json, to_json
from coadapt.runtime.snapshot import job_snapshot
from tests.core.stage import Stage, on, spec

WHY = "node n0 has no work directory /home/a (No such file or directory)"
NODES = {name: Node(id=name, num_gpus=4) for name in ("n0", "n1", "n2")}


def exits_on(stage: Stage, node: str, generation: int = 1) -> list[Command]:
    return stage.handle(
        ReplicasExited(
            at=stage.at,
            job="a",
            generation=generation,
            outcome=Outcome.FAILED,
            detail=WHY,
            unfit_node=node,
        )
    )


def test_a_plan_on_that_node_is_carried_out_elsewhere() -> None:
    stage = Stage()
    stage.submit("a", spec(max_failures=0))
    stage.round(60.0, {"a": on(n0=2)})
    exits_on(stage, "n0")
    job = stage.job()
    assert (job.state, job.usage.num_failures) == (JobState.PENDING, 0)
    assert WHY in job.explanation
    (start,) = stage.round(120.0, {"a": on(n0=1, n1=1)})
    assert isinstance(start, Start)
    assert start.allocation == on(n1=2)
    stage.started("a", 2)
    # The same plan again moves nothing.
    assert stage.round(180.0, {"a": on(n0=1, n1=1)}) == []
    assert job_snapshot(stage.job(), stage.at)["nodes_unfit"] == {"n0": WHY}


def test_what_others_were_given_is_not_taken() -> None:
    stage = Stage()
    stage.submit("a", spec(max_failures=0))
    stage.submit("b")
    stage.round(60.0, {"a": on(n0=2), "b": on(n1=4)})
    exits_on(stage, "n0")
    stage.round(120.0, {"a": on(n0=2), "b": on(n1=4)})
    assert stage.job().state is JobState.PENDING
    assert stage.job().explanation == (
        f"waits: needs at least 1 GPU, 0 of 4 are free, b has 4; not on n0: {WHY}"
    )
    assert stage.scheduler.state.plan_error == ""


def test_a_second_end_for_the_same_cause_is_a_failure() -> None:
    """What engines say again and again must not restart a job for ever."""
    stage = Stage()
    stage.submit("a", spec(max_failures=0))
    stage.round(60.0, {"a": on(n0=2)})
    exits_on(stage, "n0")
    stage.round(120.0, {"a": on(n1=2)})
    exits_on(stage, "n0", generation=2)
    assert stage.job().state is JobState.FAILED


def test_gpus_are_taken_where_the_plan_left_them() -> None:
    free = {"n0": 0, "n1": 1, "n2": 2}
    given = moved(on(n0=3), WAITING, {"n0": WHY}, NODES, free=free, least=1)
    assert given == on(n2=2, n1=1)
    assert free == {"n0": 3, "n1": 0, "n2": 0}
    few = moved(on(n0=3), WAITING, {"n0": WHY}, NODES, free={"n2": 2}, least=3)
    assert few == WAITING
    held: Allocation = on(n1=1)
    same = moved(on(n0=1), held, {"n0": WHY}, NODES, free={"n1": 1, "n2": 4}, least=1)
    assert same.slots == held.slots


def test_events_of_before_are_read() -> None:
    exited = ReplicasExited(at=1.0, job="a", generation=1, outcome=Outcome.LOST)
    older = to_json(exited)
    del older["unfit_node"]  # type: ignore[union-attr,arg-type]
    assert from_json(ReplicasExited, older) == exited
