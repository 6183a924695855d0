"""Data sets of equal length that were split by hand are noticed, and nothing else."""

import itertools
import logging
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import ConcatDataset, Dataset, Subset, TensorDataset

import coadapt.train as ct
from coadapt.train.samples.alike import differ_in_samples, sample_outline
from tests.train.replicas import run_replicas

pytestmark = pytest.mark.train

SIZE = 96
X = torch.randn(SIZE, 3, generator=torch.Generator().manual_seed(0))
Y = torch.arange(SIZE) % 10
Made = Callable[[int], object]  # of a rank of two


class Files(Dataset[object]):
    """File names and classes, as a folder of images has them."""

    def __init__(self, names: list[str], labels: list[int]) -> None:
        self.samples = list(zip(names, labels, strict=True))
        self.targets = labels

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> object:
        raise AssertionError("nothing is to be read")


class Computed(Dataset[object]):
    """Has nothing in memory; its cache fills as it is used."""

    def __init__(self, rank: int) -> None:
        self.cache: list[object] = [None] * SIZE
        self.cache[:8] = [torch.randn(3)] * 8
        self.rank = rank
        self.handle = None

    def __len__(self) -> int:
        return SIZE

    def __getitem__(self, index: int) -> object:
        raise AssertionError("nothing is to be read")


def files(rank: int, *, folder: str = "/data", step: int = 1) -> Files:
    ids = range(rank * (step > 1), SIZE * step, step)
    names = [f"{folder}/{index}.png" for index in ids]
    return Files(names, [index // step % 7 for index in ids])


def augmented(rank: int) -> Files:
    """Each replica draws its own flips and crops as it is made."""
    found = files(rank)
    draws = np.random.default_rng(rank)
    found.flips = draws.random(SIZE)  # type: ignore[attr-defined]
    found.crops = draws.integers(0, 9, (SIZE, 4))  # type: ignore[attr-defined]
    return found


@pytest.mark.parametrize(
    "made",
    [
        lambda rank: TensorDataset(X[rank::2], Y[rank::2]),
        lambda rank: TensorDataset(X[rank * 48 :][:48], Y[rank * 48 :][:48]),
        lambda rank: Subset(TensorDataset(X[rank::2], Y[rank::2]), range(40)),
        lambda rank: ConcatDataset([TensorDataset(X[rank::2])] * 2),
        lambda rank: Files([str(i) for i in range(rank, SIZE, 2)], [0] * 48),
        lambda rank: Files([str(i) for i in range(rank, SIZE, 2)], [rank] * 48),
        lambda rank: TensorDataset(torch.randn(SIZE, 3, generator=seeded(rank))),
    ],
)
def test_a_split_by_hand_is_noticed(made: Made) -> None:
    one, other = (sample_outline(made(rank)) for rank in range(2))
    assert differ_in_samples(one, other)
    assert not differ_in_samples(one, sample_outline(made(0)))


def seeded(rank: int) -> torch.Generator:
    return torch.Generator().manual_seed(rank)


@pytest.mark.parametrize(
    "made",
    [
        lambda _: TensorDataset(X, Y),
        lambda rank: files(rank, folder=f"/scratch/node-{rank}"),
        augmented,
        Computed,
        lambda _: TensorDataset(torch.zeros(SIZE, 3), torch.zeros(SIZE)),
        lambda rank: TensorDataset(torch.randn(4, 3, generator=seeded(rank))),
        lambda rank: Subset(files(rank), range(SIZE)),
        lambda _: range(SIZE),
    ],
)
def test_data_that_all_replicas_share_is_no_alarm(made: Made) -> None:
    one, other = (sample_outline(made(rank)) for rank in range(2))
    assert not differ_in_samples(one, other)


def train(split: bool) -> None:
    logging.basicConfig(level=logging.WARNING)
    run = ct.init()
    rank = int(os.environ["RANK"])
    net = nn.Linear(3, 1)
    model, optimizer = run.prepare(net, torch.optim.SGD(net.parameters(), lr=1e-4))
    x = X[rank::2] if split else X[:48]
    loader = run.loader(TensorDataset(x), batch_size=12)
    for _ in run.epochs(2):
        for batch in itertools.islice(loader, 3):
            (given,) = batch  # type: ignore[misc,attr-defined]
            assert isinstance(given, Tensor)
            model(given).square().mean().backward()
            optimizer.step()
    run.close()


@pytest.mark.processes
@pytest.mark.parametrize("split", [True, False])
def test_one_line_says_what_to_write(split: bool, tmp_path: Path) -> None:
    assert run_replicas(train, [split] * 2, tmp_path) == [0, 0]
    output = "".join(path.read_text() for path in tmp_path.glob("output-*.txt"))
    assert output.count("different samples at the same index") == split
