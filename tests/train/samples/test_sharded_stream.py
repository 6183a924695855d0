"""Streams over shards: one order for any number of replicas, of which each opens its
own shards only.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

import coadapt.train as ct
from coadapt.model import BatchConfig, InputError
from coadapt.train.samples.sharded_stream import (
    LaneReader,
    ShardReader,
    positions_at,
    turns,
)
from coadapt.train.samples.stream import Cut
from tests.train.rescale.test_elastic import assert_same_run, live
from tests.train.schedules import random_changes
from tests.train.toy import Toy, plain_batches

pytestmark = pytest.mark.train

SIZES = st.lists(st.integers(1, 9), min_size=1, max_size=12)


class Opened:
    """Makes streams of numbers and notes which shards are opened."""

    def __init__(self) -> None:
        self.shards: list[range] = []

    def read(self, shard: range) -> Iterator[int]:
        self.shards.append(shard)
        return iter(shard)

    def stream(
        self, sizes: list[int], num_lanes: int, *, shuffle: bool = False
    ) -> ct.ShardedStream[range, int]:
        begins = [sum(sizes[:index]) for index in range(len(sizes))]
        shards = [
            range(begin, begin + size)
            for begin, size in zip(begins, sizes, strict=True)
        ]
        return ct.ShardedStream(
            shards,
            self.read,
            num_samples=sizes,
            num_lanes=num_lanes,
            shuffle=shuffle,
            seed=3,
        )


def cut(
    total: int,
    rank: int,
    num_replicas: int,
    max_atomic: int | None = None,
    accumulation: int = 0,
) -> Cut:
    batch = BatchConfig(total=total, atomic=total, accumulation=accumulation)
    return Cut(
        batch=batch,
        drop_last=False,
        max_atomic=max_atomic,
        rank=rank,
        num_replicas=num_replicas,
    )


@given(lengths=SIZES, data=st.data())
def test_turns_can_be_taken_up_anywhere(
    lengths: list[int], data: st.DataObject
) -> None:
    start = data.draw(st.integers(0, sum(lengths)))
    whole = list(turns(lengths, 0))
    assert [whole.count(lane) for lane in range(len(lengths))] == lengths
    assert list(turns(lengths, start)) == whole[start:]
    assert positions_at(lengths, start) == [
        whole[:start].count(lane) for lane in range(len(lengths))
    ]


@given(
    sizes=SIZES,
    num_lanes=st.integers(1, 14),
    epoch=st.integers(0, 5),
    shuffle=st.booleans(),
)
def test_an_epoch_has_every_sample_once(
    sizes: list[int], num_lanes: int, epoch: int, shuffle: bool
) -> None:
    stream = Opened().stream(sizes, num_lanes, shuffle=shuffle)
    stream.set_epoch(epoch)
    samples = list(stream)
    assert sorted(samples) == list(range(sum(sizes))) == list(range(len(stream)))
    stream.set_epoch(epoch)
    assert list(stream) == samples


@given(
    sizes=SIZES,
    num_lanes=st.integers(1, 14),
    total=st.integers(1, 20),
    changes=st.lists(st.integers(1, 5), min_size=1, max_size=5),
    max_atomic=st.none() | st.integers(1, 6),
)
def test_replicas_share_each_step_also_when_their_number_changes(
    sizes: list[int],
    num_lanes: int,
    total: int,
    changes: list[int],
    max_atomic: int | None,
) -> None:
    """Replicas that stay keep their readers; joining ones begin with new ones."""
    wanted = list(Opened().stream(sizes, num_lanes))
    readers: list[ShardReader[range, int]] = []
    index = 0
    for num_replicas in changes:
        readers = readers[:num_replicas]
        while len(readers) < num_replicas:
            readers.append(ShardReader(Opened().stream(sizes, num_lanes), 0, index))
        step: list[tuple[int, int]] = []
        overs = set()
        counts = set()
        for rank, reader in enumerate(readers):
            passes = reader.passes(cut(total, rank, num_replicas, max_atomic))
            for count, item in enumerate(passes, 1):
                assert len(item.samples) <= (max_atomic or total)
                assert len(item.ids) == item.current.num_samples
                step += zip(item.ids, map(int, item.samples), strict=False)  # type: ignore[call-overload]  # numbers
                if item.current.synchronising:
                    overs.add(item.after.over)
                    counts.add(count)
                    break
        size = min(total, len(wanted) - index)
        assert sorted(step) == list(enumerate(wanted))[index : index + size]
        index += size
        assert overs == {index == len(wanted)}
        assert len(counts) == 1
        if index == len(wanted):
            return


def test_a_replica_opens_its_own_shards_only_and_few_are_open_at_a_time() -> None:
    opened = [Opened(), Opened()]
    for rank, each in enumerate(opened):
        reader = ShardReader(each.stream([5] * 8, 4), 0, 0)
        assert (
            sum(item.current.num_samples for item in reader.passes(cut(8, rank, 2)))
            == 20
        )
    assert [len(each.shards) for each in opened] == [4, 4]
    assert not set(opened[0].shards) & set(opened[1].shards)


def test_coming_back_opens_only_the_shards_at_hand_and_says_what_it_read_past() -> None:
    opened = Opened()
    reader = ShardReader(
        opened.stream([5] * 8, 4), 0, 28
    )  # 7 of 10 of each lane: 2 of each second shard
    rest = [sample for item in reader.passes(cut(6, 0, 1)) for sample in item.samples]
    assert len(opened.shards) == 4
    assert rest == list(Opened().stream([5] * 8, 4))[28:]
    assert "(8 samples of begun shards read past)" in reader.take_note()
    assert reader.take_note() == ""


def test_passes_are_as_many_as_the_batch_says_and_none_above_what_memory_holds() -> (
    None
):
    def sizes(*limits: int | None) -> list[int]:
        reader = ShardReader(Opened().stream([5] * 8, 4), 0, 0)
        accumulation, max_atomic = limits
        share = cut(17, 0, 2, max_atomic, accumulation or 0)
        return [len(item.samples) for item in reader.passes(share)][
            : (accumulation or 0) + 1
        ]

    assert sizes(0, None) == [9]
    assert sizes(1, None) == [5, 4]
    assert sizes(1, 3) == [3, 3]


def test_a_replica_without_a_lane_gets_stand_ins() -> None:
    reader = ShardReader(Opened().stream([3, 2], 2), 0, 0)
    passes = list(reader.passes(cut(2, 2, 3)))
    assert [(item.current.weight, item.samples, list(item.ids)) for item in passes] == [
        (0.0, [0], [])
    ] * 3
    assert [item.after.over for item in passes] == [False, False, True]


@pytest.mark.parametrize(("size", "found"), [(2, "it has more"), (4, "it has only 3")])
def test_a_shard_must_have_what_was_promised(size: int, found: str) -> None:
    stream = ct.ShardedStream([range(3)], iter, num_samples=[size])
    reader = LaneReader(stream.lanes()[0], stream.read, 0)
    for _ in range(min(size, 3) - (size < 3)):
        reader.next()
    with pytest.raises(
        RuntimeError,
        match=rf"shard range\(0, 3\): {size} samples were promised, {found}",
    ):
        reader.next()


def test_what_is_wrong_is_said_in_one_line() -> None:
    for arguments, name in (
        ({"shards": [], "num_samples": []}, "shards"),
        ({"shards": [1, 2], "num_samples": [1]}, "shards"),
        ({"shards": [1], "num_samples": [0]}, "num_samples"),
        ({"shards": [1], "num_samples": [1], "num_lanes": 0}, "num_lanes"),
    ):
        with pytest.raises(InputError, match=rf"ShardedStream\({name}\)"):
            ct.ShardedStream(read=iter, **arguments)  # type: ignore[arg-type]  # wrong on purpose


@pytest.mark.parametrize("fetchers", [0, 2])
def test_a_run_on_shards(tmp_path: Path, fetchers: int) -> None:
    shards = [range(7), range(7, 9), range(9, 20)]

    def read(shard: range) -> Iterator[Tensor]:
        return (torch.tensor([float(value)]) for value in shard)

    stream = ct.ShardedStream(
        shards, read, num_samples=[len(shard) for shard in shards], num_lanes=2
    )
    run = ct.init()
    options = {"multiprocessing_context": "fork"} if fetchers else {}
    loader = run.loader(
        stream, batch_size=6, max_atomic=4, num_workers=fetchers, **options
    )
    assert len(loader) == 4
    model = nn.Linear(1, 1)
    elastic, optimizer = run.prepare(
        model, torch.optim.SGD(model.parameters(), lr=1e-4)
    )
    for _ in run.epochs(2):
        seen = []
        ids = []
        for x in loader:
            elastic(x).square().mean().backward()
            optimizer.step()
            seen += [int(value) for value in x]
            ids += loader.sample_ids
        assert seen == [int(value) for value in stream]
        assert ids == list(range(20))


@pytest.mark.processes
def test_rescaled_shards_are_the_undisturbed_run(tmp_path: Path) -> None:
    toy = Toy(folder=str(tmp_path), num_epochs=3, stream="shards", max_atomic=20)
    assert plain_batches(toy, 0) != plain_batches(toy, 1)
    live(toy, (1, 2), (3, 7), (2, None))
    assert_same_run(toy)


@pytest.mark.processes
def test_shards_follow_changes_in_place(tmp_path: Path) -> None:
    random_changes(tmp_path, 3, stream="shards")
