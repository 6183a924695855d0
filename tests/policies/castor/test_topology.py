"""The shape of an allocation, and which frozen jobs stay where they are."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coadapt.model import Allocation, Node, RescaleContract, Tenant
from coadapt.policies.castor.topology import topology_of
from coadapt.policies.predictors.measured_step_times import Shape
from tests.policies.castor.stage import timed
from tests.policies.stage import nodes, on, view

NODES = tuple(
    Node(id=f"n{number}", num_gpus=4 + 4 * (number % 2), rack=f"r{number % 3}")
    for number in range(9)
)


@given(st.lists(st.integers(0, 11), max_size=5, unique=True))
def test_a_shape_is_of_live_nodes_of_one_gpu_type(some: list[int]) -> None:
    """n9 is of another type, n10 and n11 are lost."""
    other = Node(id="n9", num_gpus=4, gpu_type="z", rack="r0")
    topology = topology_of(view((*NODES, other)))
    found = topology.shape_of(Allocation(slots=tuple((f"n{each}", 2) for each in some)))
    if not some or max(some) > 9 or (9 in some and len(some) > 1):
        assert found is None
    else:
        racks = len({each % 3 for each in some})
        assert found == (int(9 in some), Shape(len(some), racks, 2 * len(some)))


@pytest.mark.parametrize(
    ("least", "most", "quota", "stays"),
    [
        (2, 2, 2, True),
        (1, 4, None, True),
        (3, 4, None, False),
        (1, 1, None, False),
        (1, 4, 1, False),
    ],
)
def test_a_frozen_job_stays_within_its_limits_and_its_quota(
    least: int, most: int, quota: int | None, stays: bool
) -> None:
    frozen = timed(
        "frozen", gpus=(least, most), contract=RescaleContract.FROZEN, held=on(n0=2)
    )
    seen = view(nodes(4), frozen)
    topology = topology_of(
        replace(seen, tenants={"default": Tenant(id="default", quota_gpus=quota)})
    )
    assert (frozen.id in topology.kept) is stays
    assert (frozen.id in topology.stranded) is not stays
