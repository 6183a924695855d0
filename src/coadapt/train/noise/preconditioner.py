"""The metric in which an adaptive optimiser sees gradients: each divided by the root of
its second moment.
"""

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from coadapt.train.dtensors import local_shards

# Before that many optimiser steps the second moment is mostly its first samples
# (Pollux's artifact).
READY_STEPS = 5
# Measured steps between two looks at the second moment, which forgets over about 1 / (1
# - 0.999) steps.
REFRESH_EVERY = 10


class Preconditioner(Protocol):
    def refresh(self) -> bool:
        """Look at the optimiser's state, before a step; return whether the metric is
        known.
        """
        ...

    def apply(
        self, parameters: Sequence[Tensor], grads: Sequence[Tensor]
    ) -> list[Tensor]:
        """Return new tensors: the gradients of `parameters` in the metric."""
        ...

    def divisors(self, parameter: Tensor) -> Tensor | None:
        """Return what gradients of `parameter` (this replica's part) are divided by,
        None if not known.

        Until it changes, the same object.
        """
        ...

    def sqr_norm(
        self, parameters: Sequence[Tensor], squares: Sequence[Tensor]
    ) -> Tensor:
        """Return the squared norm in the metric of gradients of `parameters` of which
        `squares` are given.
        """
        ...

    def forget(self) -> None:
        """Parameters or optimiser state are no longer what they were."""
        ...


class AdamPreconditioner:
    """For optimisers that keep `exp_avg_sq` and `step` per parameter: Adam, AdamW,
    NAdam, RAdam.
    """

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._optimizer = optimizer
        self._divisors: dict[Tensor, Tensor] = {}
        self._age = REFRESH_EVERY

    def refresh(self) -> bool:
        self._age += 1
        if self._age >= REFRESH_EVERY or not self._divisors:
            self._age = 0
            self._divisors = self._current()
        return bool(self._divisors)

    def apply(
        self, parameters: Sequence[Tensor], grads: Sequence[Tensor]
    ) -> list[Tensor]:
        known = [
            index
            for index, parameter in enumerate(parameters)
            if parameter in self._divisors
        ]
        divisors = [self._divisors[parameters[index]] for index in known]
        if not known:
            return []
        scaled = torch._foreach_div(
            [grads[index].to(divisors[0]) for index in known], divisors
        )
        return list(scaled)

    def divisors(self, parameter: Tensor) -> Tensor | None:
        return self._divisors.get(parameter)

    def sqr_norm(
        self, parameters: Sequence[Tensor], squares: Sequence[Tensor]
    ) -> Tensor:
        roots = torch._foreach_sqrt(list(squares))
        return sqr_norm(self.apply(parameters, roots))

    def forget(self) -> None:
        self._divisors = {}

    @torch.no_grad()
    def _current(self) -> dict[Tensor, Tensor]:
        divisors: dict[Tensor, Tensor] = {}
        for group in self._optimizer.param_groups:
            parameters = [
                p
                for p in group["params"]
                if "exp_avg_sq" in self._optimizer.state.get(p, {})
            ]
            if not parameters:
                continue
            states = [self._optimizer.state[parameter] for parameter in parameters]
            steps = float(states[0]["step"])
            if steps < READY_STEPS:
                return {}
            correction = (1.0 - group["betas"][1] ** steps) ** 0.5
            roots = torch._foreach_sqrt(
                local_shards([state["exp_avg_sq"] for state in states])
            )
            torch._foreach_div_(roots, correction)
            torch._foreach_add_(roots, group["eps"])
            divisors.update(zip(parameters, roots, strict=True))
        return divisors


def preconditioner_for(optimizer: torch.optim.Optimizer) -> Preconditioner | None:
    """Return the metric of `optimizer`, None where it is that of plain gradients, or
    not known.
    """
    kinds = (torch.optim.Adam, torch.optim.AdamW, torch.optim.NAdam, torch.optim.RAdam)
    return AdamPreconditioner(optimizer) if isinstance(optimizer, kinds) else None


def dense_values(grad: Tensor) -> Tensor:
    """Return the values of a sparse gradient, each row once: all of it that is not 0;
    else itself.
    """
    return grad.coalesce().values() if grad.is_sparse else grad


def sqr_norm(tensors: Sequence[Tensor]) -> Tensor:
    """Return the squared norm of all `tensors` together, in the metric of plain
    gradients.
    """
    tensors = [dense_values(tensor) for tensor in tensors]
    if not tensors:
        return torch.zeros(())
    # In the type of the gradients, the norms of 16-bit ones would overflow and keep
    # three digits.
    wide = torch.float32 if tensors[0].dtype.itemsize < 4 else None
    norms = torch._foreach_norm(list(tensors), 2, dtype=wide)
    return torch.stack([norm.float() for norm in norms]).square().sum()
