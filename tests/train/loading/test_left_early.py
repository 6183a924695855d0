"""A loop over the loader that is left after the optimiser's step has trained on that
step's samples.
"""

import itertools
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset, IterableDataset, TensorDataset

import coadapt.train as ct
from tests.train.replicas import run_replicas

pytestmark = pytest.mark.train

NUM_SAMPLES = 40
DATA = TensorDataset(torch.arange(float(NUM_SAMPLES)).reshape(-1, 1))


class Numbers(IterableDataset[Tensor]):
    def __iter__(self) -> Iterator[Tensor]:
        return (torch.tensor([float(number)]) for number in range(NUM_SAMPLES))


class Loop:
    """A script; `seen` has what each optimiser step of this replica used."""

    def __init__(
        self, data: Dataset[object] = DATA, folder: Path | None = None
    ) -> None:
        self.run = ct.init(checkpoint_dir=folder)
        model = nn.Linear(1, 1)
        self.model, self.optimizer = self.run.prepare(
            model, torch.optim.SGD(model.parameters(), lr=1e-4)
        )
        self.loader = self.run.loader(data, batch_size=8)
        self.seen: list[list[float]] = []

    def train(self, batch: object) -> None:
        x = batch[0] if isinstance(batch, list) else batch
        assert isinstance(x, Tensor)
        self.optimizer.zero_grad()
        self.model(x).square().mean().backward()
        self.optimizer.step()
        self.seen.append(x[:, 0].tolist())

    def done(self) -> tuple[int, int, int]:
        at = self.run.progress
        return at.step, at.samples, at.index


@pytest.mark.parametrize("data", [DATA, Numbers()], ids=["map", "stream"])
@pytest.mark.parametrize("way", ["islice", "break", "next"])
def test_the_last_step_before_a_loop_is_left_counts(
    way: str, data: Dataset[object]
) -> None:
    loop = Loop(data)
    run = loop.run
    for epoch in run.epochs(2):
        passes = iter(loop.loader)
        if way == "next":
            for _ in range(3):
                loop.train(next(passes))
        elif way == "islice":
            for batch in itertools.islice(passes, 3):
                loop.train(batch)
        else:
            for number, batch in enumerate(passes):
                loop.train(batch)
                if number == 2:
                    break
        del passes
        assert loop.done() == (3 * epoch + 3, 24 * (epoch + 1), 24)
    assert loop.seen == [[*map(float, range(n, n + 8))] for n in (0, 8, 16)] * 2
    run.close()


def test_an_iterator_that_the_script_keeps_is_ended_with_the_epoch() -> None:
    loop = Loop()
    kept = []
    for _ in loop.run.epochs(2):
        passes = iter(loop.loader)
        kept.append(passes)
        for _ in range(3):
            loop.train(next(passes))
    assert loop.done() == (6, 48, 0)
    loop.run.close()


def test_a_step_without_the_optimisers_is_not_counted() -> None:
    loop = Loop()
    for _ in loop.run.epochs(2):
        for number, batch in enumerate(loop.loader):
            if number == 2:
                break
            loop.train(batch)
    assert loop.done() == (4, 32, 0)
    loop.run.close()


def test_a_cell_that_was_interrupted_after_a_step_goes_on_with_the_next() -> None:
    loop = Loop()

    def cell(interrupt_after: int) -> None:
        for _ in loop.run.epochs(1):
            for batch in loop.loader:
                loop.train(batch)
                if len(loop.seen) == interrupt_after:
                    raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        cell(2)
    cell(-1)
    used = [number for step in loop.seen for number in step]
    assert used == [*map(float, range(NUM_SAMPLES))]
    assert loop.run.progress.step == 5
    loop.run.close()


def test_a_whole_epoch_by_islice_is_the_same_as_without(tmp_path: Path) -> None:
    for folder in ("sliced", "whole"):
        loop = Loop(folder=tmp_path / folder)
        for _ in loop.run.epochs(2):
            steps = len(loop.loader) if folder == "sliced" else None
            for batch in itertools.islice(loop.loader, steps):
                loop.train(batch)
        assert loop.done() == (10, 80, 0)
        loop.run.close()
    again = Loop(folder=tmp_path / "sliced")
    assert list(again.run.epochs(2)) == []
    assert again.done() == (10, 80, 0)
    again.run.close()


def replica(folder: str) -> None:
    loop = Loop()
    for _ in loop.run.epochs(8):
        for batch in itertools.islice(loop.loader, 3):
            loop.train(batch)
    Path(folder, f"done-{loop.run.rank}.json").write_text(json.dumps(loop.done()))
    loop.run.close()


def test_replicas_that_leave_together_count_alike(tmp_path: Path) -> None:
    assert run_replicas(replica, [str(tmp_path)] * 2, tmp_path) == [0, 0]
    for rank in range(2):
        done = json.loads((tmp_path / f"done-{rank}.json").read_text())
        assert done == [24, 192, 0]
