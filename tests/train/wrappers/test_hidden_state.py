"""Optimisers whose state_dict leaves something out: all of it comes back, or `prepare`
refuses them.
"""

import io
import logging
from collections import deque
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import coadapt.train as ct
from coadapt.model import InputError
from coadapt.train.wrappers.hidden_state import KEY, WholeState

pytestmark = pytest.mark.train


class Sam(torch.optim.Optimizer):
    """As davda54's: holds another optimiser, with the same parameter groups."""

    def __init__(
        self, params: Any, base: Any, rho: float = 0.05, **options: Any
    ) -> None:
        super().__init__(params, {"rho": rho, **options})
        self.base = base(self.param_groups, **options)
        self.param_groups = self.base.param_groups

    @torch.no_grad()
    def first_step(self) -> None:
        for group in self.param_groups:
            for item in group["params"]:
                self.state[item]["before"] = item.detach().clone()
                item.add_(item.grad, alpha=group["rho"])
        self.zero_grad()

    @torch.no_grad()
    def second_step(self) -> None:
        for group in self.param_groups:
            for item in group["params"]:
                item.copy_(self.state[item]["before"])
        self.base.step()
        self.zero_grad()

    def step(self, closure: Any = None) -> None:
        closure = torch.enable_grad()(closure)
        self.first_step()
        closure()
        self.second_step()


class Lookahead(torch.optim.Optimizer):
    """As pytorch_optimizer's: a state_dict of its own, and no
    `state_dict()["param_groups"]`.
    """

    def __init__(self, inner: torch.optim.Optimizer) -> None:
        self.optimizer = inner
        self._optimizer_step_pre_hooks: Any = {}
        self._optimizer_step_post_hooks: Any = {}
        self._patch_step_function()
        self.state = {}  # type: ignore[assignment]  # as there
        self.defaults = inner.defaults
        for group in self.param_groups:
            group["counter"] = 0
            for item in group["params"]:
                self.state[item] = {"slow": item.detach().clone()}

    @property
    def param_groups(self) -> Any:  # type: ignore[override]  # as there
        return self.optimizer.param_groups

    def zero_grad(self, set_to_none: bool = True) -> None:
        self.optimizer.zero_grad(set_to_none)

    def state_dict(self) -> Any:
        return {"slow": self.state, "base_optimizer": self.optimizer.state_dict()}

    def load_state_dict(self, state: Any) -> None:
        self.state = state["slow"]
        self.optimizer.load_state_dict(state["base_optimizer"])

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        self.optimizer.step()
        for group in self.param_groups:
            group["counter"] += 1
            if group["counter"] % 3 == 0:
                for item in group["params"]:
                    self.state[item]["slow"].lerp_(item, 0.5)
                    item.copy_(self.state[item]["slow"])


class Count:
    """A part of an optimiser, in slots."""

    __slots__ = ("done",)

    def __init__(self) -> None:
        self.done = 0


class Written:
    """By hand: no class of torch's, no state_dict; momentum by parameter, made when it
    is first needed.
    """

    def __init__(self, params: Any) -> None:
        self.param_groups = [{"params": list(params), "lr": 0.05}]
        self.momentum: dict[Tensor, Tensor] = {}
        self.mean: Tensor | None = None
        self.last: deque[Tensor] = deque(maxlen=2)
        self.count = Count()

    def zero_grad(self, set_to_none: bool = True) -> None:
        for item in self.param_groups[0]["params"]:  # type: ignore[attr-defined]  # a list
            item.grad = None

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        self.count.done += 1
        norm = torch.zeros(())
        for item in self.param_groups[0]["params"]:  # type: ignore[attr-defined]  # a list
            held = self.momentum.setdefault(item, torch.zeros_like(item))
            held.mul_(0.9).add_(item.grad / self.count.done**0.5)
            item.sub_(held, alpha=0.05)
            norm = norm + held.norm()
        self.last.append(norm)
        self.mean = norm if self.mean is None else 0.5 * (self.mean + norm)
        for item in self.param_groups[0]["params"]:  # type: ignore[attr-defined]  # a list
            item.sub_(1e-3 * (self.mean + self.last[0]))


class Around(torch.optim.Optimizer):
    """Around another optimiser, in a list; counts its steps, and warms up by them."""

    def __init__(self, inner: torch.optim.Optimizer) -> None:
        super().__init__(inner.param_groups, {"lr": 0.05})
        self.inner = [inner]
        self.done = 0

    def step(self, closure: Any = None) -> None:  # type: ignore[override]  # torch overloads it
        self.done += 1
        if self.done > 2:
            self.inner[0].step()
        if self.done > 4:
            self.inner[0].step()


