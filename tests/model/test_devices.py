"""GPUs are counted device by device: what may be held together, and what a job holds
while it changes.
"""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coadapt.model import (
    PARTS,
    Allocation,
    FreeGpus,
    Holding,
    InputError,
    Node,
    holding,
)
from coadapt.model.devices import Holdings
from coadapt.model.wire import from_json

NODES = (Node(id="a", num_gpus=2), Node(id="b", num_gpus=4))


def whole(node: str, count: int) -> Allocation:
    return Allocation(slots=((node, count),))


def part(node: str, sharers: int, *labels: int) -> Allocation:
    return Allocation(
        slots=((node, len(labels)),), gpu_share=1 / sharers, shared=labels
    )


def test_three_times_six_tenths_of_two_gpus_cannot_even_be_said() -> None:
    with pytest.raises(InputError, match=r"1/n with n in 1\.\.8, got 0\.6"):
        from_json(Allocation, {"slots": [["a", 1]], "gpu_share": 0.6, "shared": [0]})


def test_a_third_written_as_a_decimal_fraction_is_a_third() -> None:
    written = from_json(
        Allocation, {"slots": [["a", 1]], "gpu_share": 0.333, "shared": [0]}
    )
    assert written == part("a", 3, 0)
    assert (written.num_sharers, written.num_gpus) == (3, 1 / 3)


def test_a_job_that_changes_holds_what_it_had_and_what_it_gets() -> None:
    assert holding(whole("a", 2), whole("a", 1)).whole == {"a": 2}
    both = holding(part("a", 4, 0, 1), part("a", 2, 1))
    assert both.parts == {("a", 0): PARTS // 4, ("a", 1): PARTS // 2}
    # Nobody says which of its whole GPUs would become the shared one: it needs one
    # more.
    mixed = holding(whole("a", 1), part("a", 2, 0))
    assert mixed.num_gpus == 1.5
    assert mixed.by_node == {"a": 1.5}
    free = FreeGpus(NODES)
    free.take(mixed)
    assert free.whole == {"a": 0, "b": 4}


def test_what_it_holds_already_costs_nothing_more() -> None:
    free = FreeGpus(NODES)
    mine = holding(part("a", 4, 0))
    free.take(mine)
    free.take(holding(whole("a", 1)))
    assert free.fits(holding(part("a", 2, 0)), mine)
    assert not free.fits(holding(part("a", 2, 1)), mine)
    assert not free.fits(holding(part("a", 2, 0, 1)), mine)
    free.take(holding(part("a", 2, 0)), mine)
    free.take(holding(part("a", 2, 0)))
    assert list(free.overfull()) == []
    assert not free.fits(holding(part("a", 8, 0)))


def test_labels_with_room_come_before_new_ones() -> None:
    free = FreeGpus(NODES)
    free.take(holding(part("b", 2, 1, 2)))
    free.take(holding(part("b", 3, 2)))
    assert free.open_labels("a", 2) == [0, 1]
    assert free.open_labels("b", 2) == [1, 0, 3]
    assert free.open_labels("b", 8) == [1, 2, 0, 3]
    assert free.open_labels("gone", 2) == []
    assert free.num_new(holding(part("b", 2, 1, 0, 3))) == 2
    assert free.num_new(holding(whole("a", 2), part("b", 2, 1))) == 2


def test_nodes_that_are_gone_are_passed_over_but_hold_nothing() -> None:
    free = FreeGpus(NODES)
    free.take(holding(whole("gone", 3)))
    free.take(holding(part("gone", 2, 0)))
    assert list(free.overfull()) == []
    assert not free.fits(holding(whole("gone", 1)))
    assert not free.fits(holding(part("gone", 2, 0)))


CLUSTER = tuple(Node(id=f"n{index}", num_gpus=2) for index in range(3))
PLACES = (
    Allocation(),
    whole("n0", 1),
    whole("n1", 2),
    Allocation(slots=(("n0", 1), ("n2", 2))),
    part("n0", 2, 0),
    part("n0", 3, 1),
    part("n1", 2, 0),
)


@given(
    st.lists(
        st.sampled_from(CLUSTER)
        | st.tuples(st.sampled_from("abc"), st.sampled_from(PLACES))
    )
)
def test_what_is_kept_while_nodes_come_and_go_is_what_a_count_gives(
    changes: list[Node | tuple[str, Allocation]],
) -> None:
    there = CLUSTER
    holds = dict[str, Holding]()
    kept = Holdings(there)
    for change in changes:
        if isinstance(change, Node):
            there = tuple(
                node for node in CLUSTER if (node in there) != (node is change)
            )
            kept.renew(there, change.id)
        else:
            name, allocation = change
            holds[name] = holding(allocation)
            kept.put(name, holds[name])
        counted = FreeGpus(there)
        for each in holds.values():
            counted.take(each)
        assert list(kept.free.whole.items()) == list(counted.whole.items())
        assert kept.free.parts == counted.parts
        for node in CLUSTER:
            assert kept.on(node.id) == sorted(
                name for name, each in holds.items() if node.id in each.by_node
            )
