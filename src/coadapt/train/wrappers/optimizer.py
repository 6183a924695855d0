"""The optimiser and its learning-rate scheduler as the user's loop sees them: one step
per optimiser step.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LRScheduler

from coadapt.model import InputError
from coadapt.train.dtensors import shard_like
from coadapt.train.noise.scaling_rules import BatchScale, Scaled, ScalingRule
from coadapt.train.session import Session
from coadapt.train.wrappers.added_groups import AddedGroups
from coadapt.train.wrappers.finite import WHAT, FiniteLook
from coadapt.train.wrappers.gradients import StepGradients
from coadapt.train.wrappers.hidden_state import WholeState

# What a scaling rule may change for the duration of a step.
SCALED_OPTIONS = ("lr", "betas", "eps")
UNSCALED = Scaled(rate=1.0)


def check_optimizer(optimizer: torch.optim.Optimizer, model: object) -> None:
    """Raise InputError if `optimizer` has no parameter of `model`, or where one of them
    is something else.
    """
    if not isinstance(model, nn.Module):
        allowed = "a torch.nn.Module, then its optimizer: run.prepare(model, optimizer)"
        raise InputError(
            "prepare(model)", f"an object of {type(model).__name__}", allowed
        )
    missing = [
        name for name in ("param_groups", "step") if not hasattr(optimizer, name)
    ]
    if missing:
        allowed = (
            "a torch.optim.Optimizer, or an object with param_groups (a list of "
            "{'params': [...], 'lr': ...}), "
            "step and zero_grad"
        )
        kind = type(optimizer).__name__
        raise InputError(
            "prepare(optimizer)", f"{kind} without {' and '.join(missing)}", allowed
        )
    own = {id(parameter) for parameter in model.parameters()}
    if not any(
        id(item) in own for group in optimizer.param_groups for item in group["params"]
    ):
        raise InputError(
            "prepare(optimizer)",
            "parameters of another model",
            "one made with model.parameters() of this one",
        )


class ElasticOptimizer(torch.optim.Optimizer):
    """Passes everything on to `inner`; steps only at the synchronising pass, with the
    scaled learning rate.

    The learning rate is multiplied for the duration of a step, so schedulers and logs
    see the user's own.
    """

    def __init__(
        self,
        inner: torch.optim.Optimizer,
        session: Session,
        gradients: StepGradients,
        rule: ScalingRule,
        *,
        added: AddedGroups,
        name: str = "",
    ) -> None:
        """`name`: of the pair, whose noise scale the rule goes by; empty: that of the
        run.
        """
        # Not super().__init__: state and param_groups are those of `inner`, whose hooks
        # stay in force.
        self._inner = inner
        self._session = session
        self._gradients = gradients
        self._rule = rule
        self._added = added
        self._name = name
        # What the rule last said, and of what: mostly of the same again.
        self._said: tuple[BatchScale | None, Scaled] = (None, UNSCALED)
        # Called before each step, once the gradients are those of the step.
        self.before_step: Callable[[], None] = lambda: None
        self._finite = FiniteLook(gradients.parameters, self._tell_not_finite)
        self._whole = WholeState(inner)
        self._stepping = False
        self._watch_inner()

    @property
    def state(self) -> object:  # type: ignore[override]  # an attribute there
        return self._inner.state

    @property
    def param_groups(self) -> list[dict[str, object]]:  # type: ignore[override]  # an attribute there
        return self._inner.param_groups

    @property
    def defaults(self) -> dict[str, object]:  # type: ignore[override]  # an attribute there
        return self._inner.defaults

    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]  # torch overloads it
        """Update the parameters if this pass synchronises; else only run `closure`.
        Returns its loss.
        """
        if not self._whole.inner:
            return self._step(closure)
        self._stepping = True
        try:
            return self._step(closure)
        finally:
            self._stepping = False

    def _step(self, closure: Callable[[], float] | None) -> float | None:
        if not self._session.synchronising:
            loss = None if closure is None else closure()
            self._gradients.stepped()
            return loss
        if closure is None:
            self._begin()
            scaled = self._ruled()
            if scaled is not UNSCALED:
                with self._scaled(scaled):
                    return self._inner.step()
            own = self._inner.step()
            self._gradients.stepped()
            return own

        def finished() -> float:
            loss = closure()
            self._gradients.finish()
            self._look()
            return loss

        with self._scaled(self._ruled()):
            return self._inner.step(finished)

    @property
    def inner(self) -> torch.optim.Optimizer:
        """Return the optimiser as the user made it."""
        return self._inner

    def finish(self) -> None:
        """Make `.grad` the gradient of the step, as it is once this returns."""
        self._gradients.finish()

    @contextmanager
    def stepping(self) -> Iterator[None]:
        """Within it `inner` may step: the gradients are those of the step, the rates
        are scaled.
        """
        self._begin()
        with self._scaled(self._ruled()):
            yield

    def zero_grad(self, set_to_none: bool = True) -> None:
        self._inner.zero_grad(set_to_none)

    def state_dict(self) -> dict[str, object]:
        """Return that of `inner`, and under "coadapt" what it leaves out: see
        hidden_state.py.
        """
        return {**self._whole.take(), **self._added.state()}

    def load_state_dict(self, state_dict: dict[str, object]) -> None:
        """Take over `state_dict`; of a parameter that is cut, this replica takes its
        part of the state.
        """
        self._added.add_for(state_dict)
        if not self._whole.plain:
            self._whole.give(state_dict)
            return
        parameters = [
            parameter
            for group in self._inner.param_groups
            for parameter in group["params"]
        ]
        saved = state_dict["state"]
        assert isinstance(saved, dict)
        state = {
            index: {
                name: shard_like(value, parameters[index])
                if isinstance(value, Tensor)
                else value
                for name, value in values.items()
            }
            for index, values in saved.items()
        }
        self._inner.load_state_dict({**state_dict, "state": state})

    @property
    def first_groups(self) -> list[dict[str, object]]:
        """The groups that the optimiser had when it was prepared."""
        return self._inner.param_groups[: self._added.num_first]

    def add_param_group(self, param_group: dict[str, object]) -> None:
        """Pass the group on, unless the state that was loaded has brought it."""
        group = dict(param_group)
        if not isinstance(group["params"], Tensor):
            group["params"] = list(group["params"])  # type: ignore[call-overload]  # torch's own type is too wide
        if not self._added.is_there(group):
            self._inner.add_param_group(group)

    def __getattr__(self, name: str) -> object:
        found = getattr(self.__dict__["_inner"], name)
        if name.endswith("_step") and self._whole.inner:
            self._check_whole_step()
        return found

    def _watch_inner(self) -> None:
        """Count steps of the optimisers within `inner` that are not made by its own
        `step` (SAM's second).
        """
        own = list(self._whole.every())
        self._gradients.check.own_optimizers |= {id(item) for item in own[1:]}
        for item in own[1:]:
            if hasattr(item, "register_step_post_hook"):
                item.register_step_post_hook(self._on_inner_step)

    def _on_inner_step(self, *_: object) -> None:
        if self._stepping or self._session.trial:
            return
        self._check_whole_step()
        self._gradients.check.use.steps += 1

    def _check_whole_step(self) -> None:
        """Raise InputError in a pass that leaves no gradient for the steps of an
        optimiser within another.
        """
        if self._session.synchronising:
            return
        allowed = (
            "steps of one pass, for an optimizer that holds another and is stepped "
            "by methods of its own: "
            "leave max_atomic away"
        )
        raise InputError("loader(max_atomic)", "a step of several passes", allowed)

    def __repr__(self) -> str:
        return f"Elastic{self._inner!r}"

    def _begin(self) -> None:
        self._gradients.finish()
        self._look()
        self.before_step()

    def _look(self) -> None:
        """See now and then whether the gradients of the step are finite.

        Where a loss scaler seeks its scale, some are not (see `StepLoop`).
        """
        session = self._session
        if session.current is None or session.trial or session.loss_scaled:
            return
        self._finite.look(session.progress.step + 1)

    def _tell_not_finite(self, step: int) -> None:
        first = self._session.group.rank == 0
        self._session.figures.note_trouble(step, WHAT, speaks=first)

    def _ruled(self) -> Scaled:
        """Count a step; return what the rule says of it, UNSCALED itself where it
        leaves all as it is.
        """
        self._gradients.check.use.steps += 1
        current = self._session.current
        if current is None:
            return UNSCALED
        at = self._session.scale(current.step_samples, self._name)
        if at is not self._said[0]:
            ruled = self._rule(at)
            scaled = ruled if isinstance(ruled, Scaled) else Scaled(rate=ruled)
            self._said = (at, UNSCALED if scaled == UNSCALED else scaled)
        return self._said[1]

    @contextmanager
    def _scaled(self, scaled: Scaled) -> Iterator[None]:
        if scaled is UNSCALED:
            yield
            self._gradients.stepped()
            return
        groups = self._inner.param_groups
        before = [
            {name: group[name] for name in SCALED_OPTIONS if name in group}
            for group in groups
        ]
        for group in groups:
            _scale(group, scaled)
        try:
            yield
        finally:
            for group, options in zip(groups, before, strict=True):
                group.update(options)
            self._gradients.stepped()


def _scale(group: dict[str, Any], scaled: Scaled) -> None:
    group["lr"] = group["lr"] * scaled.rate
    if scaled.forgetting != 1.0 and "betas" in group:
        group["betas"] = tuple(
            max(1.0 - scaled.forgetting * (1.0 - beta), 0.0) for beta in group["betas"]
        )
        group["eps"] = group["eps"] / scaled.forgetting**0.5


class ElasticScheduler:
    """A learning-rate scheduler whose `step` does nothing in passes that do not end an
    optimiser step.
    """

    def __init__(self, inner: LRScheduler, session: Session) -> None:
        self._inner = inner
        self._session = session

    def step(self, *args: object) -> None:
        if self._session.synchronising:
            self._inner.step(*args)  # type: ignore[arg-type]  # an epoch, or a metric to watch

    def state_dict(self) -> dict[str, object]:
        return self._inner.state_dict()

    def load_state_dict(self, state_dict: dict[str, object]) -> None:
        self._inner.load_state_dict(state_dict)

    def __getattr__(self, name: str) -> object:
        return getattr(self.__dict__["_inner"], name)
