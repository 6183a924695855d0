"""Stories of tenants: what they are granted may change at any time, and counts from the
next round on.
"""

import pytest

from coadapt.core.commands import SetAlarm, Solve, Stop
from coadapt.core.config import SchedulerConfig
from coadapt.core.events import JobSubmitted, SchedulerConfigured, TenantConfigured
from coadapt.core.lifecycle import JobState, Reason
from coadapt.core.scheduler import Scheduler
from coadapt.core.state import SchedulerState
from coadapt.model import Tenant
from coadapt.model.tenant import EVERYBODY
from coadapt.model.wire import dumps, loads
from coadapt.policies import create_policy
from coadapt.runtime.solver import decide
from tests.core.stage import Stage, on, spec
from tests.policies.choices import short_choices

VISION = Tenant(id="vision", quota_gpus=2, weight=2.0, priority=1)


def owned(stage: Stage, job: str, tenant: str, gpus: int) -> None:
    stage.handle(
        JobSubmitted(at=stage.at, job=job, spec=spec((gpus, gpus), tenant=tenant))
    )


def configured(stage: Stage, tenant: Tenant) -> list[object]:
    return list(stage.handle(TenantConfigured(at=stage.at, tenant=tenant)))


def test_a_tenant_nobody_configured_has_weight_one_and_no_quota() -> None:
    stage = Stage()
    stage.submit()
    view = stage.scheduler.view()
    assert (view.tenants, view.tenant("default")) == (
        {},
        Tenant(id="default", weight=1.0),
    )
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
    assert (
        stage.scheduler.state.plan_error
        == "tenant 'vision': 3 GPUs given, its quota is 2"
    )


@pytest.mark.parametrize("quota", [0, 1])
def test_a_job_larger_than_its_quota_says_that_it_cannot_start(quota: int) -> None:
    stage = Stage()
    owned(stage, "a", "vision", 2)
    configured(stage, Tenant(id="vision", quota_gpus=quota))
    stage.round(60.0, {})
    assert stage.job("a").reason is Reason.IMPOSSIBLE
    assert stage.job("a").explanation == (
        f"waits: needs at least 2 GPUs, the quota of tenant vision is {quota}; "
        "it cannot start until the quota is raised"
    )
    configured(stage, Tenant(id="vision", quota_gpus=2))
    stage.round(120.0, {})
    assert stage.job("a").reason is Reason.NO_CAPACITY


def test_what_keeps_a_job_out_for_good_is_told_first() -> None:
    """A list of jobs cuts long sentences."""
    stage = Stage(num_nodes=1)
    owned(stage, "a", "vision", 2)
    owned(stage, "b", "speech", 4)
    stage.round(60.0, {"b": on(n0=4)})
    configured(stage, Tenant(id="vision", quota_gpus=1))
    stage.round(120.0, {"b": on(n0=4)})
    assert stage.job("a").reason is Reason.IMPOSSIBLE
    assert stage.job("a").explanation == (
        "waits: needs at least 2 GPUs, the quota of tenant vision is 1; "
        "it cannot start until the quota is raised; 0 of 4 are free, b has 4"
    )


@pytest.mark.parametrize("quota", [0, 1])
def test_a_job_larger_than_the_quota_of_all_says_that_it_cannot_start(
    quota: int,
) -> None:
    stage = Stage()
    owned(stage, "a", "vision", 2)
    configured(stage, Tenant(id=EVERYBODY, quota_gpus=quota))
    stage.round(60.0, {})
    assert stage.job("a").reason is Reason.IMPOSSIBLE
    assert stage.job("a").explanation == (
        f"waits: needs at least 2 GPUs, all jobs together hold 0, and may hold {quota}; "
        "it cannot start until that quota is raised"
    )


@pytest.mark.parametrize("name", short_choices())
def test_a_quota_that_is_cut_takes_effect_at_the_next_round(name: str) -> None:
    stage = Stage(SchedulerConfig(reaction_s=1.0))
    policy = create_policy(name)

    def next_round(at: float) -> list[object]:
        solve, *_ = (
            command for command in stage.timer(at) if isinstance(command, Solve)
        )
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


@pytest.mark.parametrize("name", short_choices())
def test_a_quota_of_everybody_that_is_cut_is_planned_for_and_so_is_one_that_grows(
    name: str,
) -> None:
    stage = Stage(SchedulerConfig(reaction_s=1.0))
    policy = create_policy(name)

    def next_round(at: float) -> list[object]:
        solve, *_ = (
            command for command in stage.timer(at) if isinstance(command, Solve)
        )
        return list(stage.plan(dict(decide(policy, solve.view).allocations)))

    def planned() -> tuple[int, float]:
        """Jobs that get something, and all that they get."""
        assert stage.scheduler.state.plan_error == ""
        given = [job.target.allocation for job in stage.scheduler.state.jobs.values()]
        return sum(map(bool, given)), sum(each.num_gpus for each in given)

    for job, tenant, gpus in (
        ("a", "vision", 1),
        ("b", "other", 2),
        ("c", "other", 2),
        ("d", "vision", 2),
    ):
        owned(stage, job, tenant, gpus)
    next_round(1.0)
    assert planned()[0] == 4
    for job in "abcd":
        stage.started(job)
    stage.at = 20.0
    assert configured(stage, Tenant(id=EVERYBODY, quota_gpus=3)) == [SetAlarm(at=21.0)]
    next_round(21.0)
    assert planned()[0] >= 1
    assert planned()[1] <= 3
    stage.at = 200.0
    configured(stage, Tenant(id=EVERYBODY, quota_gpus=0))
    next_round(201.0)
    assert planned() == (0, 0)
    stage.at = 300.0
    configured(stage, Tenant(id=EVERYBODY))
    for job in list(stage.scheduler.state.jobs.values()):
        if job.state is JobState.STOPPING:
            stage.exited(job.id)
    stage.at = 400.0
    configured(stage, Tenant(id=EVERYBODY, quota_gpus=8))
    next_round(401.0)
    assert planned()[0] == 4


def test_a_plan_beyond_the_quota_of_everybody_is_refused_whoever_owns_the_jobs() -> (
    None
):
    stage = Stage()
    configured(stage, Tenant(id=EVERYBODY, quota_gpus=4))
    owned(stage, "a", "vision", 3)
    owned(stage, "b", "other", 2)
    assert stage.round(60.0, {"a": on(n0=3), "b": on(n1=2)}) == []
    assert (
        stage.scheduler.state.plan_error == "tenant '*': 5 GPUs given, its quota is 4"
    )


def test_a_job_that_has_not_taken_a_step_yet_gives_way_where_everybody_holds_too_much() -> (
    None
):
    stage = Stage(settle_s=600.0)
    owned(stage, "a", "vision", 3)
    stage.round(60.0, {"a": on(n0=3)})
    configured(stage, Tenant(id=EVERYBODY, quota_gpus=2))
    assert stage.round(120.0, {}) == [Stop(job="a", generation=1)]


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
