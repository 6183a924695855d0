"""The frozen values of floor 0: what they compute, and which illegal values cannot be
built.
"""

import math
import pickle
from collections.abc import Callable
from dataclasses import FrozenInstanceError

import pytest
from hypothesis import given

from coadapt.model import (
    WAITING,
    Allocation,
    BatchConfig,
    BatchLimits,
    BatchSchedule,
    ClusterView,
    Forecast,
    GradStats,
    InputError,
    JobSpec,
    JobView,
    Launch,
    Measured,
    Node,
    Placement,
    ReplicaLimits,
    RescaleContract,
    Tenant,
    ThroughputParams,
    Usage,
)
from tests.model.strategies import allocations, cluster_views


def batch(**changes: int) -> BatchLimits:
    return BatchLimits(**{"initial": 32, **changes})  # type: ignore[arg-type]


def half(num_replicas: int, *labels: int) -> Allocation:
    return Allocation(slots=(("n", num_replicas),), gpu_share=0.5, shared=labels)


def on_gpu(share: float, label: int) -> Allocation:
    return Allocation(slots=(("n", 1),), gpu_share=share, shared=(label,))


ILLEGAL: list[tuple[str, Callable[[], object]]] = [
    (r"Node\.id must not be empty", lambda: Node(id="", num_gpus=1)),
    (r"Node\.num_gpus must be >= 1, got 0", lambda: Node(id="n", num_gpus=0)),
    (
        r"replicas on node 'n' must be >= 1, got 0",
        lambda: Allocation(slots=(("n", 0),)),
    ),
    (
        r"a node is named twice",
        lambda: Allocation(slots=(("n", 1), ("m", 1), ("n", 2))),
    ),
    (
        r"gpu_share must be 1/n with n in 1\.\.8, got 0",
        lambda: Allocation(gpu_share=0.0),
    ),
    (
        r"gpu_share must be 1/n with n in 1\.\.8, got 1\.5",
        lambda: Allocation(gpu_share=1.5),
    ),
    (
        r"gpu_share must be 1/n with n in 1\.\.8, got 0\.6",
        lambda: Allocation(gpu_share=0.6),
    ),
    (
        r"gpu_share must be 1/n with n in 1\.\.8, got 0\.1",
        lambda: Allocation(gpu_share=0.1),
    ),
    (r"gpu_share must be 1/n .* got nan", lambda: Allocation(gpu_share=float("nan"))),
    (
        r"must name 2 GPUs for 2 replicas with 0\.5 of a GPU each, got \(\)",
        lambda: half(2),
    ),
    (r"must name 0 GPUs for 1 replicas with 1 of a GPU each", lambda: on_gpu(1.0, 0)),
    (r"labels must be >= 0, got \(-1,\)", lambda: half(1, -1)),
    (r"two replicas of one job on one GPU", lambda: half(2, 3, 3)),
    (r"Tenant\.id must not be empty", lambda: Tenant(id="")),
    (r"Tenant\.weight must be finite and > 0, got 0", lambda: Tenant(weight=0.0)),
    (r"Tenant\.quota_gpus must be >= 0, got -1", lambda: Tenant(quota_gpus=-1)),
    (r"gpus: the minimum must be >= 1, got 0", lambda: ReplicaLimits(min=0)),
    (
        r"gpus: the maximum must be >= the minimum, got 8\.\.2",
        lambda: ReplicaLimits(min=8, max=2),
    ),
    (
        r"gpus: requested must be within 2\.\.4, got 5",
        lambda: ReplicaLimits(min=2, max=4, requested=5),
    ),
    (
        r"gpus: requested must be within 2\.\.4, got 1",
        lambda: ReplicaLimits(min=2, max=4, requested=1),
    ),
    (r"batch\.initial must be >= 1, got 0", lambda: batch(initial=0)),
    (
        r"batch\.max must be >= batch\.initial \(32\), got 16",
        lambda: batch(max_total=16),
    ),
    (
        r"batch\.requested must be within 1\.\.64, got 65",
        lambda: batch(max_total=64, requested=65),
    ),
    (
        r"batch\.requested must be within 1\.\.32, got -1",
        lambda: batch(requested=-1, max_total=32),
    ),
    (r"batch\.min_atomic must be >= 1, got 0", lambda: batch(min_atomic=0)),
    (
        r"max_atomic must be >= batch\.min_atomic \(4\), got 3",
        lambda: batch(min_atomic=4, max_atomic=3),
    ),
    (r"run: the command must not be empty", lambda: Launch(run="  ")),
    (r"name must not be empty", lambda: JobSpec(name="", batch=batch())),
    (
        r"max_failures must be >= 0, got -1",
        lambda: JobSpec(name="a", batch=batch(), max_failures=-1),
    ),
    (
        r"BatchConfig\.atomic must be >= 1, got 0",
        lambda: BatchConfig(total=1, atomic=0),
    ),
    (
        r"BatchConfig\.accumulation must be >= 0",
        lambda: BatchConfig(total=1, atomic=1, accumulation=-1),
    ),
    (r"BatchConfig\.total must be >= 1, got 0", lambda: BatchConfig(total=0, atomic=1)),
    (
        r"ThroughputParams\.beta_c must be finite",
        lambda: ThroughputParams(alpha_c=1, beta_c=-1),
    ),
    (
        r"ThroughputParams\.alpha_k must be finite",
        lambda: ThroughputParams(alpha_c=1, beta_c=1, alpha_k=math.nan),
    ),
    (
        r"ThroughputParams\.gamma must be in \[1, 10\]",
        lambda: ThroughputParams(alpha_c=1, beta_c=1, gamma=0.9),
    ),
    (
        r"ThroughputParams\.gamma must be in \[1, 10\]",
        lambda: ThroughputParams(alpha_c=1, beta_c=1, gamma=math.nan),
    ),
    (
        r"remaining_steps must be finite",
        lambda: Forecast(remaining_steps=math.inf, step_time_s=(1.0,)),
    ),
    (
        r"step_time_s must be finite seconds > 0",
        lambda: Forecast(remaining_steps=1.0, step_time_s=()),
    ),
    (
        r"step_time_s must be finite seconds > 0",
        lambda: Forecast(remaining_steps=1.0, step_time_s=(0.0,)),
    ),
    (r"GradStats\.sqr must be finite", lambda: GradStats(sqr=-1.0, var=1.0)),
    (r"GradStats\.var must be finite", lambda: GradStats(sqr=1.0, var=math.inf)),
]


