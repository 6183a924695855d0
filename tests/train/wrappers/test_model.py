"""The model on several replicas: whose values count at first, and what may come out of
its forward.
"""

import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.data import TensorDataset

import coadapt.train as ct
from coadapt.train.env import Times, read_config
from coadapt.train.wrappers.model import ElasticModel
from tests.train.replicas import run_replicas

pytestmark = [pytest.mark.train, pytest.mark.processes]


def make_and_validate(folder: str) -> None:
    run = ct.init()
    torch.manual_seed(run.rank)
    net = nn.BatchNorm1d(3)
    nn.init.normal_(net.weight)
    nn.init.normal_(net.running_mean)
    model, _ = run.prepare(net, torch.optim.SGD(net.parameters(), lr=0.1))
    model.eval()
    torch.save(model(torch.ones(1, 3)), Path(folder, f"seen-{run.rank}.pt"))
    average = torch.optim.swa_utils.AveragedModel(model)
    average.update_parameters(model)
    assert torch.equal(average(torch.ones(1, 3)), model(torch.ones(1, 3)))
    run.close()


def test_all_begin_with_the_first_ones_values_and_may_average_them(
    tmp_path: Path,
) -> None:
    assert run_replicas(make_and_validate, [str(tmp_path)] * 2, tmp_path) == [0, 0]
    first, second = (torch.load(tmp_path / f"seen-{rank}.pt") for rank in range(2))
    assert torch.equal(first, second)


def accumulate_in_views(folder: str) -> None:
    """Train with gradients that are zeroed in place, in DDP's own memory where there
    are several replicas.
    """
    torch.set_num_threads(1)
    torch.manual_seed(0)
    run = ct.init()
    net = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 1)).double()
    sgd = torch.optim.SGD(net.parameters(), lr=0.1)
    model, optimizer = run.prepare(net, sgd, ddp={"gradient_as_bucket_view": True})
    data = TensorDataset(torch.randn(40, 4).double(), torch.randn(40, 1).double())
    loader = run.loader(data, batch_size=16, max_atomic=3)
    for _ in run.epochs(3):
        for x, y in loader:
            optimizer.zero_grad(set_to_none=False)
            nn.functional.mse_loss(model(x), y).backward()
            optimizer.step()
    if run.is_first:
        torch.save(net[0].weight, Path(folder, f"weight-{run.num_replicas}.pt"))
    run.close()


def test_what_waits_while_gradients_accumulate_is_not_written_over(
    tmp_path: Path,
) -> None:
    assert run_replicas(accumulate_in_views, [str(tmp_path)], tmp_path) == [0]
    assert run_replicas(accumulate_in_views, [str(tmp_path)] * 2, tmp_path) == [0, 0]
    alone, both = (torch.load(tmp_path / f"weight-{count}.pt") for count in (1, 2))
    assert (alone - both).abs().max() < 1e-12


@dataclass
class Output:
    prediction: Tensor


class Wrapped(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 1)

    def forward(self, x: Tensor) -> Output:
        return Output(self.inner(x))


def train_with_a_dataclass(_argument: None) -> None:
    run = ct.Run(replace(read_config(), times=Times(skipped_wait_s=0.2)))
    net = Wrapped()
    model, optimizer = run.prepare(net, torch.optim.SGD(net.parameters(), lr=0.01))
    loader = run.loader(TensorDataset(torch.zeros(40, 4)), batch_size=8)
    for _ in run.epochs(1):
        for (x,) in loader:
            model(x).prediction.mean().backward()
            optimizer.step()
            # Longer than a replica may take after a step without a backward.
            time.sleep(0.5 * run.is_first * (run.progress.step == 2))
    run.close()


def test_the_backward_of_a_dataclass_is_seen(tmp_path: Path) -> None:
    assert run_replicas(train_with_a_dataclass, [None, None], tmp_path) == [0, 0]


def step_outside_of_the_loop(_argument: None) -> None:
    """A backward of the user's own, of one sample on each replica."""
    run = ct.init()
    net = nn.Linear(1, 1, bias=False)
    model, _ = run.prepare(net, torch.optim.SGD(net.parameters(), lr=0.1))
    model(torch.tensor([[1.0 + run.rank]])).sum().backward()
    assert net.weight.grad is not None
    assert net.weight.grad.item() == 1.5
    run.close()


def test_gradients_outside_of_the_loop_are_averaged(tmp_path: Path) -> None:
    assert run_replicas(step_outside_of_the_loop, [None, None], tmp_path) == [0, 0]


