"""Validation data: each sample on one replica; figures are those of one replica alone,
at any number.
"""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import IterableDataset, TensorDataset, get_worker_info

import coadapt.train as ct
from coadapt.model import InputError
from coadapt.train.group.group import Group
from coadapt.train.run import Run
from tests.train.replicas import run_replicas
from tests.train.toy import Toy

pytestmark = pytest.mark.train

NUM_SAMPLES = 23


class Numbers(IterableDataset[Tensor]):
    """A stream that would split itself over fetch processes."""

    def __iter__(self) -> Iterator[Tensor]:
        info = get_worker_info()
        first, step = (0, 1) if info is None else (info.id, info.num_workers)
        return (
            torch.tensor([float(value)]) for value in range(first, NUM_SAMPLES, step)
        )


def numbers() -> Any:
    return [torch.tensor([float(value)]) for value in range(NUM_SAMPLES)]


def seen_by(
    run: Run, rank: int, num_replicas: int, data: Any, **options: Any
) -> list[list[int]]:
    run._session.group = Group(rank=rank, size=num_replicas)
    loader = run.validation_loader(data, batch_size=4, **options)
    return [[int(value) for value in batch] for batch in loader]


@pytest.mark.parametrize("num_replicas", [1, 2, 3, 8])
@pytest.mark.parametrize("stream", [False, True])
def test_each_sample_is_on_exactly_one_replica_in_the_same_batches(
    num_replicas: int, stream: bool
) -> None:
    run = ct.init()
    parts = [
        seen_by(run, rank, num_replicas, Numbers() if stream else numbers())
        for rank in range(num_replicas)
    ]
    whole = sorted(batch for part in parts for batch in part)
    assert whole == [
        list(range(begin, min(begin + 4, NUM_SAMPLES)))
        for begin in range(0, NUM_SAMPLES, 4)
    ]
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


