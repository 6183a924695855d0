"""Looks for mistakes of a script that would show nowhere: one line each, once, from the
first replica.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.optim.optimizer import register_optimizer_step_post_hook

from coadapt.train.session import Session

logger = logging.getLogger(__name__)

# Steps that are looked at together. A phase without gradients, or a loop that trains
# something else first, uses none of the three parts; skipped steps of mixed precision
# end after some 20 (from a scale of 2^16).
WINDOW_STEPS = 50
# Steps with an optimiser that was not prepared, after which the script is warned. An
# optimiser that is made for a step (to search for an input, for adversarial examples)
# has fewer.
BESIDE_STEPS = 10
# Gradients that are not finite: at least this often within a window, since not every
# step is measured.
UNUSABLE_MIN = 2


@dataclass(slots=True)
class Use:
    """How often the parts that `Run.prepare` returned were used, in training."""

    forwards: int = 0
    backwards: int = 0
    steps: int = 0


@dataclass(slots=True)
class SkippedSteps:
    """Which steps, since the replicas last talked, had no backward in the pass that
    exchanges gradients.
    """

    exchanged: bool = False
    _bits: int = 0
    _next: int = 1

    def end_step(self) -> None:
        if not self.exchanged:
            self._bits |= self._next
        self.exchanged = False
        self._next <<= 1

    def take(self) -> int:
        """Return a power of two for each of them, the first step 1; once."""
        bits = self._bits
        self.forget()
        return bits

    def forget(self) -> None:
        """Begin to count with the next step."""
        self.exchanged = False
        self._bits = 0
        self._next = 1


@dataclass(slots=True)
class Window:
    """What has happened since a step. before: the use of the parts until then.

    updates, others: steps of any optimizer with, or without, a parameter of the model.
    """

    before: Use
    steps: int = 0
    updates: int = 0
    others: int = 0


@dataclass(slots=True)
class FiniteCheck:
    """Finds, once, that gradients have not been finite for long."""

    _steps: list[int] = field(default_factory=list)
    _warned: bool = False

    def began(self, step: int, *, unusable: bool) -> int | None:
        """Return the first step without finite gradients if it is time to warn. Call it
        for each measured step.
        """
        if not unusable:
            self._steps.clear()
            return None
        self._steps.append(step)
        first = self._steps[0]
        if (
            self._warned
            or len(self._steps) < UNUSABLE_MIN
            or step - first < WINDOW_STEPS
        ):
            return None
        self._warned = True
        return first


class ScriptCheck:
    """Sees each step of the script, and warns of what cannot be intended."""

    def __init__(self, parameters: Sequence[Tensor], *, speaks: bool) -> None:
        """`parameters`: those of the model. `speaks`: whether to warn from here."""
        self.use = Use()
        self._parameters = list(parameters)
        self._ids = {id(parameter) for parameter in parameters}
        # Those within the optimiser of the pair, by id: their steps are no other's.
        self.own_optimizers: set[int] = set()
        self._speaks = speaks
        self._warned = False
        self._watching = True
        self._steps = 0
        self._window = Window(Use())
        self._finite = FiniteCheck()
        self._handle = register_optimizer_step_post_hook(self._on_any_optimizer)

    @property
    def watching(self) -> bool:
        """Return whether `use` is still looked at."""
        return self._watching

    def follow(self, parameters: Sequence[Tensor]) -> None:
        """The model has other parameters from now on."""
        self._parameters = list(parameters)
        self._ids = {id(parameter) for parameter in parameters}

    def end_step(self) -> None:
        """An optimiser step's last pass is over."""
        if not self._watching:
            return
        self._steps += 1
        self._window.steps += 1
        if self._window.steps == WINDOW_STEPS:
            self._judge()

    def end_training(self, step: int) -> None:
        """No step follows; `step` steps were done in all, some perhaps not in this
        process.
        """
        if (
            self._watching
            and self._steps
            and (self._steps == step or self._steps >= WINDOW_STEPS)
        ):
            self._judge()
            if not (self._warned or self.use.steps):
                self._warn(
                    "training ended after %d steps without one optimizer.step()",
                    self._steps,
                )
        self.close()

    def norms(self, step: int, *, unusable: bool) -> int | None:
        """Return since which step gradients have been infinite or not numbers for long;
        once.

        Call it for each `step` that was measured.
        """
        return self._finite.began(step, unusable=unusable)

    def _judge(self) -> None:
        """Look at the window that ends now; stop watching once everything is used, or a
        warning was given.
        """
        window = self._window
        use = self.use
        self._window = Window(replace(use))
        forwards = use.forwards - window.before.forwards
        backwards = use.backwards - window.before.backwards
        steps = use.steps - window.before.steps
        if steps and backwards:
            self.close()
        elif steps and any(parameter.requires_grad for parameter in self._parameters):
            why = (
                "loss.backward() is missing"
                if forwards
                else "use it, not the model that prepare was given"
            )
            self._warn(
                "%d steps without a backward through the model of run.prepare: %s",
                window.steps,
                why,
            )
        elif not steps and window.updates:
            self._warn(
                "%d steps in which another optimizer than that of run.prepare "
                "changed the parameters: use "
                "what prepare returned, model and optimizer",
                window.steps,
            )
        elif backwards and not window.others:
            self._warn(
                "%d steps with a backward but without optimizer.step(): nothing is "
                "learnt",
                window.steps,
            )
        if self._warned:
            self.close()

    def _on_any_optimizer(
        self, optimizer: torch.optim.Optimizer, _args: object, _kwargs: object
    ) -> None:
        if id(optimizer) in self.own_optimizers:
            return  # counted in `use`
        if any(
            id(item) in self._ids
            for group in optimizer.param_groups
            for item in group["params"]
        ):
            self._window.updates += 1
        else:
            self._window.others += 1

    def _warn(self, text: str, *values: object) -> None:
        self._warned = True
        if self._speaks:
            logger.warning(text, *values)

    def close(self) -> None:
        """Stop watching what is used."""
        self._watching = False
        self._handle.remove()


