"""Laws of cutting a step: nothing lost, nothing twice, near-even, in order."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coadapt.model import BatchConfig
from coadapt.train.samples.order import Pass, SampleOrder, cut_step

pytestmark = pytest.mark.train


@given(
    start=st.integers(0, 1000),
    step_samples=st.integers(1, 300),
    atomic=st.integers(1, 64),
    num_replicas=st.integers(1, 9),
    largest=st.integers(0, 64),
)
def test_a_step_is_cut_without_loss(
    start: int, step_samples: int, atomic: int, num_replicas: int, largest: int
) -> None:
    shards = [
        cut_step(
            start,
            step_samples,
            atomic,
            rank=rank,
            num_replicas=num_replicas,
            largest=largest,
        )
        for rank in range(num_replicas)
    ]
    position = start
    for passes in shards:
        assert [item.first for item in passes] == [True] + [False] * (len(passes) - 1)
        assert [item.synchronising for item in passes] == [False] * (
            len(passes) - 1
        ) + [True]
        for item in passes:
            assert item.start == position
            assert item.num_samples <= max(atomic, min(largest, 3))
            position = item.stop
        idle = [item.num_samples == 0 for item in passes]
        assert idle == sorted(idle, reverse=True), "stand-ins come first"
    assert len({len(passes) for passes in shards}) == 1, (
        "or a replica would wait for others that are done"
    )
    assert position == start + step_samples
    sizes = [sum(item.num_samples for item in passes) for passes in shards]
    most = max(atomic, min(largest, 3))
    if step_samples >= 2 * num_replicas and atomic >= 3:
        assert max(sizes) - min(sizes) <= 1
    can_do = most >= 3 or (most == 2 and step_samples % 2 == 0)
    if step_samples >= 2 and can_do:
        assert 1 not in [item.num_samples for passes in shards for item in passes]
        assert max(sizes) <= max(-(-step_samples // num_replicas) + 1, 3)
    assert sizes == sorted(sizes, reverse=True)
    assert sum(item.weight for passes in shards for item in passes) == pytest.approx(
        1.0
    )


def test_uneven_shards_of_the_papers_example() -> None:
    shards = [cut_step(0, 128, 128, rank=rank, num_replicas=3) for rank in range(3)]
    assert [[(item.start, item.stop) for item in passes] for passes in shards] == [
        [(0, 43)],
        [(43, 86)],
        [(86, 128)],
    ]


@pytest.mark.parametrize(
    ("step_samples", "atomic", "num_replicas", "largest", "dealt"),
    [
        (3, 6, 2, 0, [[3], [0]]),
        (2, 6, 2, 0, [[2], [0]]),
        (1, 6, 3, 0, [[1], [0], [0]]),
        (4, 1, 4, 0, [[1], [1], [1], [1]]),  # nothing is known to refuse one sample
        (4, 1, 4, 4, [[2], [2], [0], [0]]),
        (12, 2, 8, 0, [[2]] * 6 + [[0]] * 2),
        (7, 3, 2, 0, [[2, 2], [0, 3]]),
        (5, 2, 2, 0, [[1, 2], [0, 2]]),
        (5, 2, 2, 2, [[1, 2], [0, 2]]),  # memory has no room for three
        (5, 2, 2, 5, [[3], [2]]),
    ],
)
def test_no_pass_has_one_sample_where_that_can_be(
    step_samples: int,
    atomic: int,
    num_replicas: int,
    largest: int,
    dealt: list[list[int]],
) -> None:
    shards = [
        cut_step(
            0,
            step_samples,
            atomic,
            rank=rank,
            num_replicas=num_replicas,
            largest=largest,
        )
        for rank in range(num_replicas)
    ]
    sizes = [[item.num_samples for item in passes] for passes in shards]
    assert [sorted(own) for own in sizes] == [sorted(own) for own in dealt]


def test_a_replica_without_samples_gets_a_stand_in() -> None:
    assert cut_step(300, 1, 50, rank=1, num_replicas=2) == [
        Pass(start=301, stop=301, step_samples=1)
    ]


@given(
    num_samples=st.integers(1, 500),
    epoch=st.integers(0, 50),
    seed=st.integers(0, 2**31),
)
def test_an_epoch_visits_every_sample_once(
    num_samples: int, epoch: int, seed: int
) -> None:
    order = SampleOrder(
        num_samples=num_samples, shuffle=True, drop_last=False, seed=seed
    )
    assert sorted(order.epoch(epoch)) == list(range(num_samples))


def test_epochs_and_seeds_differ_and_repeat() -> None:
    order = SampleOrder(num_samples=100, shuffle=True, drop_last=False, seed=1)
    other = SampleOrder(num_samples=100, shuffle=True, drop_last=False, seed=2)
    assert order.epoch(0).tolist() == order.epoch(0).tolist()
    assert order.epoch(0).tolist() != order.epoch(1).tolist()
    assert order.epoch(0).tolist() != other.epoch(0).tolist()


def test_the_last_batch_is_partial_or_dropped() -> None:
    batch = BatchConfig(total=30, atomic=30)
    kept = SampleOrder(num_samples=100, shuffle=False, drop_last=False, seed=0)
    dropped = SampleOrder(num_samples=100, shuffle=False, drop_last=True, seed=0)
    assert [kept.step_samples(index, batch) for index in (0, 60, 90, 100)] == [
        30,
        30,
        10,
        0,
    ]
    assert [dropped.step_samples(index, batch) for index in (0, 60, 90)] == [30, 30, 0]
    assert (kept.epoch_samples(batch), dropped.epoch_samples(batch)) == (100, 90)
    assert kept.epoch(3).tolist() == list(range(100))
