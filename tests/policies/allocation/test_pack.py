import pytest
from hypothesis import given
from hypothesis import strategies as st

from coadapt.model import WAITING, Allocation, RescaleContract
from coadapt.policies.allocation.pack import pack
from tests.policies.stage import job, nodes, on, view


def test_the_most_free_node_first_and_slots_in_the_order_of_picking() -> None:
    seen = view(nodes(2, 4, 4, 3), job("a", 9))
    assert pack(seen, {"a": 9}) == {"a": on(n1=4, n2=4, n3=1)}


def test_smaller_jobs_are_placed_first_by_default() -> None:
    seen = view(nodes(4, 4), job("a", 5), job("b", 3))
    assert pack(seen, {"a": 5, "b": 3}) == {"a": on(n1=4, n0=1), "b": on(n0=3)}


def test_an_order_can_be_given() -> None:
    """Against the view's order and the increasing counts."""
    seen = view(nodes(4, 4), job("a", 3), job("b", 5))
    assert pack(seen, {"a": 3, "b": 5}, order=["b", "a"]) == {
        "a": on(n1=3),
        "b": on(n0=4, n1=1),
    }


def test_equal_counts_go_by_the_views_order() -> None:
    seen = view(nodes(1, 1), job("late", at=2.0), job("early", at=1.0))
    assert pack(seen, {"late": 1, "early": 1}) == {"early": on(n0=1), "late": on(n1=1)}


def test_a_job_that_keeps_its_count_keeps_its_place() -> None:
    """Also its rank order; the others make do with what is left."""
    seen = view(
        nodes(4, 4), job("a", 3, held=on(n1=1, n0=2)), job("b", (1, 4), held=on(n1=3))
    )
    assert pack(seen, {"a": 3, "b": 2}) == {"a": on(n1=1, n0=2), "b": on(n1=2)}


def test_a_job_of_another_count_gives_up_all_its_places() -> None:
    seen = view(nodes(4, 4), job("a", (1, 4), held=on(n1=2)))
    assert pack(seen, {"a": 3}) == {"a": on(n0=3)}


def test_a_job_without_a_count_gets_nothing() -> None:
    seen = view(nodes(4), job("a", held=on(n0=1)), job("b"))
    assert pack(seen, {"a": 0}) == {}


def test_a_job_on_a_lost_node_is_placed_anew() -> None:
    seen = view(nodes(4), job("a", 2, held=on(gone=1, n0=1)))
    assert pack(seen, {"a": 2}) == {"a": on(n0=2)}


def test_a_job_on_a_node_that_shrank_is_placed_anew() -> None:
    seen = view(nodes(2, 4), job("a", 3, held=on(n0=3)))
    assert pack(seen, {"a": 3}) == {"a": on(n1=3)}


MIXED = nodes(2, 2, kind="small", name="s") + nodes(3, kind="big", name="b")


def test_gpu_types_never_mix() -> None:
    seen = view(MIXED, job("a", 3), job("b", 4))
    assert pack(seen, {"a": 3, "b": 4}, {"a": "big", "b": "small"}) == {
        "a": on(b0=3),
        "b": on(s0=2, s1=2),
    }


def test_without_a_type_the_one_with_most_free_gpus() -> None:
    assert pack(view(MIXED, job("a", 2)), {"a": 2}) == {"a": on(s0=2)}


def test_a_job_that_must_change_its_type_moves() -> None:
    seen = view(MIXED, job("a", 2, held=on(s0=2)))
    assert pack(seen, {"a": 2}, {"a": "big"}) == {"a": on(b0=2)}


def test_a_job_that_mixes_types_already_is_placed_anew() -> None:
    seen = view(MIXED, job("a", 2, held=on(s0=1, b0=1)))
    assert pack(seen, {"a": 2}) == {"a": on(s0=2)}


def test_frozen_jobs_are_kept_before_others() -> None:
    """Both claim the GPU of a node that came back smaller."""
    frozen = job("frozen", held=on(n0=1), contract=RescaleContract.FROZEN, at=5.0)
    seen = view(nodes(1, 1), job("a", held=on(n0=1)), frozen)
    assert pack(seen, {"a": 1, "frozen": 1}) == {"a": on(n1=1), "frozen": on(n0=1)}


@pytest.mark.parametrize(
    ("wanted", "text"),
    [
        ({"a": 3}, "is frozen"),
        ({"a": 2, "b": 9}, "do not fit"),
        ({"a": 2, "b": 6, "c": 1}, "do not fit"),
        ({"x": 1}, "not in the view"),
    ],
)
def test_counts_that_cannot_be_placed_are_refused(
    wanted: dict[str, int], text: str
) -> None:
    frozen = job("a", (2, 4), held=on(n0=2), contract=RescaleContract.FROZEN)
    seen = view(nodes(4, 4), frozen, job("b", 6), job("c"))
    with pytest.raises(ValueError, match=text):
        pack(seen, wanted)


@given(
    gpus=st.lists(st.integers(1, 8), min_size=1, max_size=8),
    wanted=st.lists(st.integers(0, 9), max_size=8),
    data=st.data(),
)
def test_pack_gives_each_count_and_never_over_commits(
    gpus: list[int], wanted: list[int], data: st.DataObject
) -> None:
    """Twice: the second round starts from the first one's places, with other counts."""
    cluster = nodes(*gpus)
    held = {f"j{index}": WAITING for index in range(len(wanted))}
    for _ in range(2):
        asked = {
            name: data.draw(st.integers(0, count))
            for name, count in zip(held, wanted, strict=True)
        }
        while sum(asked.values()) > sum(gpus):
            asked[max(asked, key=asked.__getitem__)] -= 1
        seen = view(
            cluster, *(job(name, (1, 99), held=place) for name, place in held.items())
        )
        placed = pack(seen, asked)
        assert {name: place.num_replicas for name, place in placed.items()} == {
            name: count for name, count in asked.items() if count
        }
        for node in cluster:
            assert sum(place.on(node.id) for place in placed.values()) <= node.num_gpus
        for name, place in placed.items():
            assert place == held[name] or held[name].num_replicas != asked[name]
        held = {name: placed.get(name, Allocation()) for name in held}
