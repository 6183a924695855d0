"""What is particular to Sia: types weighed by bootstrapped goodput, damped changes, and
whole nodes.
"""

from dataclasses import replace

import pytest

from coadapt.model import (
    Allocation,
    BatchLimits,
    ClusterView,
    JobView,
    Measured,
    Node,
    Plan,
    RescaleContract,
    ThroughputParams,
    TypeProfile,
    Usage,
)
from coadapt.policies.sia.objective import configurations, rescale_factor
from coadapt.policies.sia.policy import Sia
from tests.policies.stage import counts, job, nodes, on, view

SMALL = nodes(4, 4, kind="t4", name="s")
LARGE = nodes(8, kind="a100", name="l")


def profile(
    speed: float, num_replicas: int, sync_s: float = 0.0, max_atomic: int | None = None
) -> TypeProfile:
    """Return a model of 1 ms per sample over `speed`, and `sync_s` whenever replicas
    synchronise.
    """
    params = ThroughputParams(
        alpha_c=0.0, beta_c=0.001 / speed, alpha_r=sync_s, alpha_n=sync_s
    )
    return TypeProfile(
        params=params, num_replicas_profiled=num_replicas, max_atomic=max_atomic
    )


def trained(one: JobView, **by_type: TypeProfile) -> JobView:
    """Return `one` as it has run for an hour, with what it measured."""
    usage = Usage(started_at=0.0, num_starts=1)
    return replace(one, usage=usage, measured=replace(Measured(), by_type=by_type))


def types(plan: Plan, cluster: tuple[Node, ...]) -> dict[str, str]:
    type_of = {node.id: node.gpu_type for node in cluster}
    return {name: type_of[held.slots[0][0]] for name, held in plan.allocations.items()}


def decide(
    cluster: tuple[Node, ...], *jobs: JobView, at: float = 3600.0, **options: float
) -> Plan:
    return Sia(**options).allocate(view(cluster, *jobs, at=at))  # type: ignore[arg-type]


def test_configurations_are_powers_of_two_and_then_whole_nodes() -> None:
    found = configurations(SMALL + LARGE, [job("a", (3, 8))])
    assert [(each.num_gpus, each.num_nodes) for each in found if each.gpu_type == "t4"] == [
        (1, 1), (2, 1), (3, 1), (4, 1), (8, 2)
    ]  # fmt: skip
    assert [each.num_gpus for each in found if each.gpu_type == "a100"] == [
        1,
        2,
        3,
        4,
        8,
    ]


def test_a_job_starts_on_its_fewest_and_at_most_doubles() -> None:
    assert counts(decide(SMALL, job("a", (1, 8)))) == {"a": 1}
    timed = trained(job("a", (1, 8), held=on(s0=2)), t4=profile(1.0, 2))
    assert counts(decide(SMALL, timed)) == {"a": 4}


def test_the_faster_type_goes_to_the_job_that_gains_most() -> None:
    cluster = nodes(1, kind="t4", name="s") + nodes(1, kind="a100", name="l")
    deep = trained(job("deep"), t4=profile(1.0, 1), a100=profile(8.0, 1))
    light = trained(job("light"), t4=profile(1.0, 1), a100=profile(1.5, 1))
    for jobs in ((deep, light), (light, deep)):
        plan = decide(
            cluster,
            *(replace(each, submitted_at=float(i)) for i, each in enumerate(jobs)),
        )
        assert types(plan, cluster) == {"deep": "a100", "light": "t4"}


def test_an_unseen_type_is_taken_to_scale_as_the_seen_one() -> None:
    # On t4 four GPUs are no faster than one; on a100 only one was timed, at twice the
    # speed.
    slow_link = profile(1.0, 4, sync_s=10.0)
    timed = trained(job("a", (1, 8)), t4=slow_link, a100=profile(2.0, 1))
    plan = decide(SMALL + LARGE, timed)
    assert types(plan, SMALL + LARGE) == {"a": "a100"}
    assert counts(plan) == {"a": 1}
    assert "on a100 (as it scales on t4)" in plan.reasons["a"]
    # Timed there on several, its own model speaks.
    seen = trained(job("a", (1, 8)), t4=slow_link, a100=profile(2.0, 4))
    assert counts(decide(SMALL + LARGE, seen)) == {"a": 8}


