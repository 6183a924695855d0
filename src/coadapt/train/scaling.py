"""Scaling rules: by how much the learning rate grows when the total batch does."""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from coadapt.goodput.efficiency import gain
from coadapt.model import GradStats, InputError


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchScale:
    """What a rule may look at. scale: step's samples over the initial batch, >= 1. gain: AdaScale's r_t."""

    scale: float
    gain: float


ScalingRule = Callable[[BatchScale], float]


def adascale(at: BatchScale) -> float:
    """Return AdaScale's gain (Johnson et al. 2020, alg. 1): for SGD, with or without momentum."""
    return at.gain


def square_root(at: BatchScale) -> float:
    """Return the square root of the scale (Krizhevsky 2014; Malladi et al. 2022): for Adam and its kin."""
    return float(at.scale**0.5)


def linear(at: BatchScale) -> float:
    """Return the scale itself (Goyal et al. 2017); safe only far below the noise scale."""
    return at.scale


def unscaled(_at: BatchScale) -> float:
    return 1.0


RULES: dict[str, ScalingRule] = {
    "adascale": adascale,
    "square-root": square_root,
    "linear": linear,
    "none": unscaled,
}


def resolve_rule(scaling: str | ScalingRule, optimizer: torch.optim.Optimizer) -> ScalingRule:
    """Return the rule of that name; "auto": AdaScale for SGD, the square root for all others.

    Adaptive optimisers divide by the gradient's size, which falls with its noise: hence the root.
    """
    if callable(scaling):
        return scaling
    if scaling == "auto":
        return adascale if isinstance(optimizer, torch.optim.SGD | torch.optim.ASGD) else square_root
    if scaling not in RULES:
        raise InputError("prepare(scaling)", scaling, f"auto, {', '.join(RULES)}, or a function")
    return RULES[scaling]


def batch_scale(step_samples: int, initial: int, grad: GradStats | None) -> BatchScale:
    """Return scale and gain of a step of `step_samples`. The gain is 1 as long as no noise was measured.

    A step below the initial batch (the last of an epoch) counts as scale 1: a plain loop does not touch its
    learning rate either.
    """
    scale = max(step_samples / initial, 1.0)
    return BatchScale(scale=scale, gain=1.0 if grad is None else gain(scale, grad.sqr, grad.var))
