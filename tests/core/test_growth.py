"""A growth that fails costs nothing: the job goes back, the size is set aside, its
other failures count as ever.
"""

import random
from dataclasses import replace

import pytest

from coadapt.core.commands import Rescale, Start, Stop
from coadapt.core.config import SchedulerConfig
from coadapt.core.events import Event, Outcome, SchedulerConfigured, TrainingResumed
from coadapt.core.growth import (
    ATTEMPTS_MAX,
    Growth,
    Size,
    after_step,
    cut,
    size_of,
    within,
)
from coadapt.core.lifecycle import JobState, Reason
from coadapt.core.scheduler import Scheduler
from coadapt.core.state import SchedulerState
from coadapt.model import Allocation, Grant, TrainingReport
from coadapt.model.wire import dumps, from_json, loads, to_json
from coadapt.runtime.snapshot import job_snapshot
from coadapt.runtime.story import story
from tests.core.stage import Stage, on, spec

BROKEN = "Gloo connectFullMesh failed: connection refused, remote=[127.0.1.1]"


def resumed(stage: Stage, generation: int, job: str = "a") -> None:
    stage.handle(
        TrainingResumed(at=stage.at, job=job, generation=generation, rescale_s=1.0)
    )


def trains_on_one(stage: Stage, max_failures: int = 3) -> None:
    """Bring job a to train on one GPU of n0."""
    stage.submit("a", spec(max_failures=max_failures))
    stage.round(60.0, {"a": on(n0=1)})
    stage.started()
    resumed(stage, 1)


def grows_and_fails(stage: Stage, at: float, allocation: Allocation) -> list:
    """Order the growth in the round at `at`; its replicas end with an error before
    their first step.
    """
    (order,) = stage.round(at, {"a": allocation})
    assert isinstance(order, Rescale)
    return stage.exited(Outcome.FAILED, generation=order.generation, detail=BROKEN)


def goes_on(stage: Stage, start: Start) -> None:
    stage.started("a", start.generation)
    resumed(stage, start.generation)


def max_replicas(stage: Stage) -> int:
    (view,) = stage.scheduler.view().jobs
    return view.spec.replicas.max


def test_a_job_whose_growth_failed_goes_back_at_once_and_is_not_blamed() -> None:
    stage = Stage()
    trains_on_one(stage, max_failures=0)
    (start,) = grows_and_fails(stage, 120.0, on(n0=2, n1=2))
    assert isinstance(start, Start)
    assert start.allocation == on(n0=1)
    job = stage.job()
    assert (job.state, job.reason) == (JobState.STARTING, Reason.ALLOCATED)
    assert job.usage.num_failures == 0
    assert "goes back to 1 GPU on 1 node" in job.explanation
    assert BROKEN in job.explanation
    assert max_replicas(stage) == 1
    goes_on(stage, start)
    assert max_replicas(stage) == 4


def test_a_size_that_failed_twice_is_set_aside_with_its_reason() -> None:
    stage = Stage()
    trains_on_one(stage, max_failures=0)
    for at in (120.0, 180.0):
        (start,) = grows_and_fails(stage, at, on(n0=2, n1=2))
        goes_on(stage, start)
    shown = job_snapshot(stage.job(), stage.at)
    assert shown["sizes_set_aside"] == [
        "4 GPUs on 2 nodes and more are set aside for this job, they failed 2 times: "
        + BROKEN
    ]
    # As many on one node may still do; the same over two nodes is cut to one.
    assert max_replicas(stage) == 4
    (order,) = stage.round(240.0, {"a": on(n0=1, n1=3)})
    assert order.allocation == on(n1=3)
    assert stage.job().explanation.startswith("gets fewer GPUs than planned: 4 GPUs")
    lines = story(stage.journal, "a", SchedulerConfig())
    assert any("are set aside for this job" in line.text for line in lines)


def test_replicas_that_fail_on_the_same_nodes_halve_the_maximum() -> None:
    stage = Stage()
    trains_on_one(stage, max_failures=0)
    for at in (120.0, 180.0):
        (start,) = grows_and_fails(stage, at, on(n0=4))
        goes_on(stage, start)
    assert max_replicas(stage) == 2
    for at in (240.0, 300.0):
        (start,) = grows_and_fails(stage, at, on(n0=2))
        goes_on(stage, start)
    assert max_replicas(stage) == 1
    assert stage.job().usage.num_failures == 0