@pytest.mark.parametrize(
    ("message", "build"), ILLEGAL, ids=[message for message, _ in ILLEGAL]
)
def test_an_illegal_value_cannot_be_built(
    message: str, build: Callable[[], object]
) -> None:
    with pytest.raises(ValueError, match=message):
        build()


def test_defaults_follow_from_what_was_given() -> None:
    assert ReplicaLimits(min=2, max=4).requested == 2
    assert batch().requested == 32
    assert batch().max_total == 32
    assert batch(requested=64).max_total == 64
    assert JobSpec(name="a", batch=batch()).contract is RescaleContract.FIXED


@pytest.mark.parametrize("contract", RescaleContract)
def test_only_adaptive_jobs_let_the_scheduler_choose_the_batch(
    contract: RescaleContract,
) -> None:
    ramp = (
        BatchSchedule(steps=((0, 32),))
        if contract is RescaleContract.SCHEDULE
        else None
    )
    spec = JobSpec(name="a", batch=batch(schedule=ramp), contract=contract)
    assert spec.adaptive is (contract is RescaleContract.ADAPTIVE)


def test_an_allocation_keeps_rank_order() -> None:
    allocation = Allocation(slots=(("b", 3), ("a", 1)))
    assert allocation.shape == (3, 1)
    assert allocation.num_replicas == 4
    assert allocation.num_nodes == 2
    assert (allocation.on("a"), allocation.on("b"), allocation.on("c")) == (1, 3, 0)
    assert allocation != Allocation(slots=(("a", 1), ("b", 3)))


def test_an_empty_allocation_is_waiting_and_false() -> None:
    assert Allocation() == WAITING
    assert not WAITING
    assert WAITING.num_replicas == 0
    assert WAITING.placement({}) == Placement()
    assert Allocation(slots=(("n", 1),))


def test_a_placement_counts_the_racks_that_it_spans() -> None:
    nodes = {
        name: Node(id=name, num_gpus=4, rack=rack)
        for name, rack in (("a", "x"), ("b", "y"), ("c", "x"))
    }
    assert Allocation(slots=(("a", 2), ("c", 4))).placement(nodes) == Placement(
        (2, 4), 1
    )
    assert Allocation(slots=(("b", 4), ("a", 2))).placement(nodes) == Placement(
        (4, 2), 2
    )
    with pytest.raises(KeyError):
        Allocation(slots=(("gone", 1),)).placement(nodes)


@given(allocations())
def test_an_allocation_is_the_sum_of_its_nodes(allocation: Allocation) -> None:
    assert (
        allocation.num_replicas
        == sum(allocation.shape)
        == sum(allocation.on(n) for n, _ in allocation.slots)
    )
    assert bool(allocation) is (allocation.num_replicas > 0)


def test_the_noise_scale_is_in_samples_and_infinite_without_signal() -> None:
    assert GradStats(sqr=2.0, var=3.0).noise_scale(initial=128) == 192.0
    assert GradStats(sqr=0.0, var=3.0).noise_scale(initial=128) == math.inf


def test_a_forecast_clamps_to_the_replicas_that_it_covers() -> None:
    forecast = Forecast(remaining_steps=10.0, step_time_s=(4.0, 3.0, 2.0))
    assert [forecast.remaining_s(k) for k in (0, 1, 2, 3, 4)] == [
        40.0,
        40.0,
        30.0,
        20.0,
        20.0,
    ]


def test_values_are_frozen() -> None:
    node = Node(id="n", num_gpus=4)
    with pytest.raises(FrozenInstanceError):
        node.num_gpus = 5  # type: ignore[misc]
    with pytest.raises((AttributeError, TypeError)):
        object.__setattr__(node, "colour", "red")


@given(cluster_views())
def test_a_view_pickles_to_an_equal_view(view: ClusterView) -> None:
    assert pickle.loads(pickle.dumps(view)) == view
    assert view.num_gpus == sum(node.num_gpus for node in view.nodes)


def test_a_job_view_starts_with_nothing() -> None:
    view = JobView(id="a", spec=JobSpec(name="a", batch=batch()), submitted_at=3.0)
    assert (view.allocation, view.usage, view.measured) == (
        WAITING,
        Usage(),
        Measured(),
    )


def test_bad_input_names_field_value_and_what_is_allowed() -> None:
    error = InputError("resources.gpus", "8..2", "MIN..MAX with MIN <= MAX")
    assert str(error) == "resources.gpus: got '8..2'; allowed: MIN..MAX with MIN <= MAX"
    assert (error.field, error.value, error.allowed) == (
        "resources.gpus",
        "8..2",
        "MIN..MAX with MIN <= MAX",
    )


def test_bad_input_is_cut_when_long() -> None:
    text = str(InputError("x", "a" * 1000, "less"))
    assert len(text) < 200
    assert "…; allowed: less" in text
