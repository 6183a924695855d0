"""check_plan: the guard between any policy and the core. A lawful plan passes, each broken law is named."""

from collections.abc import Mapping
from dataclasses import replace

import pytest
from hypothesis import given

from coadapt.model import (
    Allocation,
    BatchConfig,
    BatchLimits,
    ClusterView,
    JobSpec,
    JobView,
    Node,
    Plan,
    PlanError,
    ReplicaLimits,
    RescaleContract,
    Tenant,
    check_plan,
)
from tests.model.strategies import cluster_views

NODES = (
    Node(id="a", num_gpus=4),
    Node(id="b", num_gpus=4),
    Node(id="v", num_gpus=2, gpu_type="v100"),
)
TEAM = Tenant(id="team", quota_gpus=3)


def job(name: str, contract: RescaleContract = RescaleContract.ADAPTIVE, **changes: object) -> JobView:
    spec = JobSpec(
        name=name,
        contract=contract,
        replicas=ReplicaLimits(min=1, max=6),
        batch=BatchLimits(initial=32, requested=64, max_total=256, max_atomic=64),
    )
    spec_changes = {key: changes.pop(key) for key in ("replicas", "batch", "tenant") if key in changes}
    return JobView(id=name, spec=replace(spec, **spec_changes), submitted_at=0.0, **changes)  # type: ignore[arg-type]


def on(*slots: tuple[str, int], share: float = 1.0) -> Allocation:
    return Allocation(slots=slots, gpu_share=share)


def view(*jobs: JobView) -> ClusterView:
    return ClusterView(at=0.0, nodes=NODES, jobs=jobs)


def plan(allocations: Mapping[str, Allocation] | None = None, **batches: BatchConfig) -> Plan:
    return Plan(allocations=allocations or {}, batches=batches)


FROZEN, SELF, FIXED = RescaleContract.FROZEN, RescaleContract.SELF, RescaleContract.FIXED
NO_ACCUMULATION = BatchLimits(initial=32, requested=64, max_total=256, accumulation=False)

LAWFUL: dict[str, tuple[ClusterView, Plan]] = {
    "nobody gets anything": (view(job("x")), plan()),
    "no jobs": (view(), plan()),
    "an explicit wait": (view(job("x")), plan({"x": Allocation()})),
    "a full node": (view(job("x")), plan({"x": on(("a", 4))})),
    "two halves of one node": (
        view(job("x"), job("y")),
        plan({"x": on(("a", 4), share=0.5), "y": on(("a", 4), share=0.5)}),
    ),
    "ten tenths of one GPU": (
        view(*(job(f"x{i}") for i in range(10))),
        plan({f"x{i}": on(("a", 4), share=0.1) for i in range(10)}),
    ),
    "a frozen job starts": (view(job("x", FROZEN)), plan({"x": on(("a", 2))})),
    "a frozen job stays": (view(job("x", FROZEN, allocation=on(("a", 2)))), plan({"x": on(("a", 2))})),
    "a frozen job is stopped whole": (view(job("x", FROZEN, allocation=on(("a", 2)))), plan()),
    "a tenant at its quota": (view(job("x", tenant=TEAM)), plan({"x": on(("a", 3))})),
    "the largest batch": (view(job("x")), plan({"x": on(("a", 4))}, x=BatchConfig(total=256, atomic=64))),
    "an uneven batch": (view(job("x")), plan({"x": on(("a", 3))}, x=BatchConfig(total=100, atomic=34))),
    "a fixed job's own batch": (
        view(job("x", FIXED)),
        plan({"x": on(("a", 1))}, x=BatchConfig(total=64, atomic=64)),
    ),
    "a fixed job accumulates where it must": (
        view(job("x", FIXED, batch=NO_ACCUMULATION)),
        plan({"x": on(("a", 1))}, x=BatchConfig(total=64, atomic=32, accumulation=1)),
    ),
    "a frozen job accumulates where it must": (
        view(job("x", FROZEN, batch=NO_ACCUMULATION)),
        plan({"x": on(("a", 1))}, x=BatchConfig(total=64, atomic=32, accumulation=1)),
    ),
}

