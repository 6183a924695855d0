"""What the core keeps, and what a look at all records gives: after every event of
random runs.
"""

import sys
from collections.abc import Callable
from copy import copy, deepcopy
from types import FrameType

import pytest

from coadapt.core.accounting import held
from coadapt.core.commands import Command, Rescale, Start
from coadapt.core.config import SchedulerConfig
from coadapt.core.events import (
    Event,
    NodeJoined,
    Outcome,
    SchedulerRestarted,
    TrainingResumed,
)
from coadapt.core.lifecycle import ENDED
from coadapt.core.scheduler import VIEWS_BEHIND_MAX, Scheduler
from coadapt.core.state import ENDED_KEPT, JobRecord, SchedulerState
from coadapt.core.worklist import Worklist, may_act, moves_soon
from coadapt.model import Allocation, ClusterView, FreeGpus, Node, TrainingReport
from coadapt.model.view import current_allocations
from coadapt.runtime.index_writer import touched_jobs
from coadapt.sim.faults.fault_run import run_seed
from tests.core.stage import Stage, on


class Checked(Scheduler):
    """Compares what it keeps up to date with what it would find if it looked at
    everything.
    """

    def handle(self, event: Event) -> list[Command]:
        anew = Scheduler(self.config, deepcopy(self.state))
        before = {job.id: copy(job) for job in self.state.jobs.values()}
        commands = super().handle(event)
        touched = {job.id for job in touched_jobs(event, commands, self.state)}
        differ = {
            job for job, record in self.state.jobs.items() if record != before.get(job)
        }
        assert differ <= touched or isinstance(event, SchedulerRestarted), event
        assert (anew.handle(event), anew.state) == (commands, self.state), event
        live = [job for job in self.state.jobs.values() if job.state not in ENDED]
        free = FreeGpus(self.state.nodes.values())
        for job in live:
            free.take(held(job))
        assert (self._work.holdings.free.whole, self._work.holdings.free.parts) == (
            free.whole,
            free.parts,
        ), event
        to_order = {job.id for job in self._work.jobs}
        resting = self._work.resting.keys()
        assert to_order.isdisjoint(resting), event
        assert to_order | resting == {job.id for job in live if may_act(job)}, event
        assert self._work.moving.keys() == {
            job.id for job in live if moves_soon(job)
        }, event
        in_order = [
            job.id for job in sorted(live, key=lambda job: (job.submitted_at, job.id))
        ]
        assert [job.id for job in self.state.active] == in_order, event
        fresh = Scheduler(self.config, self.state).view()
        assert self.view() == fresh, event
        kept = current_allocations(self.view())
        summed = current_allocations(
            ClusterView(at=0.0, nodes=fresh.nodes, jobs=fresh.jobs)
        )
        assert (kept.allocations, kept.batches, kept.jobs) == (
            summed.allocations,
            summed.batches,
            summed.jobs,
        ), event
        assert (kept.free.whole, kept.free.parts) == (
            summed.free.whole,
            summed.free.parts,
        ), event
        return commands


@pytest.mark.parametrize("seed", range(3))
def test_what_is_kept_is_what_a_sum_over_all_jobs_gives(seed: int) -> None:
    run_seed(seed, Checked)


def three_that_train() -> tuple[Stage, dict[str, Allocation]]:
    stage = Stage()
    plan = {name: on(n0=1) for name in "abc"}
    for name in plan:
        stage.submit(name)
    stage.round(60.0, plan)
    for name in plan:
        stage.started(name)
    stage.round(120.0, plan)
    return stage, plan


