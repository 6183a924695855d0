"""A node that fails jobs again and again is set aside, and nothing else is."""

from pathlib import Path

import pytest

from coadapt.core.commands import Start
from coadapt.core.events import NodeJoined, NodeLost, Outcome
from coadapt.executors.node_health import (
    FAILURES_MIN,
    PROOF_S,
    GenerationEnd,
    NodeHealth,
)
from coadapt.model import Allocation, Node
from tests.contracts.executor_contract import Inbox, exited, spec, started, until
from tests.executors.test_local import LocalSite

CLUSTER = tuple(Node(id=f"n{number}", num_gpus=4) for number in range(4))


@pytest.fixture
def health(tmp_path: Path) -> NodeHealth:
    return NodeHealth(tmp_path / "aside.json")


def end(
    job: str, node: str, outcome: Outcome = Outcome.FAILED, lived_s: float = 5.0
) -> GenerationEnd:
    failed_on = node if outcome is Outcome.FAILED else None
    nodes = frozenset({node})
    return GenerationEnd(
        job=job,
        nodes=nodes,
        outcome=outcome,
        lived_s=lived_s,
        failed_on=failed_on,
        detail="exited with 1",
    )


def fail(health: NodeHealth, node: str, *jobs: str) -> None:
    for job in jobs:
        health.ended(end(job, node))
    health.judge(CLUSTER)


def run_elsewhere(health: NodeHealth, *jobs: str) -> None:
    for job in jobs:
        health.lives(job, ["n3"], PROOF_S)


def test_a_node_that_fails_jobs_which_run_elsewhere_is_set_aside_and_says_why(
    health: NodeHealth,
) -> None:
    run_elsewhere(health, "a", "b")
    fail(health, "n0", "a", "b")
    assert health.aside == {}
    fail(health, "n0", "a")
    why = "3 ends by error in a row on it, of 2 jobs that run on other nodes (a, b)"
    assert health.aside == {"n0": f"{why}; the last one: exited with 1"}
    assert [node.id for node in health.sound(CLUSTER)] == ["n1", "n2", "n3"]


def test_a_job_that_runs_elsewhere_only_afterwards_counts_then(
    health: NodeHealth,
) -> None:
    fail(health, "n0", "a", "b", "a", "b")
    assert health.aside == {}
    run_elsewhere(health, "a", "b")
    health.judge(CLUSTER)
    assert health.aside.keys() == {"n0"}


@pytest.mark.parametrize(
    ("elsewhere", "failing"),
    [
        ((), ("a", "b", "c", "d")),  # broken scripts
        (("a",), ("a", "a", "a", "a")),  # one that breaks in its hundredth step
        (("a",), ("a", "b", "a", "b")),  # a broken one besides
    ],
)
def test_scripts_that_break_are_not_the_nodes_fault(
    health: NodeHealth, elsewhere: tuple[str, ...], failing: tuple[str, ...]
) -> None:
    run_elsewhere(health, *elsewhere)
    fail(health, "n0", *failing)
    assert health.aside == {}


@pytest.mark.parametrize(
    "well",
    [end("c", "n0", Outcome.SUCCEEDED), end("c", "n0", Outcome.STOPPED, PROOF_S)],
)
def test_a_good_end_wipes_failures_out(health: NodeHealth, well: GenerationEnd) -> None:
    run_elsewhere(health, "a", "b")
    fail(health, "n0", "a", "b")
    health.ended(well)
    fail(health, "n0", "a", "b")
    assert health.aside == {}


@pytest.mark.parametrize("outcome", [Outcome.LOST, Outcome.STOPPED])
def test_what_came_from_outside_counts_neither_way(
    health: NodeHealth, outcome: Outcome
) -> None:
    run_elsewhere(health, "a", "b")
    for job in ("a", "b") * FAILURES_MIN:
        health.ended(end(job, "n0", outcome))
    health.judge(CLUSTER)
    assert health.aside == {}
    fail(health, "n0", "a", "b", "a")
    assert health.aside.keys() == {"n0"}


def test_most_of_a_cluster_stays(health: NodeHealth) -> None:
    for job in ("a", "b"):
        health.lives(job, ["n0", "n1", "n2", "n3"], PROOF_S)
    for node in ("n0", "n1", "n2", "n3"):
        fail(health, node, "a", "b", "a")
    assert health.aside.keys() == {"n0"}
    only = CLUSTER[1:2]
    health.judge(only)
    assert health.sound(only) == only


def test_one_that_is_taken_back_begins_anew_and_the_list_outlives_the_scheduler(
    tmp_path: Path,
) -> None:
    health = NodeHealth(tmp_path / "aside.json")
    run_elsewhere(health, "a", "b")
    fail(health, "n0", "a", "b", "a")
    again = NodeHealth(tmp_path / "aside.json")
    assert again.aside == health.aside != {}
    assert not again.take_back("n1")
    assert again.take_back("n0")
    assert not again.take_back("n0")
    run_elsewhere(again, "a", "b")
    fail(again, "n0", "a", "b")
    assert again.aside == NodeHealth(tmp_path / "aside.json").aside == {}


@pytest.mark.processes
def test_the_scheduler_hears_of_it_and_of_its_return(tmp_path: Path) -> None:
    """Two jobs run on node-1 for a minute by the clock, and fail on node-0 three
    times.
    """
    at = [1_000.0]
    site = LocalSite(tmp_path)
    site.now = lambda: at[0]
    executor = site.executor()
    inbox = Inbox()
    try:
        for job in ("a", "b"):
            executor.execute(_start(site, job, 1, "sleep 600", "node-1"), inbox.post)
            inbox.wait(started(job, 1))
        at[0] += PROOF_S
        for job, generation in (("a", 2), ("b", 2), ("a", 3)):
            executor.execute(
                _start(site, job, generation, "echo no disk; exit 3", "node-0"),
                inbox.post,
            )
            last = [exited(job, 1, Outcome.STOPPED)] if generation == 2 else []
            inbox.wait(
                *last, started(job, generation), exited(job, generation, Outcome.FAILED)
            )
        until(lambda: [type(event) for event in site.node_events] == [NodeLost])
        (lost,) = site.node_events
        assert isinstance(lost, NodeLost)
        assert lost.node == "node-0"
        assert lost.why == f"was set aside: {executor.aside['node-0']}"
        assert executor.take_back("node-0")
        until(lambda: len(site.node_events) == 2)
        back = site.node_events[1]
        assert isinstance(back, NodeJoined)
        assert back.node.id == "node-0"
    finally:
        site.close()


def _start(site: LocalSite, job: str, generation: int, run: str, node: str) -> Start:
    allocation = Allocation(slots=((node, 1),))
    return Start(
        job=job,
        generation=generation,
        spec=spec(run, site.folder),
        allocation=allocation,
    )
