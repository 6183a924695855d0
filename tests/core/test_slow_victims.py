"""Reports from elsewhere: freed GPUs go to whom they were freed for, however unlike the
victims are, and a wait for a quota keeps its place.
"""

import heapq

import pytest

from coadapt.core.commands import (
    Command,
    Rescale,
    RetractRescale,
    SetAlarm,
    Solve,
    Start,
    Stop,
)
from coadapt.core.config import SchedulerConfig
from coadapt.core.events import JobSubmitted, Outcome, TenantConfigured
from coadapt.core.lifecycle import JobState
from coadapt.model import Tenant
from coadapt.model.tenant import EVERYBODY
from coadapt.policies import create_policy
from coadapt.runtime.solver import decide
from tests.core.stage import Stage, spec

HOUR_S = 3600.0


class Cluster:
    """A stage whose policy is asked, and whose replicas take their time to obey."""

    def __init__(self, policy: str, num_nodes: int, takes_s: dict[str, float]) -> None:
        self.stage = Stage(SchedulerConfig(reaction_s=1.0), num_nodes)
        self._policy = create_policy(policy)
        self._takes_s = takes_s
        self._coming: list[tuple[float, int, Command]] = []
        self._count = 0
        self._retracted: set[tuple[str, int]] = set()
        self.orders: list[tuple[float, Command]] = []

    def submit(self, job: str, gpus: tuple[int, int], tenant: str) -> None:
        stage = self.stage
        self._take(
            stage.handle(
                JobSubmitted(at=stage.at, job=job, spec=spec(gpus, tenant=tenant))
            )
        )

    def grant(self, tenant: Tenant) -> None:
        stage = self.stage
        self._take(stage.handle(TenantConfigured(at=stage.at, tenant=tenant)))

    def run_until(self, until: float) -> None:
        while self._coming and self._coming[0][0] <= until:
            at, _, command = heapq.heappop(self._coming)
            self.stage.at = at
            self._take(self._answer(command))
        self.stage.at = until

    def _answer(self, command: Command) -> list[Command]:
        stage = self.stage
        match command:
            case SetAlarm():
                return stage.timer(stage.at)
            case Start(job=job, generation=generation):
                return stage.started(job, generation)
            case Rescale(job=job, generation=generation):
                if (job, generation) in self._retracted:
                    return []
                return stage.started(job, generation)
            case RetractRescale(job=job, generation=generation):
                self._retracted.add((job, generation))
                return stage.kept(job, generation)
            case Stop(job=job, generation=generation):
                return stage.exited(Outcome.STOPPED, job, generation)
        raise AssertionError(command)

    def _take(self, commands: list[Command]) -> None:
        for command in commands:
            if isinstance(command, Solve):
                plan = decide(self._policy, command.view)
                self._take(self.stage.plan(dict(plan.allocations)))
                continue
            if isinstance(command, SetAlarm):
                at = command.at
            else:
                at = self.stage.at + self._takes_s.get(getattr(command, "job", ""), 1.0)
                self.orders.append((self.stage.at, command))
            self._count += 1
            heapq.heappush(self._coming, (at, self._count, command))


@pytest.mark.parametrize("policy", ["castor", "pollux", "fifo", "gavel", "las"])
@pytest.mark.parametrize("gpus", [(1, 4), (2, 2)], ids=["elastic", "rigid"])
@pytest.mark.parametrize("num_nodes", [1, 2], ids=["all GPUs", "a quota"])
def test_gpus_freed_at_different_times_go_to_the_job_they_were_freed_for(
    policy: str, gpus: tuple[int, int], num_nodes: int
) -> None:
    """kueue#13662: the first victim's GPUs were stolen until the second had gone."""
    cluster = Cluster(policy, num_nodes, {"a": 5.0, "b": 60.0})
    cluster.grant(Tenant(id=EVERYBODY, quota_gpus=4))
    for job, tenant in (("a", "A"), ("b", "B")):
        cluster.submit(job, gpus, tenant)
    cluster.run_until(120.0)
    held = {job.id: job.running for job in cluster.stage.scheduler.state.jobs.values()}
    assert all(held.values())
    cluster.orders.clear()
    cluster.submit("c", (2, 2), "C")
    cluster.grant(Tenant(id="C", priority=5))
    cluster.run_until(120.0 + HOUR_S / 4)
    began = [at for at, order in cluster.orders if getattr(order, "job", "") == "c"]
    changes = [
        order.job
        for at, order in cluster.orders
        if isinstance(order, Rescale | Stop) and (not began or at <= began[0])
    ]
    assert len(changes) <= 2, cluster.orders
    if began:
        # What both victims need, and the longest round (that of gavel).
        assert began[0] - 120.0 <= 60.0 + 360.0 + 2.0


@pytest.mark.parametrize("policy", ["fifo", "castor", "lwf", "max-min"])
def test_a_wait_for_a_quota_keeps_its_age_and_its_place(policy: str) -> None:
    """outerloop#304: a job that waited for a quota went to the back of the queue."""
    cluster = Cluster(policy, 1, {})
    cluster.submit("holds", (4, 4), "other")
    cluster.run_until(100.0)
    assert cluster.stage.job("holds").state is JobState.RUNNING
    cluster.submit("waits", (4, 4), "vision")
    cluster.grant(Tenant(id="vision", quota_gpus=0))
    cluster.run_until(200.0)
    cluster.submit("later", (4, 4), "third")
    cluster.run_until(100.0 + HOUR_S)
    cluster.grant(Tenant(id="vision", quota_gpus=4))
    cluster.run_until(100.0 + HOUR_S + 30.0)
    view = cluster.stage.scheduler.view()
    assert [job.id for job in view.jobs] == ["holds", "waits", "later"]
    assert [job.submitted_at for job in view.jobs] == [0.0, 100.0, 200.0]
    if policy == "fifo":
        cluster._take(cluster.stage.cancel("holds"))
        cluster.run_until(100.0 + HOUR_S + 120.0)
        assert cluster.stage.job("waits").state is JobState.RUNNING
        assert cluster.stage.job("later").state is JobState.PENDING


@pytest.mark.parametrize("policy", ["castor", "pollux", "fifo", "gavel"])
def test_a_quota_that_is_lowered_while_a_job_grows_is_kept_after_the_change(
    policy: str,
) -> None:
    """kueue#13646: of two owners of the size, the job must not obey both."""
    cluster = Cluster(policy, 1, {"a": 40.0})
    cluster.submit("a", (1, 4), "A")
    cluster.grant(Tenant(id=EVERYBODY, quota_gpus=1))
    cluster.run_until(100.0)
    cluster.grant(Tenant(id=EVERYBODY, quota_gpus=4))
    cluster.run_until(110.0)
    # It grows, and the quota is lowered under way.
    cluster.grant(Tenant(id=EVERYBODY, quota_gpus=2))
    cluster.run_until(1200.0)
    job = cluster.stage.job("a")
    assert job.state is JobState.RUNNING
    assert 1 <= job.running.grant.allocation.num_gpus <= 2
    changes = [
        order for _, order in cluster.orders if isinstance(order, Rescale | Stop)
    ]
    assert len(changes) <= 3
