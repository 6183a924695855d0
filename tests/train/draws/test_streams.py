"""Streams of random numbers: as the plain loop on one replica, one each on several,
kept over changes.
"""

import json
import logging
import random
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

import coadapt.train as ct
from coadapt.model import InputError
from tests.train.draws.random_schedules import (
    Task,
    alone,
    distance,
    final,
    repeated_draws,
    run_schedule,
    train,
)
from tests.train.replicas import run_replicas

pytestmark = pytest.mark.train


class Moved(Dataset[Tensor]):
    def __len__(self) -> int:
        return 48

    def __getitem__(self, index: int) -> Tensor:
        legacy = np.random.rand()  # noqa: NPY002  # as augmentations do
        return torch.rand(4) + index + random.random() + legacy


def seed_all() -> None:
    random.seed(1)
    np.random.seed(1)  # noqa: NPY002  # as scripts do
    torch.manual_seed(1)


def test_one_replica_draws_what_the_plain_loop_draws() -> None:
    """Dropout, augmentation in the data set, noise in the loop, and a validation in
    each epoch.
    """

    def losses(loader: object, validation: object, epochs: object) -> list[float]:
        found = []
        for _ in epochs:  # type: ignore[attr-defined]  # both are iterated over
            for x in loader:  # type: ignore[attr-defined]  # as above
                y = nn.functional.dropout(x, 0.4) + torch.randn_like(x)
                found.append(y.sum().item())
            for (v,) in validation:  # type: ignore[attr-defined]  # as above
                found.append((v * torch.rand(())).sum().item())
        return found

    beside = TensorDataset(torch.ones(8, 2))
    seed_all()
    plain = losses(
        DataLoader(Moved(), batch_size=12), DataLoader(beside, batch_size=4), range(3)
    )
    run = ct.init()
    net = nn.Linear(1, 1)
    run.prepare(net, torch.optim.SGD(net.parameters(), lr=0.1))
    loader = run.loader(Moved(), batch_size=12)
    validation = run.validation_loader(beside, batch_size=4)
    seed_all()
    assert losses(loader, validation, run.epochs(3)) == plain
    run.close()


@pytest.mark.parametrize("max_atomic", [None, 5])
@pytest.mark.parametrize("fetchers", [0, 2])
def test_a_sample_is_augmented_alike_in_any_pass_and_process(
    fetchers: int, max_atomic: int | None
) -> None:
    def seen(max_atomic: int | None, fetchers: int) -> Tensor:
        torch.manual_seed(1)
        run = ct.init(random="per-sample")
        net = nn.Linear(1, 1)
        run.prepare(net, torch.optim.SGD(net.parameters(), lr=0.1))
        loader = run.loader(
            Moved(),
            batch_size=12,
            max_atomic=max_atomic,
            num_workers=fetchers,
            multiprocessing_context="fork" if fetchers else None,
        )
        found = [x + torch.randn_like(x) for _ in run.epochs(2) for x in loader]
        run.close()
        return torch.cat(found)

    assert torch.equal(seen(max_atomic, fetchers), seen(None, 0))


def test_another_word_for_it_is_refused() -> None:
    with pytest.raises(InputError, match="per-replica or per-sample"):
        ct.init(random="per-step")


def seed_in_the_loop(folder: str) -> None:
    logging.basicConfig(level=logging.WARNING)
    run = ct.init(device="cpu")
    net = nn.Linear(1, 1)
    model, optimizer = run.prepare(net, torch.optim.SGD(net.parameters(), lr=0.1))
    loader = run.loader(TensorDataset(torch.ones(8, 1)), batch_size=4)
    for epoch in run.epochs(2):
        for (x,) in loader:  # type: ignore[misc]  # one tensor
            torch.manual_seed(epoch)
            model(x).mean().backward()
            optimizer.step()
    run.close()


@pytest.mark.processes
def test_a_script_that_seeds_in_its_epochs_is_told_once(tmp_path: Path) -> None:
    assert run_replicas(seed_in_the_loop, [str(tmp_path)] * 2, tmp_path) == [0, 0]
    said = "".join(path.read_text() for path in tmp_path.glob("output-*.txt"))
    assert said.count("the script seeds torch within its epochs") == 1


@pytest.mark.processes
def test_replicas_draw_their_own_and_a_restart_goes_on(tmp_path: Path) -> None:
    task = Task(folder=str(tmp_path), mode="per-replica", num_epochs=2)
    assert run_replicas(train, [task] * 3, tmp_path) == [0, 0, 0]
    rows = [
        json.loads(line)
        for path in tmp_path.glob("drawn-*.jsonl")
        for line in path.read_text().splitlines()
    ]
    assert {rank for _, rank, _ in rows} == {0, 1, 2}
    assert repeated_draws(tmp_path) == 0


@pytest.mark.processes
@pytest.mark.parametrize("seed", [1, pytest.param(3, marks=pytest.mark.slow)])
def test_dropout_noise_and_augmentation_are_the_same_under_changes(
    seed: int, tmp_path: Path
) -> None:
    (tmp_path / "alone").mkdir()
    (tmp_path / "changed").mkdir()
    reference = alone(Task(folder=str(tmp_path / "alone"), mode="per-sample"))
    task = Task(
        folder=str(tmp_path / "changed"),
        mode="per-sample",
        max_atomic=5,
        fetchers=2,
        pace_s=0.01,
    )
    run_schedule(task, seed)
    assert distance(reference, final(task)) < 1e-13
