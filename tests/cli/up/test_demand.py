"""How many slots jobs wait for beyond those that are free, and how many they use
well.
"""

from dataclasses import replace

import pytest

from coadapt.cli.up.demand import Demand, useful_slots, wanted_slots
from coadapt.core.config import SchedulerConfig
from coadapt.core.events import JobSubmitted, NodeJoined, TenantConfigured
from coadapt.core.scheduler import Scheduler
from coadapt.model import (
    BatchLimits,
    JobSpec,
    Node,
    ReplicaLimits,
    Tenant,
    ThroughputParams,
    TypeProfile,
)
from coadapt.model.tenant import EVERYBODY
from tests.core.stage import Stage, spec
from tests.policies.stage import job


def submitted(job: str, least: int) -> JobSubmitted:
    spec = JobSpec(
        name=job, batch=BatchLimits(initial=8), replicas=ReplicaLimits(min=least, max=8)
    )
    return JobSubmitted(at=0.0, job=job, spec=spec)


def test_what_waiting_jobs_need_at_least_beyond_the_free_slots_is_wanted() -> None:
    scheduler = Scheduler(SchedulerConfig())
    assert wanted_slots(scheduler.state) == 0
    scheduler.handle(submitted("a", 2))
    scheduler.handle(submitted("b", 3))
    assert wanted_slots(scheduler.state) == 5
    scheduler.handle(NodeJoined(at=0.0, node=Node(id="n", num_gpus=4)))
    assert wanted_slots(scheduler.state) == 1
    scheduler.handle(NodeJoined(at=0.0, node=Node(id="m", num_gpus=4)))
    assert wanted_slots(scheduler.state) == 0


def test_without_a_loop_nothing_is_wanted() -> None:
    assert Demand()() == 0


def test_a_quota_of_everybody_limits_what_is_wanted() -> None:
    stage = Stage()
    stage.submit("a", spec((12, 12)))
    assert wanted_slots(stage.scheduler.state) == 4
    stage.handle(TenantConfigured(at=0.0, tenant=Tenant(id=EVERYBODY, quota_gpus=9)))
    assert wanted_slots(stage.scheduler.state) == 1
    stage.handle(TenantConfigured(at=0.0, tenant=Tenant(id=EVERYBODY, quota_gpus=2)))
    assert wanted_slots(stage.scheduler.state) == 0


@pytest.mark.parametrize(
    ("alpha_r", "profiled", "useful"),
    [(0.0, 8, 8), (0.0, 2, 4), (0.05, 8, 6), (10.0, 8, 1)],
)
def test_slots_are_useful_while_each_brings_half_of_what_the_first_one_brings(
    alpha_r: float, profiled: int, useful: int
) -> None:
    params = ThroughputParams(
        alpha_c=0.0, beta_c=0.01, alpha_r=alpha_r, alpha_n=alpha_r
    )
    view = job("a", (1, 8), batch=BatchLimits(initial=64, requested=64, max_total=64))
    assert useful_slots(view, 8) == 1
    known = {"gpu": TypeProfile(params=params, num_replicas_profiled=profiled)}
    view = replace(view, measured=replace(view.measured, by_type=known))
    assert useful_slots(view, 8) == useful