UNLAWFUL: dict[str, tuple[ClusterView, Plan]] = {
    r"job 'z' is not an active job": (view(job("x")), plan({"z": on(("a", 1))})),
    r"job 'w' is not an active job": (view(job("x")), Plan(reasons={"w": "because"})),
    r"job 'u' is not an active job": (view(job("x")), plan(u=BatchConfig(total=1, atomic=1))),
    r"node 'gone' is not a live node": (view(job("x")), plan({"x": on(("gone", 1))})),
    r"7 replicas, allowed 1\.\.6": (view(job("x")), plan({"x": on(("a", 4), ("b", 3))})),
    r"1 replicas, allowed 2\.\.3": (
        view(job("x", replicas=ReplicaLimits(min=2, max=3))),
        plan({"x": on(("a", 1))}),
    ),
    r"GPU types \['gpu', 'v100'\] mixed": (view(job("x")), plan({"x": on(("a", 1), ("v", 1))})),
    r"contract frozen, its allocation": (
        view(job("x", FROZEN, allocation=on(("a", 2)))),
        plan({"x": on(("a", 3))}),
    ),
    r"node 'a': 5 GPUs given, it has 4": (
        view(job("x"), job("y")),
        plan({"x": on(("a", 3)), "y": on(("a", 2))}),
    ),
    r"node 'a': 4\.5 GPUs given": (
        view(job("x"), job("y")),
        plan({"x": on(("a", 4)), "y": on(("a", 1), share=0.5)}),
    ),
    r"tenant 'team': 4 GPUs given, its quota is 3": (
        view(job("x", tenant=TEAM), job("y", tenant=TEAM)),
        plan({"x": on(("a", 2)), "y": on(("b", 2))}),
    ),
    r"batch is dictated, but the job holds no GPU": (
        view(job("x")),
        plan(x=BatchConfig(total=32, atomic=32)),
    ),
    r"contract self, its batch is its own": (
        view(job("x", SELF)),
        plan({"x": on(("a", 1))}, x=BatchConfig(total=64, atomic=64)),
    ),
    r"total batch 65 exceeds 64, which its passes can hold": (
        view(job("x")),
        plan({"x": on(("a", 2))}, x=BatchConfig(total=65, atomic=32)),
    ),
    r"atomic batch 65, allowed at most 64": (
        view(job("x")),
        plan({"x": on(("a", 1))}, x=BatchConfig(total=65, atomic=65)),
    ),
    r"accumulation 1, but the job forbids it": (
        view(job("x", batch=NO_ACCUMULATION)),
        plan({"x": on(("a", 1))}, x=BatchConfig(total=64, atomic=32, accumulation=1)),
    ),
    r"contract fixed, total batch 32, allowed only 64": (
        view(job("x", FIXED)),
        plan({"x": on(("a", 1))}, x=BatchConfig(total=32, atomic=32)),
    ),
    r"contract frozen, total batch 32, allowed only 64": (
        view(job("x", FROZEN)),
        plan({"x": on(("a", 1))}, x=BatchConfig(total=32, atomic=32)),
    ),
    r"total batch 257, allowed at most 256": (
        view(job("x")),
        plan({"x": on(("a", 4), ("b", 1))}, x=BatchConfig(total=257, atomic=64)),
    ),
}


@pytest.mark.parametrize("name", LAWFUL)
def test_a_lawful_plan_passes(name: str) -> None:
    check_plan(*LAWFUL[name])


@pytest.mark.parametrize("message", UNLAWFUL)
def test_each_broken_law_is_named(message: str) -> None:
    with pytest.raises(PlanError, match=message):
        check_plan(*UNLAWFUL[message])


def test_the_smaller_of_two_quotas_of_one_tenant_binds() -> None:
    generous = replace(TEAM, quota_gpus=8)
    jobs = view(job("x", tenant=generous), job("y", tenant=TEAM))
    with pytest.raises(PlanError, match="its quota is 3"):
        check_plan(jobs, plan({"x": on(("a", 3)), "y": on(("b", 1))}))


@given(cluster_views())
def test_greedy_plans_within_the_limits_are_lawful_and_one_gpu_more_is_not(view: ClusterView) -> None:
    """Fill nodes one job per node; then over-commit one of the nodes used."""
    allocations = {}
    for node, candidate in zip(view.nodes, view.jobs, strict=False):
        limits = candidate.spec.replicas
        if limits.min <= node.num_gpus:
            allocations[candidate.id] = on((node.id, min(limits.max, node.num_gpus)))
    check_plan(view, Plan(allocations=allocations))
    for name, allocation in allocations.items():
        ((node_id, count),) = allocation.slots
        size = next(node.num_gpus for node in view.nodes if node.id == node_id)
        with pytest.raises(PlanError):
            check_plan(view, Plan(allocations={**allocations, name: on((node_id, max(size, count) + 1))}))
