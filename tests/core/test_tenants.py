"""Stories of tenants: what they are granted may change at any time, and counts from the next round on."""

import pytest

from coadapt.core.commands import SetAlarm, Solve, Stop
from coadapt.core.config import SchedulerConfig
from coadapt.core.events import JobSubmitted, SchedulerConfigured, TenantConfigured
from coadapt.core.lifecycle import JobState
from coadapt.core.scheduler import Scheduler
from coadapt.core.state import SchedulerState
from coadapt.model import Tenant
from coadapt.model.wire import dumps, loads
from coadapt.policies import POLICIES, create_policy
from tests.core.stage import Stage, on, spec

VISION = Tenant(id="vision", quota_gpus=2, weight=2.0, priority=1)


def owned(stage: Stage, job: str, tenant: str, gpus: int) -> None:
    stage.handle(JobSubmitted(at=stage.at, job=job, spec=spec((gpus, gpus), tenant=tenant)))


def configured(stage: Stage, tenant: Tenant) -> list[object]:
    return list(stage.handle(TenantConfigured(at=stage.at, tenant=tenant)))


def test_a_tenant_nobody_configured_has_weight_one_and_no_quota() -> None:
    stage = Stage()
    stage.submit()
    view = stage.scheduler.view()
    assert (view.tenants, view.tenant("default")) == ({}, Tenant(id="default", weight=1.0))
    assert (view.tenant("x").quota_gpus, view.tenant("x").priority) == (None, 0)


def test_a_tenant_that_is_configured_brings_a_round_forward() -> None:
    stage = Stage(SchedulerConfig(reaction_s=1.0))
    assert configured(stage, VISION) == []  # nothing to decide
    owned(stage, "a", "vision", 2)
    stage.timer(1.0)
    stage.plan({"a": on(n0=2)})
    stage.at = 10.0
    assert configured(stage, Tenant(id="vision", quota_gpus=1)) == [SetAlarm(at=11.0)]
    assert configured(stage, Tenant(id="vision", quota_gpus=1)) == []
    assert stage.scheduler.view().tenant("vision").quota_gpus == 1


def test_a_plan_made_for_other_quotas_is_void_and_one_beyond_them_is_refused() -> None:
    stage = Stage()
    owned(stage, "a", "vision", 3)
    stage.timer(60.0)
    configured(stage, VISION)
    assert stage.plan({"a": on(n0=3)}) == []
    assert stage.scheduler.state.plan_error == ""
    assert stage.round(120.0, {"a": on(n0=3)}) == []
    assert stage.scheduler.state.plan_error == "tenant 'vision': 3 GPUs given, its quota is 2"


@pytest.mark.parametrize("name", sorted(POLICIES))
def test_a_quota_that_is_cut_takes_effect_at_the_next_round(name: str) -> None:
    stage = Stage(SchedulerConfig(reaction_s=1.0))
    policy = create_policy(name)

    def next_round(at: float) -> list[object]:
        solve, *_ = (command for command in stage.timer(at) if isinstance(command, Solve))
        return list(stage.plan(dict(policy.allocate(solve.view).allocations)))

    owned(stage, "a", "vision", 5)  # more than the quota even by halves of GPUs
    owned(stage, "b", "other", 2)
    next_round(1.0)
    stage.started("a")
    stage.started("b")
    stage.at = 20.0
    assert configured(stage, VISION) == [SetAlarm(at=21.0)]
    assert next_round(21.0) == [Stop(job="a", generation=1)]
    assert stage.job("b").state is JobState.RUNNING


def test_tenants_survive_a_snapshot_and_a_replay() -> None:
    stage = Stage()
    owned(stage, "a", "vision", 2)
    configured(stage, VISION)
    twin = Scheduler()
    for event in stage.journal:
        twin.handle(event)
    state = stage.scheduler.state
    assert twin.state == state
    assert loads({"SchedulerState": SchedulerState}, dumps(state)) == state
    assert state.tenants == {"vision": VISION}


def test_settings_of_the_scheduler_leave_tenants_alone() -> None:
    stage = Stage()
    configured(stage, VISION)
    stage.handle(SchedulerConfigured(at=1.0, config=SchedulerConfig(round_s=15.0)))
    assert stage.scheduler.state.tenants == {"vision": VISION}
