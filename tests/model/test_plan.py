"""check_plan: the guard between any policy and the core. A lawful plan passes, each
broken law is named.
"""

import pickle
from collections.abc import Mapping
from dataclasses import replace

import pytest

from coadapt.model import (
    Allocation,
    BatchConfig,
    BatchLimits,
    BatchSchedule,
    ClusterView,
    Grant,
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
from coadapt.model.view import current_allocations

NODES = (
    Node(id="a", num_gpus=4),
    Node(id="b", num_gpus=4),
    Node(id="v", num_gpus=2, gpu_type="v100"),
)
TEAM = {"team": Tenant(id="team", quota_gpus=3)}


def job(
    name: str, contract: RescaleContract = RescaleContract.ADAPTIVE, **changes: object
) -> JobView:
    spec = JobSpec(
        name=name,
        replicas=ReplicaLimits(min=1, max=6),
        batch=BatchLimits(initial=32, requested=64, max_total=256, max_atomic=64),
    )
    spec_changes = {
        key: changes.pop(key)
        for key in ("replicas", "batch", "tenant")
        if key in changes
    }
    spec_changes["contract"] = contract
    return JobView(
        id=name, spec=replace(spec, **spec_changes), submitted_at=0.0, **changes
    )  # type: ignore[arg-type]


def on(
    *slots: tuple[str, int], sharers: int = 1, at: tuple[int, ...] = ()
) -> Allocation:
    return Allocation(slots=slots, gpu_share=1 / sharers, shared=at)


def view(*jobs: JobView) -> ClusterView:
    return ClusterView(at=0.0, nodes=NODES, jobs=jobs, tenants=TEAM)


def plan(
    allocations: Mapping[str, Allocation] | None = None, **batches: BatchConfig
) -> Plan:
    return Plan(allocations=allocations or {}, batches=batches)


TWO_ON_A = Grant(allocation=on(("a", 2)))
FROZEN = RescaleContract.FROZEN
SELF = RescaleContract.SELF
FIXED = RescaleContract.FIXED
NO_ACCUMULATION = BatchLimits(
    initial=32, requested=64, max_total=256, accumulation=False
)
SCHEDULED = BatchLimits(initial=64, schedule=BatchSchedule.parse("0:64 1K:128"))

LAWFUL: dict[str, tuple[ClusterView, Plan]] = {
    "nobody gets anything": (view(job("x")), plan()),
    "no jobs": (view(), plan()),
    "an explicit wait": (view(job("x")), plan({"x": Allocation()})),
    "a full node": (view(job("x")), plan({"x": on(("a", 4))})),
    "two halves of one node": (
        view(job("x"), job("y")),
        plan({name: on(("a", 4), sharers=2, at=(0, 1, 2, 3)) for name in "xy"}),
    ),
    "eight eighths of one GPU beside a whole one": (
        view(*(job(f"x{i}") for i in range(8)), job("y")),
        plan(
            {f"x{i}": on(("v", 1), sharers=8, at=(5,)) for i in range(8)}
            | {"y": on(("v", 1))}
        ),
    ),
    "a half, a third and a sixth of one GPU": (
        view(job("x"), job("y"), job("z")),
        plan(
            {
                name: on(("v", 1), sharers=n, at=(0,))
                for name, n in (("x", 2), ("y", 3), ("z", 6))
            }
        ),
    ),
    "equal labels on two nodes are two GPUs": (
        view(job("x"), job("y")),
        plan(
            {
                "x": on(("a", 1), ("b", 1), sharers=2, at=(0, 0)),
                "y": on(("a", 1), sharers=2, at=(0,)),
            }
        ),
    ),
    "a frozen job starts": (view(job("x", FROZEN)), plan({"x": on(("a", 2))})),
    "a frozen job stays": (
        view(job("x", FROZEN, grant=TWO_ON_A)),
        plan({"x": on(("a", 2))}),
    ),
    "a frozen job is stopped whole": (view(job("x", FROZEN, grant=TWO_ON_A)), plan()),
    "a tenant at its quota": (view(job("x", tenant="team")), plan({"x": on(("a", 3))})),
    "the largest batch": (
        view(job("x")),
        plan({"x": on(("a", 4))}, x=BatchConfig(total=256, atomic=64)),
    ),
    "an uneven batch": (
        view(job("x")),
        plan({"x": on(("a", 3))}, x=BatchConfig(total=100, atomic=34)),
    ),
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
    r"job 'u' is not an active job": (
        view(job("x")),
        plan(u=BatchConfig(total=1, atomic=1)),
    ),
    r"node 'gone' is not a live node": (view(job("x")), plan({"x": on(("gone", 1))})),
    r"7 replicas, allowed 1\.\.6": (
        view(job("x")),
        plan({"x": on(("a", 4), ("b", 3))}),
    ),
    r"1 replicas, allowed 2\.\.3": (
        view(job("x", replicas=ReplicaLimits(min=2, max=3))),
        plan({"x": on(("a", 1))}),
    ),
    r"GPU type 'gpu', allowed only v100, tpu": (
        view(job("x", replicas=ReplicaLimits(max=6, gpu_types=("v100", "tpu")))),
        plan({"x": on(("a", 1))}),
    ),
    r"GPU types \['gpu', 'v100'\] mixed": (
        view(job("x")),
        plan({"x": on(("a", 1), ("v", 1))}),
    ),
    r"contract frozen, its allocation": (
        view(job("x", FROZEN, grant=TWO_ON_A)),
        plan({"x": on(("a", 3))}),
    ),
    r"node 'a': 5 GPUs given, it has 4": (
        view(job("x"), job("y")),
        plan({"x": on(("a", 3)), "y": on(("a", 2))}),
    ),
    r"node 'a': 5 GPUs given, 1 of them shared, it has 4": (
        view(job("x"), job("y")),
        plan({"x": on(("a", 4)), "y": on(("a", 1), sharers=2, at=(0,))}),
    ),
    r"node 'v': 3 GPUs given, 3 of them shared, it has 2": (
        view(job("x"), job("y"), job("z")),
        plan(
            {
                name: on(("v", 1), sharers=2, at=(label,))
                for label, name in enumerate("xyz")
            }
        ),
    ),
    r"node 'v', shared GPU 0: shares of 1\.5 given, at most 1": (
        view(job("x"), job("y"), job("z")),
        plan({name: on(("v", 2), sharers=2, at=(0, 1)) for name in "xyz"}),
    ),
    r"node 'v', shared GPU 1: shares of 1\.125 given, at most 1": (
        view(*(job(f"x{i}") for i in range(9))),
        plan({f"x{i}": on(("v", 1), sharers=8, at=(1,)) for i in range(9)}),
    ),
    r"tenant 'team': 4 GPUs given, its quota is 3": (
        view(job("x", tenant="team"), job("y", tenant="team")),
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
    r"contract schedule, its batch is its own": (
        view(job("x", RescaleContract.SCHEDULE, batch=SCHEDULED)),
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


def test_a_plan_from_another_process_is_made_of_known_objects() -> None:
    held = view(job("x", grant=TWO_ON_A), job("y", grant=TWO_ON_A), job("z"))
    standing = current_allocations(held)
    before = Plan(
        allocations={"x": TWO_ON_A.allocation}, reasons={"z": "waits", "x": "runs"}
    )
    for allocations in (
        {"x": on(("a", 2)), "y": on(("a", 2))},
        {"x": on(("a", 2)), "y": on(("b", 1))},
    ):
        told = Plan(
            allocations=allocations,
            reasons={"z": "waits", "x": "moves"},
            diagnostics={"gap": 1.0},
        )
        came = pickle.loads(pickle.dumps(told))
        made = came.made_of(standing, before)
        assert made == told
        assert made.allocations["x"] is standing.allocations["x"]
        assert (made.allocations is standing.allocations) == (
            allocations == standing.allocations
        )
        assert made.reasons["z"] is before.reasons["z"]
        assert made.names_only(standing)
        assert made.unlike(before) == told.unlike(before) == {"x", "y"}
