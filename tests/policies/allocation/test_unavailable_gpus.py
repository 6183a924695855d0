"""Which GPUs a policy does not see: idle ones, then those of the job that loses
least.
"""

from dataclasses import replace

import pytest

from coadapt.model import (
    BatchLimits,
    ClusterView,
    JobView,
    RescaleContract,
    Tenant,
    ThroughputParams,
    TypeProfile,
)
from coadapt.model.tenant import EVERYBODY
from coadapt.policies import create_policy
from coadapt.policies.allocation.unavailable_gpus import without_unavailable_gpus
from coadapt.runtime.solver import decide
from tests.policies.stage import job, nodes, on

SCALES = ThroughputParams(alpha_c=0.01, beta_c=0.01, alpha_r=0.001, alpha_n=0.001)
STALLS = ThroughputParams(
    alpha_c=0.01, beta_c=0.01, alpha_r=0.6, beta_r=0.1, alpha_n=0.6, beta_n=0.1
)


def trains(
    name: str, params: ThroughputParams, held: object, gpus: tuple[int, int] = (1, 8)
) -> JobView:
    view = job(
        name, gpus, held=held, batch=BatchLimits(initial=64, requested=64, max_total=64)
    )  # type: ignore[arg-type]
    view = replace(view, spec=replace(view.spec, contract=RescaleContract.FIXED))
    known = {"gpu": TypeProfile(params=params, num_replicas_profiled=8)}
    return replace(view, measured=replace(view.measured, by_type=known))


def view(
    *jobs: JobView, gpus: tuple[int, ...] = (4, 4), quota: int | None
) -> ClusterView:
    tenants = (
        {} if quota is None else {EVERYBODY: Tenant(id=EVERYBODY, quota_gpus=quota)}
    )
    return ClusterView(at=60.0, nodes=nodes(*gpus), jobs=jobs, tenants=tenants)


def seen(full: ClusterView) -> dict[str, int]:
    shown = without_unavailable_gpus(full)
    assert EVERYBODY not in shown.tenants
    return {node.id: node.num_gpus for node in shown.nodes}


def test_without_a_quota_of_all_a_policy_sees_the_very_view() -> None:
    full = view(quota=None)
    assert without_unavailable_gpus(full) is full
    assert seen(view(quota=8)) == {"n0": 4, "n1": 4}
    assert seen(view(quota=100)) == {"n0": 4, "n1": 4}
    assert seen(view(quota=0)) == {}


def test_idle_gpus_go_first_and_by_whole_nodes() -> None:
    scales = trains("a", SCALES, on(n1=2))
    assert seen(view(scales, quota=5)) == {"n0": 1, "n1": 4}
    assert seen(view(scales, quota=3)) == {"n1": 3}
    assert seen(view(scales, gpus=(4, 4, 4), quota=7)) == {"n0": 3, "n1": 4}


@pytest.mark.parametrize("slow_on", ["n0", "n1"])
def test_then_those_of_the_job_that_loses_least_wherever_it_is(slow_on: str) -> None:
    fast_on = {"n0": "n1", "n1": "n0"}[slow_on]
    jobs = (
        trains("slow", STALLS, on(**{slow_on: 4})),
        trains("fast", SCALES, on(**{fast_on: 4})),
    )
    assert seen(view(*jobs, quota=6)) == {slow_on: 2, fast_on: 4}
    assert seen(view(*jobs, quota=4)) == {
        slow_on: 1,
        fast_on: 3,
    }  # it keeps its smallest number


def test_a_job_without_a_known_speed_loses_after_one_that_is_known_to_scale_badly() -> (
    None
):
    unknown = job("a", (1, 8), held=on(n0=4))
    assert seen(view(unknown, trains("b", STALLS, on(n1=4)), quota=7)) == {
        "n0": 4,
        "n1": 3,
    }


def test_jobs_that_cannot_shrink_go_whole_the_youngest_first_and_frozen_ones_last() -> (
    None
):
    rigid = [
        job(name, 2, held=on(n0=2), at=at)
        for name, at in (("old", 0.0), ("young", 5.0))
    ]
    frozen = job("frozen", 4, held=on(n1=4), at=9.0, contract=RescaleContract.FROZEN)
    assert seen(view(*rigid, frozen, quota=7)) == {"n0": 3, "n1": 4}
    assert seen(view(*rigid, frozen, quota=4)) == {"n1": 4}
    assert seen(view(*rigid, frozen, quota=3)) == {"n1": 3}


@pytest.mark.parametrize("name", ["pollux", "castor", "sia"])
def test_policies_that_size_jobs_shrink_that_job_where_it_is_and_leave_the_other(
    name: str,
) -> None:
    jobs = (trains("slow", STALLS, on(n0=4)), trains("fast", SCALES, on(n1=4)))
    plan = decide(create_policy(name), view(*jobs, quota=6))
    assert plan.allocations["fast"] == on(n1=4)
    assert plan.allocations["slow"] in (on(n0=2), on(n0=1))