def test_an_end_at_the_size_that_trained_is_the_jobs_own() -> None:
    stage = Stage()
    trains_on_one(stage, max_failures=0)
    stage.exited(Outcome.FAILED, detail="boom")
    assert stage.job().reason is Reason.TOO_MANY_FAILURES


def test_a_first_size_that_fails_is_the_jobs_own() -> None:
    stage = Stage()
    stage.submit("a", spec(max_failures=0))
    stage.round(60.0, {"a": on(n0=2, n1=2)})
    stage.exited(Outcome.FAILED, detail="boom")
    assert stage.job().reason is Reason.TOO_MANY_FAILURES


@pytest.mark.parametrize("trained_s", [30.0, 90.0])
def test_a_larger_size_is_on_trial_for_a_minute(trained_s: float) -> None:
    stage = Stage()
    trains_on_one(stage, max_failures=0)
    stage.round(120.0, {"a": on(n0=2, n1=2)})
    stage.started("a", 2)
    resumed(stage, 2)
    stage.at += trained_s
    stage.reported(TrainingReport(progress=100.0), generation=2)
    stage.exited(Outcome.FAILED, generation=2, detail="out of memory")
    job = stage.job()
    if trained_s < 60.0:
        assert job.ordered == on(n0=1)
        assert job.usage.num_failures == 0
    else:
        assert job.reason is Reason.TOO_MANY_FAILURES


def test_a_start_at_a_larger_size_is_a_growth_as_well() -> None:
    stage = Stage()
    trains_on_one(stage, max_failures=0)
    stage.round(120.0, {})
    stage.exited(Outcome.STOPPED)
    (start,) = stage.round(180.0, {"a": on(n0=2, n1=2)})
    (again,) = stage.exited(Outcome.LOST, generation=start.generation)
    assert again.allocation == on(n0=1)
    assert stage.job().usage.num_failures == 0


def test_a_node_that_goes_away_is_no_failed_growth() -> None:
    stage = Stage()
    trains_on_one(stage)
    (order,) = stage.round(120.0, {"a": on(n0=2, n1=2)})
    stage.lose("n1")
    stage.exited(Outcome.LOST, generation=order.generation)
    assert stage.job().growth.failed == ()
    assert max_replicas(stage) == 4


def test_a_plan_of_before_the_failure_is_void() -> None:
    stage = Stage()
    trains_on_one(stage)
    (order,) = stage.round(120.0, {"a": on(n0=2, n1=2)})
    stage.timer(180.0)
    stage.exited(Outcome.FAILED, generation=order.generation)
    assert stage.plan({"a": on(n0=2, n1=2)}) == []
    assert stage.scheduler.state.plan_error == ""
    assert stage.job().ordered == on(n0=1)


def test_changes_that_did_not_begin_count_as_attempts() -> None:
    stage = Stage()
    trains_on_one(stage, max_failures=0)
    (order,) = stage.round(120.0, {"a": on(n0=4)})
    stage.kept("a", order.generation, detail="the joiners' dry step failed")
    assert max_replicas(stage) == 4
    (start,) = grows_and_fails(stage, 180.0, on(n0=4))
    goes_on(stage, start)
    assert max_replicas(stage) == 2


def test_a_size_for_which_a_joining_replica_fails_twice_is_set_aside_without_a_stop() -> (
    None
):
    stage = Stage()
    trains_on_one(stage, max_failures=0)
    for at in (120.0, 180.0):
        (order,) = stage.round(at, {"a": on(n0=4)})
        assert isinstance(order, Rescale)
        orders = stage.kept(
            "a", order.generation, detail="out of memory", joiner_failed=True
        )
        assert orders == []
        assert stage.job().state is JobState.RUNNING
    assert max_replicas(stage) == 2
    assert "4 GPUs on 1 node and more are set aside" in stage.job().explanation
    for number in range(3):
        at = 240.0 + 60.0 * number
        orders = stage.round(at, {"a": on(n0=2)})
        assert not any(isinstance(order, Stop) for order in orders)
        if orders:
            stage.kept("a", orders[0].generation, "boom", joiner_failed=True)
    assert max_replicas(stage) == 1
    job = stage.job()
    assert (job.usage.num_failures, job.running.generation) == (0, 1)
    assert_replays(stage.journal, stage.scheduler.state)


