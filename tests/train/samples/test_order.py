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
)
def test_a_step_is_cut_without_loss(
    start: int, step_samples: int, atomic: int, num_replicas: int
) -> None:
    shards = [
        cut_step(start, step_samples, atomic, rank=rank, num_replicas=num_replicas)
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
            assert item.num_samples <= atomic
            position = item.stop
        idle = [item.num_samples == 0 for item in passes]
        assert idle == sorted(idle, reverse=True), "stand-ins come first"
    assert len({len(passes) for passes in shards}) == 1, (
        "or a replica would wait for others that are done"
    )
    assert position == start + step_samples
    sizes = [sum(item.num_samples for item in passes) for passes in shards]
    assert max(sizes) - min(sizes) <= 1
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
