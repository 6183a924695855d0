"""Each epoch has the length that its data set has when it begins."""

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, Subset, TensorDataset

import coadapt.train as ct

pytestmark = pytest.mark.train

LENGTHS = [48, 96, 24, 5, 0, 60]


class Curriculum(Dataset[Tensor]):
    def __init__(self) -> None:
        self.length = LENGTHS[0]

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Tensor:
        assert index < self.length
        return torch.tensor([float(index)])


def begin(
    folder: Path | None = None, contract: str = "fixed", **options: object
) -> tuple[ct.Run, Curriculum, ct.ElasticLoader, nn.Module, torch.optim.Optimizer]:
    run = ct.init(checkpoint_dir=folder, contract=contract)
    model = nn.Linear(1, 1)
    model, optimizer = run.prepare(model, torch.optim.SGD(model.parameters(), lr=1e-4))
    data = Curriculum()
    loader = run.loader(data, 12, True, **options)  # type: ignore[arg-type]  # by name
    return run, data, loader, model, optimizer


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("workers", [0, 1])
def test_each_epoch_has_the_length_of_then(workers: int, drop_last: bool) -> None:
    run, data, loader, model, optimizer = begin(
        drop_last=drop_last,
        num_workers=workers,
        multiprocessing_context="fork" if workers else None,
    )
    plain = DataLoader(data, 12, drop_last=drop_last)
    for epoch in run.epochs(len(LENGTHS)):
        data.length = LENGTHS[epoch]
        assert len(loader) == len(plain)
        seen = []
        for x in loader:
            assert isinstance(x, Tensor)
            seen += x[:, 0].tolist()
            model(x).mean().backward()
            optimizer.step()
        kept = LENGTHS[epoch] // 12 * 12 if drop_last else LENGTHS[epoch]
        assert len(set(seen)) == len(seen) == kept
        assert len(loader) == len(plain)
    run.close()


def test_an_adaptive_batch_stays_within_the_data_set() -> None:
    run, data, loader, model, optimizer = begin(contract="adaptive", max_batch_size=80)
    limits = []
    for epoch in run.epochs(3):
        data.length = LENGTHS[epoch]
        for x in loader:
            limits.append(run._session.data.limits.max_total)
            model(x).mean().backward()
            optimizer.step()
    assert sorted(set(limits)) == [24, 48, 80]
    run.close()


def train_until(folder: Path, stop: int, lengths: list[int]) -> list[float]:
    """Train until `stop` steps are done, save, and return what the last epoch used."""
    run, data, loader, model, optimizer = begin(folder)
    seen: list[float] = []
    for epoch in run.epochs(len(LENGTHS[:3])):
        data.length = lengths[epoch]
        seen = []
        for x in loader:
            assert isinstance(x, Tensor)
            seen += x[:, 0].tolist()
            model(x).mean().backward()
            optimizer.step()
            if run.progress.step == stop - 1:
                break
        if run.progress.step == stop:
            run._saver.save(stopped=True)
            run._training = False
            break
    run.close()
    return seen


def test_a_restart_within_a_longer_epoch_goes_on_in_it(tmp_path: Path) -> None:
    before = train_until(tmp_path, 8, LENGTHS)  # in the epoch of 96
    run, data, loader, model, optimizer = begin(tmp_path)
    after: list[float] = []
    for epoch in run.epochs(2):
        assert epoch == 1
        data.length = LENGTHS[epoch]
        for x in loader:
            assert isinstance(x, Tensor)
            after += x[:, 0].tolist()
            model(x).mean().backward()
            optimizer.step()
    assert sorted([*before, *after]) == list(range(96))
    run.close()


def test_another_length_within_an_epoch_is_refused_in_one_line(tmp_path: Path) -> None:
    train_until(tmp_path, 8, LENGTHS)
    run, _, loader, _, _ = begin(tmp_path)
    epochs = run.epochs(2)
    assert next(epochs) == 1
    with pytest.raises(
        ct.InputError, match=r"got '48 samples'; allowed: 96, with which epoch 1"
    ):
        next(iter(loader))
    run._training = False
    run.close()


def test_validation_follows_the_data_set() -> None:
    run, data, *_ = begin()
    validation = run.validation_loader(data, batch_size=10)
    for length in LENGTHS:
        data.length = length
        batches = list(validation)
        assert len(validation) == len(batches) == -(-length // 10)
        assert sum(len(x) for x in batches) == length  # type: ignore[arg-type]  # tensors
    run.close()


def test_a_further_loader_follows_its_data_set_from_epoch_to_epoch() -> None:
    run, data, loader, model, optimizer = begin()
    other = Curriculum()
    further = run.further_loader(other, 12)
    for epoch in run.epochs(3):
        data.length = other.length = LENGTHS[epoch]
        seen: list[float] = []
        for x, y in zip(loader, further, strict=False):
            seen += y[:, 0].tolist()  # type: ignore[index]  # a tensor
            model(x).mean().backward()
            optimizer.step()
        assert sorted(seen) == list(range(LENGTHS[epoch]))
    run.close()


def test_a_further_loader_that_repeats_keeps_its_length() -> None:
    run, _, loader, _, _ = begin()
    other = Curriculum()
    further = run.further_loader(other, 12, repeat=True)
    for _ in run.epochs(1):
        pairs = zip(loader, further, strict=False)
        next(pairs)
        other.length += 1
        further._measured = -1
        with pytest.raises(RuntimeError, match="with repeat=True its length must stay"):
            next(pairs)
        break
    run.close()


def drawn(epoch: int, count: int) -> list[int]:
    draw = torch.Generator().manual_seed(epoch)
    return torch.multinomial(
        torch.arange(1.0, 21.0), count, True, generator=draw
    ).tolist()


@pytest.mark.parametrize("workers", [0, 1])
def test_an_order_of_ones_own_is_a_subset_with_the_epochs_indices(workers: int) -> None:
    run = ct.init()
    net = nn.Linear(1, 1)
    model, optimizer = run.prepare(net, torch.optim.SGD(net.parameters(), lr=1e-4))
    data = TensorDataset(torch.arange(20.0).reshape(-1, 1))
    loader = run.loader(
        Subset(data, range(20)),
        batch_size=4,
        num_workers=workers,
        multiprocessing_context="fork" if workers else None,
    )
    with pytest.raises(RuntimeError, match=r"DataLoader\(loader\.dataset, batch_size"):
        next(iter(loader))
    for epoch in run.epochs(3):
        assert isinstance(loader.dataset, Subset)
        loader.dataset.indices = drawn(epoch, 20 + 5 * epoch)
        seen: list[float] = []
        for (x,) in loader:  # type: ignore[misc]  # one tensor
            seen += x[:, 0].tolist()
            model(x).mean().backward()
            optimizer.step()
        assert seen == drawn(epoch, 20 + 5 * epoch)
    run.close()
