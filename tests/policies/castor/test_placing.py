"""The floor: what is free where, whether it was looked for from the beginning or not."""

import numpy as np

from coadapt.model import Allocation, Node
from coadapt.policies.castor.ground import ground_of
from coadapt.policies.castor.placing import Floor

NODES = tuple(
    Node(id=f"n{number}", num_gpus=4 + 4 * (number % 2), rack=f"r{number % 3}") for number in range(9)
)


def test_places_are_the_same_whenever_they_are_looked_for_first() -> None:
    rng = np.random.default_rng(0)
    for _ in range(50):
        early, late = (Floor(ground_of(NODES).pools[0], {"n4": 3}) for _ in range(2))
        for number in range(12):
            assert early.find(1) is not None
            assert sum(map(len, early.small.values())) <= len(early.held)
            nodes = rng.choice(len(NODES), size=int(rng.integers(1, 3)), replace=False)
            here = Allocation(slots=tuple((f"n{node}", int(rng.integers(1, 4))) for node in nodes))
            assert early.put(f"j{number}", here) == late.put(f"j{number}", here)
            if early.held and rng.random() < 0.3:
                gone = next(iter(early.held))
                assert early.lift(gone) == late.lift(gone)
        assert early.free == late.free
        assert {node: on for node, on in early.small.items() if on} == late.small
        assert [early.find(count) for count in range(1, 20)] == [late.find(count) for count in range(1, 20)]
        assert early.largest() == late.largest()
