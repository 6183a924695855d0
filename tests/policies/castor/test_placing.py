"""The floor: what is free where, whether it was looked for from the beginning or
not.
"""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coadapt.model import Allocation, Grant, Node
from coadapt.policies.castor.cluster import standing
from coadapt.policies.castor.ground import ground_of
from coadapt.policies.castor.placing import Floor, place
from coadapt.policies.castor.times import Shape
from tests.policies.stage import job, view

NODES = tuple(
    Node(id=f"n{number}", num_gpus=4 + 4 * (number % 2), rack=f"r{number % 3}")
    for number in range(9)
)


def test_places_are_the_same_whenever_they_are_looked_for_first() -> None:
    rng = np.random.default_rng(0)
    for _ in range(50):
        early, late = (Floor(ground_of(NODES).pools[0], {"n4": 3}) for _ in range(2))
        for number in range(12):
            assert early.find(1) is not None
            assert sum(map(len, early.small.values())) <= len(early.held)
            nodes = rng.choice(len(NODES), size=int(rng.integers(1, 3)), replace=False)
            here = Allocation(
                slots=tuple((f"n{node}", int(rng.integers(1, 4))) for node in nodes)
            )
            assert early.put(f"j{number}", here) == late.put(f"j{number}", here)
            if early.held and rng.random() < 0.3:
                gone = next(iter(early.held))
                assert early.lift(gone) == late.lift(gone)
        assert early.free == late.free
        assert {node: on for node, on in early.small.items() if on} == late.small
        assert [early.find(count) for count in range(1, 20)] == [
            late.find(count) for count in range(1, 20)
        ]
        assert early.largest() == late.largest()


@pytest.mark.parametrize("seed", range(6))
def test_places_on_the_floor_of_the_last_round_are_those_on_a_new_one(
    seed: int,
) -> None:
    """Whatever came of the last round: jobs go, have nothing or something else; nodes
    are lost.
    """
    rng = np.random.default_rng(seed)
    floor = None
    ground = None
    held = dict[str, Allocation]()
    for number in range(60):
        cluster = NODES[: 8 if number // 15 % 2 else 9]
        names = [name for name in held if rng.random() < 0.8] + [
            f"j{number}-{new}" for new in range(2)
        ]
        jobs = {name: job(name, (1, 64)) for name in names}
        for name in names:
            given_last = held.get(name, Allocation())
            nodes = rng.choice(len(cluster), size=2, replace=False)
            if rng.random() < 0.1:
                given_last = Allocation(
                    slots=tuple((f"n{node}", int(rng.integers(1, 5))) for node in nodes)
                )
            jobs[name] = replace(jobs[name], grant=Grant(allocation=given_last))
        seen = standing(view(cluster, *jobs.values()), ground)
        (kind,), ground, left = (
            seen.kinds,
            seen.ground,
            sum(node.num_gpus for node in cluster),
        )
        counts = dict[str, int]()
        for name in names:
            stays = jobs[name].allocation.num_replicas if rng.random() < 0.7 else 0
            count = min(stays or int(rng.integers(1, 13)), left)
            counts |= {name: count} if count else {}
            left -= count

        def goodput(_: str, count: int, spread: bool) -> float:
            return count * (0.5 if spread else 1.0)

        anew = place(kind, jobs, counts, goodput)
        floor = place(kind, jobs, counts, goodput, before=floor)
        assert list(floor.held.items()) == list(anew.held.items())
        assert list(floor.free.items()) == list(anew.free.items())
        held = dict(anew.held)


@given(
    st.lists(
        st.lists(st.integers(0, 11), min_size=0, max_size=5, unique=True),
        min_size=1,
        max_size=12,
    )
)
def test_shapes_that_are_kept_are_those_worked_out(numbers: list[list[int]]) -> None:
    """Of one pool, or of none: n9 to n11 are of another type, lost, and lost."""
    ground = ground_of((*NODES, Node(id="n9", num_gpus=4, gpu_type="z", rack="r0")))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("coadapt.policies.castor.ground.SHAPES_MAX", 3)
        for some in numbers * 2:
            found = ground.shape_of(
                Allocation(slots=tuple((f"n{each}", 2) for each in some))
            )
            if not some or max(some) > 9 or (9 in some and len(some) > 1):
                assert found is None
            else:
                racks = len({each % 3 for each in some})
                assert found == (int(9 in some), Shape(len(some), racks, 2 * len(some)))
            assert len(ground.shapes) <= 3
