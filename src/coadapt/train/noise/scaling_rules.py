"""Scaling rules: by how much the learning rate grows when the total batch does."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch

from coadapt.goodput.efficiency import gain
from coadapt.model import GradStats, InputError


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchScale:
    """The input of a scaling rule.

    scale: samples of the step over the initial batch, >= 1. gain: AdaScale's r_t.
    epochs: passes over the data so far, fractions included; infinite unless the job is
    `adaptive`, so that such a job has no warm-up.
    """

    scale: float
    gain: float
    epochs: float = math.inf


@dataclass(frozen=True, slots=True, kw_only=True)
class Scaled:
    """The result of a scaling rule that changes more than the learning rate.

    rate: factor of the learning rate. forgetting: factor of 1 - β of the optimiser's
    moving averages; its ε is divided by the square root of this factor.
    """

    rate: float
    forgetting: float = 1.0


ScalingRule = Callable[[BatchScale], float | Scaled]

# Of ResNet-50 at a batch of 1,024 (You et al. 2019, table 2: 10 epochs at 32 times
# that).
WARMUP_EPOCHS = 10 / 32


def adascale(at: BatchScale) -> float:
    """Return AdaScale's gain (Johnson et al. 2020, alg. 1): for SGD, with or without
    momentum.
    """
    return at.gain


def square_root(at: BatchScale) -> float:
    """Return the square root of the scale (Krizhevsky 2014; Malladi et al. 2022): for
    Adam and optimisers like it.
    """
    return float(at.scale**0.5)


def linear(at: BatchScale) -> float:
    """Return the scale itself (Goyal et al. 2017); safe only far below the noise
    scale.
    """
    return at.scale


def legw(warmup_epochs: float = WARMUP_EPOCHS) -> ScalingRule:
    """Return the rule of linear-epoch gradual warm-up (You et al. 2019).

    At k times the initial batch, the learning rate is √k times as large and the warm-up
    k times as long. warmup_epochs: epochs in which the rate rises from zero at the
    initial batch. Raises InputError below 0.
    """
    if not 0.0 <= warmup_epochs < math.inf:
        raise InputError(
            "legw(warmup_epochs)", warmup_epochs, "a number of epochs >= 0"
        )

    def rule(at: BatchScale) -> float:
        warmup = warmup_epochs * at.scale
        return square_root(at) * (1.0 if at.epochs >= warmup else at.epochs / warmup)

    return rule


def adam(at: BatchScale) -> Scaled:
    """Return the square-root rule for Adam in full (Malladi et al. 2022, def. 5.3).

    With κ the scale: √κ times the rate, 1 - κ (1 - β) for both β, ε / √κ.
    """
    return Scaled(rate=square_root(at), forgetting=at.scale)


def unscaled(_at: BatchScale) -> float:
    return 1.0


RULES: dict[str, ScalingRule] = {
    "adascale": adascale,
    "square-root": square_root,
    "linear": linear,
    "legw": legw(),
    "adam": adam,
    "none": unscaled,
}


def resolve_rule(
    scaling: str | ScalingRule, optimizer: torch.optim.Optimizer
) -> ScalingRule:
    """Return the rule of that name; "auto": AdaScale for SGD, the square root for all
    others.

    Adaptive optimisers divide by the gradient's size, which falls with its noise: hence
    the root.
    """
    if callable(scaling):
        return scaling
    if scaling == "auto":
        return (
            adascale
            if isinstance(optimizer, torch.optim.SGD | torch.optim.ASGD)
            else square_root
        )
    if scaling not in RULES:
        raise InputError(
            "prepare(scaling)", scaling, f"auto, {', '.join(RULES)}, or a function"
        )
    if scaling == "adam" and "betas" not in optimizer.defaults:
        raise InputError(
            "prepare(scaling)",
            scaling,
            f"an optimiser with betas; {type(optimizer).__name__} has none",
        )
    return RULES[scaling]


def batch_scale(
    step_samples: int, initial: int, grad: GradStats | None, epochs: float = math.inf
) -> BatchScale:
    """Return scale and gain of a step of `step_samples`. The gain is 1 as long as no
    noise was measured.

    A step below the initial batch (the last of an epoch) counts as scale 1: a plain
    loop does not touch its learning rate either.
    """
    scale = max(step_samples / initial, 1.0)
    known = 1.0 if grad is None else gain(scale, grad.sqr, grad.var)
    return BatchScale(scale=scale, gain=known, epochs=epochs)