def test_a_joining_replica_that_fails_where_no_growth_is_asked_for_leads_to_a_stop() -> (
    None
):
    stage = Stage()
    trains_on_one(stage, max_failures=0)
    orders = []
    for number in range(4):
        orders = stage.round(120.0 + 60.0 * number, {"a": on(n1=1)})
        if isinstance(orders[0], Stop):
            break
        stage.kept("a", orders[0].generation, "boom", joiner_failed=True)
    assert isinstance(orders[0], Stop)
    assert max_replicas(stage) == 4


def test_a_size_that_passes_its_trial_is_no_longer_in_doubt() -> None:
    trained = Growth(trained=Size(num_replicas=1, num_nodes=1))
    larger = size_of(on(n0=4))
    on_trial = after_step(trained, larger, 2, 100.0, trial_s=60.0)
    assert on_trial.trained == trained.trained
    passed = after_step(on_trial, larger, 2, 160.0, trial_s=60.0)
    assert (passed.trained, passed.known) == (larger, 2)
    assert not passed.is_attempt(larger)


def test_a_part_of_an_allocation_keeps_the_fullest_nodes_in_their_order() -> None:
    target = Grant(allocation=on(n0=1, n1=3, n2=2))
    most = Size(num_replicas=4, num_nodes=2)
    assert cut(target, most, 1).allocation == on(n1=3, n2=1)
    assert not cut(target, most, 5)
    assert within(Growth(), target, 1) == target


def test_the_books_of_sizes_are_saved_and_those_of_before_are_read() -> None:
    stage = Stage()
    trains_on_one(stage)
    grows_and_fails(stage, 120.0, on(n0=2, n1=2))
    state = stage.scheduler.state
    saved = loads({"SchedulerState": SchedulerState}, dumps(state))
    assert saved.jobs["a"].growth == state.jobs["a"].growth
    older = to_json(state)
    del older["jobs"]["a"]["growth"]  # type: ignore[index,call-overload,union-attr]
    assert from_json(SchedulerState, older).jobs["a"].growth == Growth()


def test_a_journal_of_before_is_replayed_as_it_was_decided() -> None:
    written = to_json(SchedulerConfigured(at=0.0, config=SchedulerConfig()))
    del written["config"]["growth_trial_s"]  # type: ignore[index,call-overload,union-attr]
    config = from_json(SchedulerConfigured, written).config
    assert config == replace(SchedulerConfig(), growth_trial_s=0.0)
    stage = Stage(config)
    trains_on_one(stage, max_failures=0)
    grows_and_fails(stage, 120.0, on(n0=2, n1=2))
    assert stage.job().reason is Reason.TOO_MANY_FAILURES


@pytest.mark.parametrize("seed", range(15))
def test_a_job_that_works_on_few_gpus_only_is_never_given_up(seed: int) -> None:
    """Plans are drawn at random; the job breaks above a size, in a change or in a
    start, at once or a step late.
    """
    rng = random.Random(seed)
    works = Size(num_replicas=rng.randint(1, 6), num_nodes=rng.randint(1, 2))
    stage = Stage()
    stage.submit("a", spec((1, 8), max_failures=0))
    stage.round(60.0, {"a": on(n0=1)})
    stage.started()
    resumed(stage, 1)
    num_broken = 0
    for number in range(2, 200):
        orders = stage.round(60.0 * number, {"a": drawn(rng, max_replicas(stage))})
        order = next(iter(orders), None)
        while order is not None and not isinstance(order, Stop):
            broken = size_of(stage.job().ordered).exceeds(works)
            if not broken or rng.random() < 0.3:
                stage.started("a", order.generation)
                resumed(stage, order.generation)
            if not broken:
                break
            num_broken += 1
            outcome = rng.choice((Outcome.FAILED, Outcome.LOST))
            order = next(iter(stage.exited(outcome, generation=order.generation)), None)
        if stage.job().state is JobState.STOPPING:
            stage.exited(Outcome.STOPPED, generation=stage.job().generation)
    assert stage.job().usage.num_failures == 0
    # Each number of replicas on one and on two nodes, at most.
    assert num_broken <= ATTEMPTS_MAX * 2 * 8
    assert_replays(stage.journal, stage.scheduler.state)


def drawn(rng: random.Random, most: int) -> Allocation:
    total = rng.randint(1, most)
    first = rng.randint(max(total - 4, 0), min(total, 4))
    slots = {"n0": first, "n1": total - first}
    return on(**{node: count for node, count in slots.items() if count})


def assert_replays(journal: list[Event], state: SchedulerState) -> None:
    scheduler = Scheduler()
    for event in journal:
        scheduler.handle(event)
    assert scheduler.state == state
