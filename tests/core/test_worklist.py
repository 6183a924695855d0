"""The worklist against what a sum over all records gives, after every event of random runs under faults."""

import pytest

from coadapt.core.accounting import held
from coadapt.core.commands import Command
from coadapt.core.config import SchedulerConfig
from coadapt.core.events import Event
from coadapt.core.lifecycle import ENDED
from coadapt.core.scheduler import Scheduler
from coadapt.core.state import ENDED_KEPT, SchedulerState
from coadapt.core.worklist import Worklist, may_act, moves_soon
from coadapt.model import ClusterView, FreeGpus
from coadapt.model.view import standing_of
from coadapt.sim.faults.fault_run import run_seed
from tests.core.stage import Stage, on


class Checked(Scheduler):
    """Compares what it keeps up to date with what it would find if it looked at everything."""

    def handle(self, event: Event) -> list[Command]:
        commands = super().handle(event)
        live = [job for job in self.state.jobs.values() if job.state not in ENDED]
        free = FreeGpus(self.state.nodes.values())
        for job in live:
            free.take(held(job))
        assert (self._work.free.whole, self._work.free.parts) == (free.whole, free.parts), event
        assert {job.id for job in self._work.jobs} == {job.id for job in live if may_act(job)}, event
        assert self._work.moving == {job.id for job in live if moves_soon(job)}, event
        in_order = [job.id for job in sorted(live, key=lambda job: (job.submitted_at, job.id))]
        assert [job.id for job in self._active_jobs()] == in_order, event
        fresh = Scheduler(self.config, self.state).view()
        assert self.view() == fresh, event
        kept, summed = (
            standing_of(self.view()),
            standing_of(ClusterView(at=0.0, nodes=fresh.nodes, jobs=fresh.jobs)),
        )
        assert (kept.allocations, kept.batches, kept.jobs) == (
            summed.allocations,
            summed.batches,
            summed.jobs,
        ), event
        assert (kept.free.whole, kept.free.parts) == (summed.free.whole, summed.free.parts), event
        return commands


@pytest.mark.parametrize("seed", range(6))
def test_what_is_kept_is_what_a_sum_over_all_jobs_gives(seed: int) -> None:
    run_seed(seed, Checked)


def test_what_is_given_back_is_free_again() -> None:
    stage = Stage()
    stage.running(allocation=on(n0=3, n1=1))
    work = Worklist(stage.scheduler.state.nodes.values(), [stage.job()])
    assert work.free.whole == {"n0": 1, "n1": 3}
    work.forget("a")
    assert work.free.whole == {"n0": 4, "n1": 4}
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
