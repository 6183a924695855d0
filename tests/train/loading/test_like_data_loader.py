"""What scripts ask a `DataLoader` for, and how they call it, works with the elastic
loaders too.
"""

import io
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset, default_collate

import coadapt.train as ct
from coadapt.model import InputError
from coadapt.train.loading.fetch import POSITIONAL
from coadapt.train.run import Run

pytestmark = pytest.mark.train

DATA = TensorDataset(torch.arange(20, dtype=torch.float32).reshape(-1, 1))


class Stream(IterableDataset[Tensor]):
    def __iter__(self) -> Iterator[Tensor]:
        return iter(torch.ones(6, 1))


def prepared(run: Run) -> tuple[nn.Module, torch.optim.Optimizer]:
    model = nn.Linear(1, 1)
    return run.prepare(model, torch.optim.SGD(model.parameters(), lr=1e-4))


def test_positions_are_those_of_torchs_loader() -> None:
    torchs = DataLoader.__init__.__code__
    assert torchs.co_varnames[1 : torchs.co_argcount] == (
        "dataset",
        "batch_size",
        "shuffle",
        *POSITIONAL,
    )


def test_a_loader_is_called_by_position_and_tells_what_it_was_given() -> None:
    run = ct.init()
    prepared(run)

    def collate(samples: list[object]) -> object:
        return default_collate(samples)

    loader = run.loader(
        DATA, 8, True, None, None, 0, collate, False, True
    )  # as torch's is called
    assert (
        loader.dataset,
        loader.batch_size,
        loader.drop_last,
        loader.num_workers,
    ) == (DATA, 8, True, 0)
    assert loader.collate_fn is collate
    assert (len(loader), len(loader.dataset), len(loader.sampler)) == (2, 20, 20)  # type: ignore[arg-type]  # it has one
    assert loader.pin_memory is False
    for epoch in run.epochs(2):
        loader.sampler.set_epoch(epoch)
        ids = list(loader.sampler)
        assert ids != sorted(ids)
        assert sorted(ids) == list(range(20))
        seen = [int(value) for (x,) in loader for value in x[:, 0]]  # type: ignore[attr-defined]  # one tensor
        assert seen == ids[:16]


def test_what_a_loader_was_not_given_is_as_torchs() -> None:
    run = ct.init()
    prepared(run)
    ours = run.loader(DATA, batch_size=4)
    torchs = DataLoader(DATA, batch_size=4)
    for name in (
        "dataset",
        "batch_size",
        "drop_last",
        "num_workers",
        "pin_memory",
        "collate_fn",
    ):
        assert getattr(ours, name) == getattr(torchs, name), name
    assert list(ours.sampler) == list(torchs.sampler)
    assert (len(ours), len(ours.sampler)) == (len(torchs), len(torchs.sampler))
    validation = run.validation_loader(DATA, batch_size=3)
    assert (validation.dataset, validation.batch_size) == (DATA, 3)


def test_a_streams_length_and_order_are_not_known() -> None:
    run = ct.init()
    prepared(run)
    loader = run.loader(Stream(), batch_size=2)
    with pytest.raises(TypeError, match="not known yet"):
        len(loader.sampler)
    with pytest.raises(TypeError, match="its own"):
        list(loader.sampler)


def test_what_cannot_be_given_by_position_is_refused_by_name() -> None:
    run = ct.init()
    prepared(run)
    with pytest.raises(
        InputError, match=r"loader\(generator\): .* the run orders the samples"
    ):
        run.loader(DATA, 4, generator=torch.Generator())
    with pytest.raises(TypeError, match="multiple values for num_workers"):
        run.loader(DATA, 4, False, None, None, 0, num_workers=1)  # as torch's is called
    with pytest.raises(TypeError, match="at most 13 arguments"):
        run.loader(DATA, 4, False, *[None] * 11)  # as torch's is called
    run.loader(DATA, 4, sampler=None)
    with pytest.raises(InputError, match=r"further_loader\(sampler\)"):
        run.further_loader(DATA, 4, sampler=[1, 2])


def test_the_last_pass_of_a_step_has_a_name() -> None:
    run = ct.init()
    model, optimizer = prepared(run)
    assert run.sync_gradients
    loader = run.loader(DATA, batch_size=10, max_atomic=4)
    last = []
    for _ in run.epochs(1):
        for (x,) in loader:  # type: ignore[misc]  # one tensor
            model(x).mean().backward()
            optimizer.step()
            last.append(run.sync_gradients)
    assert last == [False, False, True] * 2
    assert sum(last) == run.progress.step


def test_epochs_inside_of_epochs_are_refused_at_once() -> None:
    run = ct.init()
    prepared(run)
    loader = run.loader(DATA, batch_size=10)
    for _ in run.epochs(2):
        with pytest.raises(RuntimeError, match=r"inside of a loop over run\.epochs"):
            next(run.epochs(2))
        break
    assert run.progress.step == 0
    for _ in run.epochs(1):
        list(loader)
    assert run.progress.epoch == 1
    with pytest.raises(RuntimeError, match=r"inside of `for epoch in run\.epochs"):
        next(iter(loader))


def test_a_model_saved_whole_loads_where_there_is_no_coadapt(tmp_path: Path) -> None:
    run = ct.init()
    model, _ = prepared(run)
    torch.save(model, tmp_path / "model.pt")
    script = (
        "import sys, torch; sys.modules['coadapt'] = None\n"
        f"model = torch.load({str(tmp_path / 'model.pt')!r}, weights_only=False)\n"
        "print(type(model).__name__, model.weight.item())"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["Linear", str(model.weight.item())]  # type: ignore[union-attr, operator]  # one number


def test_a_model_saved_whole_may_be_written_into_memory() -> None:
    model, _ = prepared(ct.init())
    buffer = io.BytesIO()
    torch.save({"model": model}, buffer)
    buffer.seek(0)
    assert type(torch.load(buffer, weights_only=False)["model"]) is nn.Linear