@pytest.mark.parametrize("num_replicas", [1, 2, 4, 8])
@pytest.mark.parametrize("data", [Numbers(), numbers()])
def test_sharded_models_get_equally_many_batches_and_stand_ins_do_not_count(
    num_replicas: int, data: Any
) -> None:
    run = ct.init()
    run._session.model_is_sharded = True
    counts = []
    seen = 0
    for rank in range(num_replicas):
        run._session.group = Group(rank=rank, size=num_replicas)
        loader = run.validation_loader(data, batch_size=4)
        counts.append(0)
        for _ in loader:
            assert run._session.figures.validation is not None
            counts[-1] += 1
            seen += int(run._session.figures.validation[1])
    assert counts == [-(-6 // num_replicas)] * num_replicas
    assert seen == NUM_SAMPLES


@pytest.mark.parametrize("data", [Numbers(), numbers()])
def test_fetch_processes_change_nothing(data: Any) -> None:
    run = ct.init()
    fetching = {"num_workers": 2, "multiprocessing_context": "fork"}
    assert seen_by(run, 1, 2, data, **fetching) == seen_by(run, 1, 2, data)


def test_figures_have_a_scope_of_their_own_even_in_the_middle_of_a_step() -> None:
    run = ct.init()
    model = nn.Linear(1, 1)
    elastic, optimizer = run.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    loader = run.loader(TensorDataset(torch.zeros(6, 1)), batch_size=4)
    first = run.validation_loader(numbers(), batch_size=4)
    second = run.validation_loader(Numbers(), batch_size=5)
    for _ in run.epochs(2):
        for (x,) in loader:
            elastic(x).mean().backward()
            optimizer.step()
            run.sum(seen=len(x))
            elastic.eval()
            for values in first:
                run.sum(seen=len(values))
                run.mean(value=values.mean())
            for values in second:
                run.mean(value=values.mean() * 2)
            elastic.train()
            run.mean(ones=1.0)
        assert run.totals() == {"seen": 6.0, "ones": 1.0}
        assert first.totals() == {"seen": 23.0, "value": 11.0}
        assert second.totals() == {"value": 22.0}
    assert len(first) == 6
    with pytest.raises(TypeError, match="the length of a stream is not known"):
        len(second)


def test_breaking_off_leaves_the_scope() -> None:
    run = ct.init()
    run._session.sampling = None
    for values in run.validation_loader(numbers(), batch_size=4):
        run.sum(seen=len(values))
        break
    run.sum(outside=1)
    assert run.totals() == {"outside": 1.0}


def test_a_validation_left_half_way_does_not_stand_in_the_way_of_training() -> None:
    run = ct.init()
    model = nn.Linear(1, 1)
    elastic, _ = run.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    loader = run.loader(TensorDataset(torch.zeros(6, 1)), batch_size=4)
    half_way = iter(run.validation_loader(numbers(), batch_size=4))
    next(half_way)
    for _ in run.epochs(1):
        for (x,) in loader:
            elastic(x).mean().backward()
            run.sum(seen=len(x))
        assert run.totals() == {"seen": 6.0}


def test_training_mode_is_refused_because_replicas_would_wait_for_each_other() -> None:
    run = ct.init()
    model = nn.Linear(1, 1)
    elastic, _ = run.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    for values in run.validation_loader(numbers(), batch_size=4):
        with pytest.raises(
            RuntimeError, match=r"validate in eval\(\) mode or under torch.no_grad\(\)"
        ):
            elastic(values)
        with torch.no_grad():
            elastic(values)
    elastic(torch.zeros(1, 1))


def test_what_is_wrong_is_said_in_one_line() -> None:
    with pytest.raises(InputError, match=r"validation_loader\(batch_size\): got 0"):
        ct.init().validation_loader(numbers(), batch_size=0)
    with pytest.raises(InputError, match=r"validation_loader\(dataset\): got 'int'"):
        ct.init().validation_loader(3, batch_size=1)  # type: ignore[arg-type]  # wrong on purpose


def validate(toy: Toy) -> None:
    """Train a little; validate a model with batch normalisation after each epoch; 5
    batches, uneven.
    """
    run = ct.init(checkpoint_dir=Path(toy.folder) / "checkpoints")
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(1, 4), nn.BatchNorm1d(4), nn.Linear(4, 1)).double()
    elastic, optimizer = run.prepare(model, torch.optim.SGD(model.parameters(), lr=0.0))
    loader = run.loader(TensorDataset(torch.randn(16, 1).double()), batch_size=8)
    data = TensorDataset(torch.arange(NUM_SAMPLES).double().reshape(-1, 1))
    validation = run.validation_loader(data, batch_size=5)
    for epoch in run.epochs(2):
        for (x,) in loader:
            elastic(x).mean().backward()
            optimizer.step()
        elastic.eval()
        for layer in model:
            if isinstance(layer, nn.BatchNorm1d):
                # else it is that of the passes, whose sizes differ
                layer.reset_running_stats()
        for (x,) in validation:
            run.sum(seen=len(x), total=x.sum())
            run.mean(output=elastic(x).mean())
        elastic.train()
        found = validation.totals()
        if run.is_first:
            (Path(toy.folder) / f"validation-{epoch}.json").write_text(
                json.dumps(found)
            )


@pytest.mark.processes
def test_figures_of_three_replicas_are_those_of_one(tmp_path: Path) -> None:
    found = []
    for num_replicas in (1, 3):
        folder = tmp_path / str(num_replicas)
        folder.mkdir()
        toy = Toy(folder=str(folder))
        codes = run_replicas(validate, [replace(toy)] * num_replicas, folder)
        assert codes == [0] * num_replicas, (folder / "output-0.txt").read_text()
        found.append(
            [
                json.loads((folder / f"validation-{epoch}.json").read_text())
                for epoch in range(2)
            ]
        )
    for one, three in zip(*found, strict=True):
        assert one["seen"] == three["seen"] == NUM_SAMPLES
        assert one["total"] == three["total"] == sum(range(NUM_SAMPLES))
        assert three["output"] == pytest.approx(one["output"], rel=1e-12)
