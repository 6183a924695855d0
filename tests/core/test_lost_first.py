"""A job that lost a node restarts before jobs that wait, whatever the policy plans."""

from dataclasses import replace

import numpy as np
import pytest

from coadapt.core.commands import Start
from coadapt.core.config import SchedulerConfig
from coadapt.core.events import (
    NodeJoined,
    NodeNoticed,
    OffersConfigured,
    Outcome,
    PriorityChanged,
    SchedulerConfigured,
    TenantConfigured,
)
from coadapt.core.lost_first import with_lost_first
from coadapt.model import (
    Allocation,
    JobSpec,
    Node,
    ReplicaLimits,
    Tenant,
    check_plan,
)
from coadapt.model.offer import Market, Offer
from coadapt.model.view import current_allocations
from coadapt.model.wire import from_json, to_json
from coadapt.policies import create_policy
from coadapt.policies.checks.sample_views import generate_views
from tests.core.stage import Stage, on, spec


def wanting(gpus: int, tenant: str = "default") -> JobSpec:
    limits = ReplicaLimits(min=1, max=4, requested=gpus)
    return replace(spec(tenant=tenant), replicas=limits)


def robbed(gpus: int = 4) -> Stage:
    """Return a stage with job a, which lost node n0, and b and c, which wait; n1 has
    four free GPUs.
    """
    stage = Stage()
    stage.submit("a", wanting(gpus))
    stage.round(60.0, {"a": on(n0=gpus)})
    stage.started("a")
    stage.submit("b", wanting(4))
    stage.submit("c", wanting(2))
    stage.lose("n0")
    stage.exited(Outcome.LOST)
    return stage


def starts(
    stage: Stage, at: float, plan: dict[str, Allocation]
) -> dict[str, Allocation]:
    commands = stage.round(at, plan)
    return {each.job: each.allocation for each in commands if isinstance(each, Start)}


def test_it_starts_in_the_place_of_a_job_that_waits() -> None:
    stage = robbed()
    assert starts(stage, 120.0, {"b": on(n1=4)}) == {"a": on(n1=4)}
    assert stage.job("a").explanation == (
        "restarts before jobs that wait: it lost a node"
    )
    assert "a has 4" in stage.job("b").explanation
    # It had its turn: the next plan decides about it as about any other job.
    stage.started("a", 2)
    stage.exited(Outcome.STOPPED, generation=2)
    assert starts(stage, 180.0, {"b": on(n1=4)}) == {"b": on(n1=4)}


def test_as_few_jobs_wait_as_make_room() -> None:
    stage = robbed(gpus=2)
    plan = {"b": on(n1=2), "c": on(n1=2)}
    assert starts(stage, 120.0, plan) == {"a": on(n1=2), "b": on(n1=2)}


def test_a_job_of_higher_priority_goes_first() -> None:
    stage = robbed()
    stage.handle(PriorityChanged(at=stage.at, job="b", priority=1))
    assert starts(stage, 120.0, {"b": on(n1=4)}) == {"b": on(n1=4)}
    # Its turn is still to come.
    assert stage.job("a").lost_node


def test_a_plan_that_leaves_enough_free_is_not_changed() -> None:
    stage = robbed(gpus=1)
    assert starts(stage, 120.0, {"c": on(n1=2)}) == {"c": on(n1=2)}


def test_a_quota_that_it_would_break_keeps_the_plan() -> None:
    stage = robbed()
    tenant = Tenant(id="default", quota_gpus=3)
    stage.handle(TenantConfigured(at=stage.at, tenant=tenant))
    assert starts(stage, 120.0, {"c": on(n1=2)}) == {"c": on(n1=2)}


def test_journals_of_earlier_versions_replay_as_they_were_decided() -> None:
    written = to_json(SchedulerConfigured(at=0.0, config=SchedulerConfig()))
    assert isinstance(written, dict)
    del written["config"]["lost_node_first"]  # type: ignore[union-attr,arg-type,call-overload]
    stage = robbed()
    stage.handle(from_json(SchedulerConfigured, written, "event"))
    assert starts(stage, 120.0, {"b": on(n1=4)}) == {"b": on(n1=4)}


def test_a_job_that_a_notice_drained_restarts_first() -> None:
    stage = Stage(num_nodes=0)
    offer = Offer(id="o", num_gpus=4, price_per_h=1.0, market=Market.SPOT, most=2)
    stage.handle(OffersConfigured(at=0.0, offers=(offer,)))
    for name in ("n0", "n1"):
        stage.handle(NodeJoined(at=0.0, node=Node(id=name, num_gpus=4, offer="o")))
    for job in ("a", "b"):
        stage.submit(job, wanting(4))
        stage.round(
            60.0 if job == "a" else 120.0,
            {
                name: on(**{where: 4})
                for name, where in (("a", "n0"), ("b", "n1"))
                if name <= job
            },
        )
        stage.started(job)
    stage.submit("c", wanting(4))
    stage.handle(NodeNoticed(at=stage.at, node="n0", gone_at=stage.at + 100.0))
    stage.round(180.0, {"b": on(n1=4)})
    stage.exited(Outcome.STOPPED, "a")
    stage.exited(Outcome.SUCCEEDED, "b")
    assert starts(stage, 240.0, {"c": on(n1=4)}) == {"a": on(n1=4)}


@pytest.mark.parametrize("policy", ["fifo", "srtf", "max-min"])
def test_the_plan_stays_valid_and_jobs_that_run_stay_as_planned(policy: str) -> None:
    rng = np.random.default_rng(0)
    num_changed = 0
    for view in generate_views(7, 150):
        plan = create_policy(policy).allocate(view)
        jobs = current_allocations(view).jobs
        idle = [each.id for each in view.jobs if not each.allocation]
        lost = {job for job in idle if rng.random() < 0.4}
        changed = with_lost_first(plan, view, lost, {})
        check_plan(view, changed)
        for job in plan.unlike(changed):
            assert not jobs[job].allocation
            assert (job in lost) is bool(changed.allocations.get(job))
        num_changed += changed is not plan
    assert num_changed > 3