class BesideCheck:
    """Tells of an optimiser that trains on several replicas, and that `run.prepare` was
    not given; once.

    Alone it trains as it would anywhere.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._ids: set[int] = set()
        # The steps of each optimiser; it is gone with the optimiser.
        self._steps: WeakKeyDictionary[torch.optim.Optimizer, set[int]] = (
            WeakKeyDictionary()
        )
        self._began: int | None = None
        # Not taken away when it has done its work: torch is going through its hooks
        # then.
        self._over = False
        self._handle = register_optimizer_step_post_hook(self._on_any_optimizer)

    def know(self, parameters: Sequence[Tensor]) -> None:
        """These are trained by an optimiser that was prepared."""
        self._ids |= {id(parameter) for parameter in parameters}

    def close(self) -> None:
        """Look at no further step."""
        self._handle.remove()

    def _on_any_optimizer(
        self, optimizer: torch.optim.Optimizer, _args: object, _kwargs: object
    ) -> None:
        session = self._session
        if self._over or session.current is None or not session.group.distributed:
            return
        step = session.progress.step
        self._began = step if self._began is None else self._began
        self._over = step - self._began >= WINDOW_STEPS
        groups = optimizer.param_groups
        if any(id(item) in self._ids for group in groups for item in group["params"]):
            return
        steps = self._steps.setdefault(optimizer, set())
        steps.add(step)
        if len(steps) < BESIDE_STEPS:
            return
        self._over = True
        if session.group.rank == 0:
            logger.warning(
                "step %d: an optimizer that run.prepare(...) was not given (%s) "
                "trains beside the run: its "
                "gradients are not averaged over replicas, and its state does not go "
                "over to one that joins: "
                'run.prepare(model, optimizer, name="...") takes a further pair',
                step,
                type(optimizer).__name__,
            )