class Copies(TorchDispatchMode):
    """Counts copies from one tensor to another."""

    count = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> object:
        self.count += func is torch.ops.aten.copy_.default and args[0] is not args[1]
        return func(*args, **(kwargs or {}))


def test_what_is_in_place_already_is_not_copied_again() -> None:
    """As a state is that came from another replica, into this one's own tensors."""
    layer = nn.Linear(2, 2)
    run = ct.init()
    model, _ = run.prepare(layer, torch.optim.SGD(layer.parameters(), lr=0.1))
    state = model.state_dict()
    others = {name: value + 1.0 for name, value in state.items()}
    with Copies() as copies:
        model.load_state_dict(state)
        assert copies.count == 0
        model.load_state_dict(others)
        assert copies.count == 2
    assert all(
        torch.equal(model.state_dict()[name], value) for name, value in others.items()
    )


def freeze_for_a_while(folder: str) -> None:
    """As a GAN's critic is in the generator's step, in which the replicas happen to
    change.
    """
    torch.manual_seed(0)
    run = ct.init()
    net = nn.Linear(3, 1).double()
    model, optimizer = run.prepare(net, torch.optim.SGD(net.parameters(), lr=0.1))
    assert isinstance(model, ElasticModel)
    loader = run.loader(TensorDataset(torch.randn(24, 3).double()), batch_size=8)
    for _ in run.epochs(2):
        for (x,) in loader:
            net.requires_grad_(False)
            model.rewrap()
            assert not model(x).requires_grad
            net.requires_grad_(True)
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
    torch.save(net.weight, Path(folder, f"weight-{run.num_replicas}-{run.rank}.pt"))
    run.close()


def test_a_model_of_which_nothing_is_trained_just_now_is_wrapped_once_something_is(
    tmp_path: Path,
) -> None:
    for size in (1, 2):
        assert (
            run_replicas(freeze_for_a_while, [str(tmp_path)] * size, tmp_path)
            == [0] * size
        )
    alone, *both = (
        torch.load(tmp_path / f"weight-{name}.pt") for name in ("1-0", "2-0", "2-1")
    )
    for each in both:
        torch.testing.assert_close(each, alone, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("compiled", ["whole", "part", "after"])
def test_a_compiled_model_saves_plain_names_and_loads_both(compiled: str) -> None:
    def net() -> nn.Sequential:
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 1))

    def compile_(module: nn.Module) -> nn.Module:
        made = torch.compile(module, backend="eager")
        assert isinstance(made, nn.Module)
        return made

    given: nn.Module = net()
    if compiled == "whole":
        given = compile_(given)
    elif compiled == "part":
        assert isinstance(given, nn.Sequential)
        given[2] = compile_(given[2])
    run = ct.init()
    model, _ = run.prepare(given, torch.optim.SGD(given.parameters(), lr=0.1))
    inner = model
    if compiled == "after":
        model = compile_(model)
        model.load_state_dict(model.state_dict())
    saved = {name: value.clone() for name, value in inner.state_dict().items()}
    assert list(saved) == list(net().state_dict())
    net().load_state_dict(saved)
    zeros = {name: torch.zeros_like(value) for name, value in saved.items()}
    inner.load_state_dict(zeros)
    assert not inner.state_dict()["2.weight"].any()
    with_marks = {f"_orig_mod.{name}": value for name, value in saved.items()}
    inner.load_state_dict(with_marks)
    assert inner.state_dict()["2.weight"].equal(saved["2.weight"])


@pytest.mark.parametrize("compiled", ["whole", "part"])
def test_an_average_of_a_compiled_model_has_plain_names(compiled: str) -> None:
    plain = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1))
    names = [f"module.{name}" for name in plain.state_dict()]
    given: nn.Module = plain
    if compiled == "whole":
        given = torch.compile(plain, backend="eager")
    else:
        plain[1] = torch.compile(plain[1], backend="eager")
    run = ct.init()
    model, optimizer = run.prepare(given, torch.optim.SGD(given.parameters(), lr=0.1))
    average = torch.optim.swa_utils.AveragedModel(model)
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    average.update_parameters(model)
    saved = average.state_dict()
    assert list(saved) == ["n_averaged", *names]
    for name, value in model.state_dict().items():
        assert saved[f"module.{name}"].equal(value)
    # What earlier versions saved.
    marked = {
        name.replace("module.", "module._orig_mod."): torch.zeros_like(value)
        for name, value in saved.items()
    }
    average.load_state_dict(marked)
    assert not average.state_dict()["module.0.weight"].any()