def test_a_type_of_which_nothing_is_known_is_said_to_be() -> None:
    timed = trained(job("a", (1, 8), gpu_types=("a100",)), t4=profile(1.0, 2))
    plan = decide(SMALL + LARGE, timed)
    assert "on a100 (never timed there: taken to be like others)" in plan.reasons["a"]


def test_a_young_job_is_not_moved_for_little() -> None:
    params = {"t4": profile(1.0, 1), "a100": profile(1.3, 1)}
    young = trained(job("a", held=on(s0=1), at=3540.0), **params)
    assert decide(SMALL + LARGE, young).allocations == {"a": on(s0=1)}
    old = replace(young, submitted_at=0.0)
    assert types(decide(SMALL + LARGE, old), SMALL + LARGE) == {"a": "a100"}


def test_the_rescale_factor_counts_age_and_rescales() -> None:
    one = job("a", held=on(s0=1))
    moved = replace(one, usage=replace(one.usage, num_rescales=3))
    assert [rescale_factor(one, at) for at in (10.0, 270.0)] == [1.0, 0.9]
    assert rescale_factor(moved, 270.0) == pytest.approx(0.6)
    assert rescale_factor(moved, 60.0) == 0.01


def test_a_job_that_waits_need_not_earn_its_start() -> None:
    waiting = job("a", at=3540.0)
    assert counts(decide(SMALL, waiting)) == {"a": 1}
    assert decide(SMALL, waiting, penalise_start=True).allocations == {}


def test_parts_of_nodes_make_room_for_a_whole_one() -> None:
    # a and b hold one GPU on each node: who grows to a whole node moves one of them.
    fixed = {"contract": RescaleContract.FIXED, "batch": BatchLimits(initial=1)}
    # type: ignore[arg-type]
    a = job("a", held=on(s0=1), **fixed)
    b = job("b", held=on(s1=1), **fixed)
    whole = job("c", 4, contract=RescaleContract.FIXED)
    plan = decide(SMALL, *(trained(each, t4=profile(1.0, 4)) for each in (a, b)), whole)
    assert counts(plan) == {"a": 1, "b": 1, "c": 4}
    assert plan.allocations["c"].num_nodes == 1
    assert plan.allocations["a"].slots[0][0] == plan.allocations["b"].slots[0][0]


def test_what_is_kept_stays_in_place_and_in_order() -> None:
    held = Allocation(slots=(("s1", 4), ("s0", 4)))
    timed = trained(job("a", (8, 8), held=held), t4=profile(1.0, 8))
    assert decide(SMALL, timed).allocations == {"a": held}


def test_quotas_bind_over_all_types() -> None:
    jobs = [
        trained(job(name, (2, 4)), t4=profile(1.0, 4), a100=profile(2.0, 4))
        for name in "abc"
    ]
    seen = view(SMALL + LARGE, *jobs, at=3600.0, quotas={"default": 5})
    plan = Sia().allocate(seen)
    assert sum(counts(plan).values()) == 4


def test_the_programme_tells_its_bound() -> None:
    plan = decide(
        SMALL, *(job(f"j{i}", 3, contract=RescaleContract.FIXED) for i in range(3))
    )
    assert counts(plan) == {"j0": 3, "j1": 3} or len(plan.allocations) == 2
    assert plan.diagnostics["objective"] >= plan.diagnostics["bound"] - 1e-9
    assert plan.diagnostics["gap"] <= 1e-3


@pytest.mark.parametrize(
    ("option", "value"),
    [("power", 0.0), ("queue_cost", -1.0), ("growth", 1.0), ("gap", 1.0)],
)
def test_options_are_checked(option: str, value: float) -> None:
    with pytest.raises(ValueError, match=option):
        Sia(**{option: value})  # type: ignore[arg-type]


def test_an_empty_cluster_gives_nothing() -> None:
    plan = Sia().allocate(ClusterView(at=0.0, nodes=(), jobs=(job("a"),)))
    assert plan.allocations == {}