def test_of_a_plan_only_what_it_says_anew_is_looked_at(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stage, plan = three_that_train()
    looked = list[str]()
    set_target = stage.scheduler._set_target

    def note(job: JobRecord, *rest: object) -> None:
        looked.append(job.id)
        set_target(job, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(stage.scheduler, "_set_target", note)
    stage.round(180.0, {name: on(n0=1) for name in plan})  # equal, not the same objects
    assert looked == []
    stage.round(240.0, {**plan, "b": on(n1=1)})
    assert looked == ["b"]
    stage.started("b", generation=2)
    looked.clear()
    stage.round(300.0, {name: plan[name] for name in "ab"})
    assert sorted(looked) == ["b", "c"]


def test_only_who_may_be_silent_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    stage, _ = three_that_train()
    looked = list[str]()
    monkeypatch.setattr(
        stage.scheduler,
        "_stop_hung",
        lambda jobs: looked.extend(job.id for job in jobs) or [],
    )
    stage.at = 200.0
    stage.reported(TrainingReport(progress=1.0), "b")
    stage.timer(240.0)
    assert looked == ["a", "c"]
    assert sum(isinstance(command, Start) for command in stage.timer(300.0)) == 0
    stage.timer(420.0)
    assert looked == ["a", "c", "a", "b", "c"]


def test_a_round_finds_few_views_to_make() -> None:
    num_jobs = 2 * VIEWS_BEHIND_MAX + 50
    stage = Stage(num_nodes=num_jobs // 4 + 1)
    plan = {f"j{index}": on(**{f"n{index // 4}": 1}) for index in range(num_jobs)}
    for name in plan:
        stage.submit(name)
    stage.round(60.0, plan)
    for name in plan:
        stage.started(name)
        stage.reported(TrainingReport(progress=1.0), name)
    assert len(stage.scheduler._work.unseen) <= VIEWS_BEHIND_MAX + 1
    assert [job.measured.progress for job in stage.scheduler.view().jobs] == [
        1.0
    ] * num_jobs


def test_what_is_given_back_is_free_again() -> None:
    stage = Stage()
    stage.running(allocation=on(n0=3, n1=1))
    work = Worklist(stage.scheduler.state.nodes.values(), [stage.job()], silence_s=60.0)
    assert work.holdings.free.whole == {"n0": 1, "n1": 3}
    work.forget("a")
    assert work.holdings.free.whole == {"n0": 4, "n1": 4}
    assert work.jobs == []


def test_of_ended_jobs_the_last_ids_are_kept() -> None:
    stage = Stage()
    names = [f"j{index}" for index in range(ENDED_KEPT + 3)]
    for name in names:
        stage.submit(name)
        stage.cancel(name)
    stage.timer(60.0)
    state: SchedulerState = stage.scheduler.state
    assert (list(state.ended), state.jobs) == (names[3:], {})
    assert stage.submit(names[-1]) == stage.cancel(names[-1]) == []
    assert not state.jobs
    assert Scheduler(SchedulerConfig(), state).state.ended == state.ended


def lines_of(happen: Callable[[], object]) -> int:
    """Return how many lines of Python are run, each turn of a loop anew."""
    count = 0
    before = sys.gettrace()

    def trace(_: FrameType, what: str, __: object) -> object:
        nonlocal count
        count += what == "line"
        return trace

    sys.settrace(trace)
    try:
        happen()
    finally:
        sys.settrace(before)
    return count


N1 = Node(id="n1", num_gpus=4)


def costs_among(num_jobs: int) -> dict[str, int]:
    """Return what events of one job cost where half of so many run, and half wait."""
    stage = Stage(num_nodes=100)
    names = [f"j{index}" for index in range(num_jobs)]
    for name in names:
        stage.submit(name)
    stage.round(
        60.0,
        {name: on(**{f"n{index // 4}": 1}) for index, name in enumerate(names[::2])},
    )
    for name in names[4::2]:
        stage.started(name)
    # What a plan left to be done is done with the next event, once: not part of what
    # each costs.
    events_of(stage, "new", "j0", "j1")
    return events_of(stage, "newer", "j2", "j3")


def events_of(stage: Stage, new: str, runs: str, waits: str) -> dict[str, int]:
    stage.at += 10.0
    resumed = TrainingResumed(at=stage.at, job=runs, generation=1, rescale_s=1.0)
    return {
        "submitted": lines_of(lambda: stage.submit(new)),
        "started": lines_of(lambda: stage.started(runs)),
        "first step": lines_of(lambda: stage.handle(resumed)),
        "reported": lines_of(
            lambda: stage.reported(TrainingReport(progress=1.0), runs)
        ),
        "cancelled": lines_of(lambda: stage.cancel(waits)),
        "ended": lines_of(lambda: stage.exited(Outcome.SUCCEEDED, runs)),
        "node lost": lines_of(lambda: stage.lose("n1")),
        "node joined": lines_of(lambda: stage.handle(NodeJoined(at=stage.at, node=N1))),
    }


def test_an_event_of_one_job_costs_the_same_among_many() -> None:
    """It looked at all: 39 ms per alarm and 4 ms per start among 2,000 to 10,000
    jobs.
    """
    few = costs_among(20)
    many = costs_among(640)
    assert {kind: cost for kind, cost in many.items() if cost > 1.5 * few[kind]} == {}


def cost_of_a_first_step(num_jobs: int) -> int:
    """Return what the first step of a job costs beside so many jobs that settle: a plan
    wants each of them larger.
    """
    stage = Stage(num_nodes=num_jobs, settle_s=600.0)
    names = [f"j{index}" for index in range(num_jobs)]
    for name in names:
        stage.submit(name)
    for gpus in (1, 2):
        allocations = [on(**{f"n{index}": gpus}) for index in range(num_jobs)]
        stage.round(60.0 * gpus, dict(zip(names, allocations, strict=True)))
        for name in names:
            stage.started(name)
    orders = list[Command]()
    # What a plan left to be done is done with the first event, once.
    for name in ("j4", "j5"):
        resumed = TrainingResumed(at=stage.at, job=name, generation=1, rescale_s=1.0)
        cost = lines_of(lambda: orders.extend(stage.handle(resumed)))  # noqa: B023
    assert [type(order) for order in orders] == [Rescale, Rescale]
    return cost


def test_a_first_step_costs_the_same_beside_many_jobs_that_settle() -> None:
    """Each of them was looked at: with 10,000 live jobs a round took minutes."""
    assert cost_of_a_first_step(640) <= 1.5 * cost_of_a_first_step(20)