Make = Callable[[Any], Any]
SGD = {"lr": 0.05, "momentum": 0.9}
KINDS: dict[str, Make] = {
    "sam": lambda params: Sam(params, torch.optim.SGD, **SGD),
    "lookahead": lambda params: Lookahead(torch.optim.Adam(params, lr=0.05)),
    "written": Written,
    "around": lambda params: Around(torch.optim.SGD(params, **SGD)),
    "around lookahead": lambda params: Around(
        Lookahead(torch.optim.SGD(params, **SGD))
    ),
    "lookahead around sam": lambda params: Lookahead(
        Sam(params, torch.optim.Adam, lr=0.05)
    ),
    "adam": lambda params: torch.optim.Adam(params, lr=0.05),
}


def make(kind: str) -> tuple[nn.Module, Any]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 1))
    return model, KINDS[kind](model.parameters())


def train(model: nn.Module, optimizer: Any, num_steps: int, begin: int = 0) -> None:
    for index in range(begin, begin + num_steps):
        x = torch.randn(8, 4, generator=torch.Generator().manual_seed(index))

        def closure(x: Tensor = x) -> Tensor:
            loss: Tensor = (model(x).squeeze(1) - x.sum(1)).square().mean()
            loss.backward()
            return loss

        optimizer.zero_grad()
        closure()
        inner = getattr(optimizer, "optimizer", None)
        if isinstance(optimizer, Sam):
            optimizer.step(closure)
        elif isinstance(inner, Sam):
            inner.first_step()
            closure()
            inner.second_step()
        else:
            optimizer.step()


def written_and_read(state: object) -> Any:
    """As a checkpoint does: torch's loader that runs no code reads it."""
    buffer = io.BytesIO()
    torch.save(state, buffer)
    buffer.seek(0)
    return torch.load(buffer, weights_only=True)


@pytest.mark.parametrize("kind", KINDS)
def test_all_that_an_optimiser_has_comes_back(kind: str) -> None:
    """In a replica that joins nothing has been stepped yet."""
    model, optimizer = make(kind)
    whole = WholeState(optimizer)
    train(model, optimizer, 7)
    state = written_and_read({"model": model.state_dict(), "optimizer": whole.take()})
    other, its_optimizer = make(kind)
    its_whole = WholeState(its_optimizer)
    other.load_state_dict(state["model"])
    its_whole.give(state["optimizer"])
    for nets in ((model, optimizer), (other, its_optimizer)):
        nets[1].param_groups[0]["lr"] = (
            0.02  # what a scheduler sets reaches the inner one
        )
        train(*nets, 7, begin=7)
    for one, two in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.equal(one, two)


def test_what_is_not_left_out_is_not_kept_twice() -> None:
    for kind, hidden in (("adam", False), ("lookahead", False), ("sam", True)):
        model, optimizer = make(kind)
        whole = WholeState(optimizer)
        train(model, optimizer, 2)
        assert (KEY in whole.take()) == hidden, kind


def test_settings_of_the_script_are_not_kept() -> None:
    """A restart with another `rho` gets what the script says now."""
    model, optimizer = make("around")
    whole = WholeState(optimizer)
    optimizer.rho = 0.1
    whole = WholeState(optimizer)
    train(model, optimizer, 2)
    hidden = whole.take()[KEY]
    assert hidden == {"attributes": {"done": 2}, "inner": hidden["inner"]}  # type: ignore[index]


def test_state_in_a_closure_is_refused_with_the_reason() -> None:
    model, optimizer = make("adam")
    held = torch.zeros(3)

    class Closed(torch.optim.SGD):
        pass

    closed = Closed(model.parameters(), lr=0.1)
    closed.rule = lambda: held.add_(1.0)  # type: ignore[attr-defined]
    run = ct.init()
    with pytest.raises(
        InputError, match="Closed, whose rule keeps state in its closure"
    ):
        run.prepare(model, closed)
    run.prepare(model, optimizer)


def test_what_is_no_optimiser_is_told() -> None:
    class Steps:
        def step(self) -> None: ...

    run = ct.init()
    with pytest.raises(
        InputError, match="Steps without param_groups'; allowed: a torch"
    ):
        run.prepare(nn.Linear(1, 1), Steps())  # type: ignore[arg-type]


def test_one_that_holds_another_is_not_cut_over_replicas() -> None:
    run = ct.init()
    with pytest.raises(InputError, match="without another one in it"):
        run.prepare(*make("sam"), shard=True)


def by_hand(max_atomic: int | None) -> None:
    """The loop of inner_optimizer.py: the optimiser's own `step` is never called."""
    run = ct.init()
    model, optimizer = run.prepare(*make("sam"))
    loader = run.loader(
        TensorDataset(torch.randn(480, 4)), batch_size=8, max_atomic=max_atomic
    )
    for _ in run.epochs(1):
        for (x,) in loader:
            model(x).square().mean().backward()
            optimizer.first_step()  # type: ignore[attr-defined]
            model(x).square().mean().backward()
            optimizer.second_step()  # type: ignore[attr-defined]
    run.close()


def test_steps_of_the_inner_one_are_no_others(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    by_hand(None)
    assert caplog.messages == []


def test_steps_by_methods_of_its_own_take_whole_steps() -> None:
    with pytest.raises(InputError, match="leave max_atomic away"):
        by_hand(4)
