"""Streams that differ between replicas are told apart from streams that only
augment.
"""

import copy
import itertools
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import ConcatDataset, IterableDataset, Subset, TensorDataset

import coadapt.train as ct
from coadapt.train.samples.alike import (
    READ_AGAIN,
    Reading,
    data_outline,
    digest,
    rows_of,
    steady_parts,
    why_unlike,
)
from tests.train.replicas import run_replicas

pytestmark = pytest.mark.train

Stream = Callable[[int, int], Iterator[object]]  # of a rank, of so many


def samples(count: int = 96) -> list[object]:
    return [(torch.full((2,), float(index)), index) for index in range(count)]


def by_turns(rank: int, size: int) -> Iterator[object]:
    return iter(samples()[rank::size])


def by_blocks(rank: int, size: int) -> Iterator[object]:
    return iter(samples()[rank * 96 // size : (rank + 1) * 96 // size])


def by_turns_sorted_by_class(rank: int, size: int) -> Iterator[object]:
    return ((torch.full((2,), float(i)), i // 48) for i in range(rank, 96, size))


def labels_by_turns(rank: int, size: int) -> Iterator[object]:
    # Both replicas see the labels 0, 1, 0, 1, of different samples.
    return ((torch.tensor(float(i)), i // size % 2) for i in range(rank, 96, size))


def shuffled_by_rank(rank: int, size: int) -> Iterator[object]:
    return iter(random.Random(rank).sample(samples(), 96))


def unseeded(rank: int, size: int) -> Iterator[object]:
    return iter(random.SystemRandom().sample(samples(), 96))


def whole(rank: int, size: int) -> Iterator[object]:
    return iter(samples())


def augmented(rank: int, size: int) -> Iterator[object]:
    noise = random.SystemRandom()
    return (
        {"image": torch.full((2,), noise.random()), "label": torch.tensor(index % 10)}
        for index in range(96)
    )


def augmented_and_split(rank: int, size: int) -> Iterator[object]:
    return itertools.islice(augmented(0, 1), rank * 5, None)


def only_noise(rank: int, size: int) -> Iterator[object]:
    noise = random.SystemRandom()
    return (torch.full((2,), noise.random()) for _ in range(96))


def empty_on_one(rank: int, size: int) -> Iterator[object]:
    return iter(samples()[: 96 * (1 - rank)])


def outcome(stream: Stream, size: int, dealt: int = 12) -> str:
    """Return what is said of the replicas' streams, with what is to be written; empty
    if they are alike.
    """
    readings = []
    for rank in range(size):
        rows = rows_of(list(itertools.islice(stream(rank, size), dealt)))
        one, other = (
            [
                row
                for sample in itertools.islice(stream(rank, size), READ_AGAIN)
                for row in rows_of([sample])
            ]
            for _ in range(2)
        )
        readings.append(Reading(rows=rows, begins=one, steady=steady_parts(one, other)))
    unlike = why_unlike(readings)
    return "" if unlike is None else f"{unlike.given}; {unlike.allowed}"


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize(
    ("stream", "said"),
    [
        (by_turns, "a part of the samples on each"),
        (by_blocks, "a part of the samples on each"),
        (by_turns_sorted_by_class, "a part of the samples on each"),
        (labels_by_turns, "a part of the samples on each"),
        (empty_on_one, "a part of the samples on each|drawn at random"),
        (shuffled_by_rank, "another order on each replica"),
        (unseeded, "drawn at random without a seed"),
        (augmented_and_split, "another order on each|a part of the samples"),
        (only_noise, "compare=False"),
    ],
)
def test_streams_that_differ_are_told_with_their_cause(
    stream: Stream, said: str, size: int
) -> None:
    found = outcome(stream, size)
    assert any(one in found for one in said.split("|")), found
    assert outcome(stream, size, dealt=1)


@pytest.mark.parametrize("stream", [whole, augmented])
def test_the_same_samples_are_alike_whatever_is_drawn_for_each(stream: Stream) -> None:
    assert outcome(stream, 3) == ""


def test_a_stream_that_cannot_be_read_again_is_told_with_all_causes() -> None:
    readings = [Reading(rows=rows_of([rank])) for rank in range(2)]
    unlike = why_unlike(readings)
    assert unlike is not None
    assert "a part of the samples" in unlike.given
    assert "set_epoch" in unlike.allowed
    assert "compare=False" in unlike.allowed


class Item:
    def __init__(self, value: int) -> None:
        self.value = torch.tensor(value)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (torch.arange(3), torch.arange(3).float()),
        (torch.zeros(2, 3), torch.zeros(3, 2)),
        (torch.ones(2, dtype=torch.bfloat16), torch.zeros(2, dtype=torch.bfloat16)),
        (torch.tensor(True), torch.tensor(False)),
        (np.arange(4), np.arange(4)[::-1]),
        ("a", b"a"),
        (1, True),
        ([1, 2], [2, 1]),
        ({"a": 1}, {"a": 2}),
        (Item(1), Item(2)),
        (None, 0),
    ],
)
def test_digests_tell_values_apart_and_equal_ones_not(
    one: object, other: object
) -> None:
    assert rows_of([one]) != rows_of([other])
    for value in (one, other):
        assert rows_of([value]) == rows_of([copy.deepcopy(value)])
    assert digest({"a", "b", "c"}) == digest({"c", "b", "a"})


def test_a_data_set_with_indices_is_compared_without_reading_it() -> None:
    class Unread(TensorDataset):
        def __getitem__(self, index: int) -> tuple[Tensor, ...]:
            raise AssertionError("read")

    data = Unread(torch.zeros(96))
    parts = [Subset(data, range(rank, 96, 2)) for rank in range(2)]
    assert data_outline(data) == data_outline(copy.copy(data))
    assert data_outline(parts[0]) != data_outline(parts[1])
    assert data_outline(parts[0]) == data_outline(Subset(data, list(range(0, 96, 2))))
    joined = [ConcatDataset([data, part]) for part in parts]
    assert data_outline(joined[0]) != data_outline(joined[1])


class Split(IterableDataset[tuple[Tensor, int]]):
    """Splits itself: as the stream of a library does that knows of ranks."""

    def __init__(self, rank: int, size: int) -> None:
        self.part = slice(rank, None, size)

    def __iter__(self) -> Iterator[tuple[Tensor, int]]:
        return ((torch.ones(2), index) for index in range(*self.part.indices(96)))


def train_on(case: str) -> None:
    torch.set_num_threads(1)
    run = ct.init()
    net = nn.Linear(2, 1)
    model, optimizer = run.prepare(net, torch.optim.SGD(net.parameters(), lr=1e-3))
    whole_set = TensorDataset(torch.ones(96, 2), torch.arange(96))
    data: object = Split(run.rank, run.num_replicas)
    if case == "subset":
        data = Subset(whole_set, range(run.rank, 96, run.num_replicas))
    workers = 2 if case == "fetched" else 0
    loader = run.loader(
        data,  # type: ignore[arg-type]  # of several kinds
        batch_size=12,
        compare=case != "trusted",
        num_workers=workers,
        multiprocessing_context="fork" if workers else None,
    )
    for _ in run.epochs(1):
        for x, _ids in loader:  # type: ignore[misc]  # a pair
            model(x).mean().backward()
            optimizer.step()
    print("trained", run.progress.samples, flush=True)


@pytest.mark.processes
@pytest.mark.parametrize("case", ["stream", "fetched", "subset"])
def test_data_that_is_split_already_is_refused_before_the_first_step(
    tmp_path: Path, case: str
) -> None:
    assert 0 not in run_replicas(train_on, [case, case], tmp_path)
    output = "".join(path.read_text() for path in tmp_path.glob("output-*.txt"))
    assert "InputError: loader(dataset): got " in output
    said = "different indices" if case == "subset" else "a part of the samples"
    assert said in output
    assert "trained 96" not in output


@pytest.mark.processes
def test_what_the_user_answers_for_is_not_compared(tmp_path: Path) -> None:
    assert run_replicas(train_on, ["trusted"] * 2, tmp_path) == [0, 0]
    assert "trained 48" in (tmp_path / "output-0.txt").read_text()
