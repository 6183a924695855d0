"""Streams that begin alike and part later are told; those that only augment are not."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import IterableDataset

import coadapt.train as ct
from tests.train.replicas import run_replicas

pytestmark = [pytest.mark.train, pytest.mark.processes]

NUM_SAMPLES = 400
PARTS_AT = 150


class Stream(IterableDataset[object]):
    """Numbers in order. kind: what differs between replicas from PARTS_AT on."""

    def __init__(self, kind: str, rank: int) -> None:
        self.kind = kind
        self.rank = rank

    def __iter__(self) -> Iterator[object]:
        noise = np.random.default_rng(None if self.kind == "augmented" else 0)
        for index in range(NUM_SAMPLES):
            late = index >= PARTS_AT and self.kind == "parts"
            value = index + self.rank * late
            moved = noise.standard_normal(2).astype(np.float32)
            yield torch.from_numpy(moved), torch.tensor([float(value)])


def train(kind: str, num_workers: int) -> None:
    run = ct.init()
    net = nn.Linear(2, 1)
    model, optimizer = run.prepare(net, torch.optim.SGD(net.parameters(), lr=1e-6))
    data = Stream(kind, run.rank)
    loader = run.loader(data, batch_size=4, num_workers=num_workers)
    for _ in run.epochs(1):
        for x, y in loader:
            optimizer.zero_grad()
            nn.functional.mse_loss(model(x), y).backward()
            optimizer.step()
    run.close()


@pytest.mark.parametrize(
    ("kind", "num_workers", "warnings"),
    [("parts", 0, 1), ("parts", 2, 1), ("augmented", 0, 0), ("alike", 2, 0)],
)
def test_what_parts_later_is_told_once(
    kind: str, num_workers: int, warnings: int, tmp_path: Path
) -> None:
    work = [(kind, num_workers)] * 2
    assert run_replicas(train_as, work, tmp_path) == [0, 0]
    said = [(tmp_path / f"output-{rank}.txt").read_text() for rank in (0, 1)]
    words = "replicas get other samples of a stream that began alike"
    assert [text.count(words) for text in said] == [warnings, 0], said


def train_as(how: tuple[str, int]) -> None:
    train(*how)
