"""A job that changes its batch by a rule of its own (contract `self`): Accordion or
noise scale.
"""

# Both rules decide between two epochs only, every `rule.every` of them, from what was
# seen since the decision before. The first replica's decision counts: all see the same
# gradients, but a comparison of rounded figures is no place to find out that they do
# not to the last bit.
#
# Accordion (Agarwal et al., MLSys 2021) compares the norm of the accumulated gradient
# with that of the decision before: |before - now| / before >= η means a critical
# regime, which trains with the small batch; elsewhere the large one does. A learning
# rate that fell is critical as well, and so is the beginning. Where we depart: the
# published code sums gradients per layer, and decides per layer what to compress. A
# batch is one for all layers, so here all of them are one vector. And a sum over an
# epoch has fewer terms where the batch is larger, which alone would look like a change;
# so gradients are averaged, weighted by their samples.
#
# Noise scale (McCandlish et al. 2018, as the jobs of the Shockwave artifact use it):
# the noise scale is noted at the end of each epoch, and where the newest is above the
# mean of those since the last decision, the batch doubles; it never shrinks. The
# artifact forms the noise scale of norms and takes them for squared ones; here it is
# that of the run, which is unbiased.
#
# The learning rate follows the batch linearly where the optimiser is SGD (as in both
# papers), and by the root elsewhere: `Session.scale`.

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import cast

import torch
from torch import Tensor

from coadapt.model import BatchRule, InputError, RuleKind
from coadapt.train.dtensors import is_sharded
from coadapt.train.group.group import share_from_first
from coadapt.train.session import Session


@dataclass(slots=True, kw_only=True)
class _Seen:
    """What a rule has seen since its last decision, and what it knew then.

    sums: of the gradients times their samples, by place in the optimiser. samples: that
    went into them.
    norm: of the mean gradient up to the last decision, None before the first; rates:
    learning rates then. noise_scales: at the ends of epochs, in samples.
    """

    sums: dict[int, Tensor] = field(default_factory=dict)
    samples: int = 0
    norm: float | None = None
    rates: list[float] = field(default_factory=list)
    noise_scales: list[float] = field(default_factory=list)


class OwnRule:
    """Looks on while training goes on, and says between two epochs which batch comes
    next.
    """

    def __init__(self, session: Session, rule: BatchRule) -> None:
        self._session = session
        self._rule = rule
        self._seen = _Seen()
        self._optimizer: torch.optim.Optimizer | None = None

    def watch(self, optimizer: torch.optim.Optimizer) -> None:
        """Look at the gradients of each step of `optimizer`, as it gets them.

        Raises InputError where Accordion is to watch replicas that hold a part of them
        each.
        """
        if self._optimizer is optimizer or self._rule.kind is not RuleKind.ACCORDION:
            return
        self._optimizer = optimizer
        if any(is_sharded(parameter) for parameter in _parameters(optimizer)):
            raise InputError(
                "loader(batch_rule)",
                "accordion",
                "noise-scale where the model is sharded",
            )
        after: Callable[..., None] = self._add
        optimizer.register_step_post_hook(after)

    def decide(self) -> tuple[int, str]:
        """Return the total batch of the epoch to come, and why. An epoch has ended;
        collective.
        """
        session = self._session
        limits = self._session.data.limits
        present = session.data.batch.total
        largest = limits.max_total
        if session.data.order.num_samples is not None:
            largest = min(
                largest, max(session.data.order.num_samples, limits.requested)
            )
        if self._rule.kind is RuleKind.NOISE_SCALE:
            grad = session.grad_stats()
            if grad is not None:
                self._seen.noise_scales.append(grad.noise_scale(limits.initial))
        if session.progress.epoch % self._rule.every:
            return present, ""
        accordion = self._rule.kind is RuleKind.ACCORDION
        own = self._by_norm(largest) if accordion else self._by_noise(present, largest)
        return share_from_first(session.group, own)

    def state_dict(self) -> dict[str, object]:
        seen = self._seen
        return {
            "kind": str(self._rule.kind),
            "sums": dict(seen.sums),
            "samples": seen.samples,
            "norm": seen.norm,
            "rates": list(seen.rates),
            "noise_scales": list(seen.noise_scales),
        }

    def load_state_dict(self, state_dict: dict[str, object]) -> None:
        sums = cast("dict[int, Tensor]", state_dict["sums"])
        device = self._session.group.device
        self._seen = _Seen(
            sums={
                place: tensor.detach().to(device, copy=True)
                for place, tensor in sums.items()
            },
            samples=cast("int", state_dict["samples"]),
            norm=cast("float | None", state_dict["norm"]),
            rates=list(cast("list[float]", state_dict["rates"])),
            noise_scales=list(cast("list[float]", state_dict["noise_scales"])),
        )

    @torch.no_grad()
    def _add(self, optimizer: torch.optim.Optimizer, *_: object) -> None:
        current = self._session.current
        seen = self._seen
        if current is None or self._session.trial:
            return  # a step outside of the loader's loop is none of the run's
        places = []
        grads = []
        for place, parameter in enumerate(_parameters(optimizer)):
            if parameter.grad is not None and not parameter.grad.is_sparse:
                if place not in seen.sums:
                    seen.sums[place] = torch.zeros_like(parameter)
                places.append(place)
                grads.append(parameter.grad)
        torch._foreach_add_(
            [seen.sums[place] for place in places], grads, alpha=current.step_samples
        )
        seen.samples += current.step_samples

    def _by_norm(self, largest: int) -> tuple[int, str]:
        """Accordion's decision: (total batch, why)."""
        seen = self._seen
        small = self._session.data.limits.requested
        norm = 0.0
        if seen.samples:
            squares = [
                float(total.double().square().sum()) for total in seen.sums.values()
            ]
            norm = math.sqrt(math.fsum(squares)) / seen.samples
        assert self._optimizer is not None
        rates = [float(group["lr"]) for group in self._optimizer.param_groups]
        fell = any(now < before for now, before in zip(rates, seen.rates, strict=False))
        before = seen.norm
        self._seen = _Seen(norm=norm, rates=rates)
        if not before:
            return small, "critical: the first epochs"
        change = abs(before - norm) / before
        # Not (change < threshold): a gradient that is not a number is critical.
        if fell or not change < self._rule.threshold:
            why = (
                "the learning rate fell"
                if fell
                else f"the gradient's norm changed by {change:.0%}"
            )
            return small, f"critical: {why}"
        return largest, f"not critical: the gradient's norm changed by {change:.0%}"

    def _by_noise(self, present: int, largest: int) -> tuple[int, str]:
        """Return (total batch, why) by the noise scale."""
        scales = self._seen.noise_scales
        self._seen = _Seen()
        finite = [scale for scale in scales if math.isfinite(scale)]
        if not finite:
            return present, "the noise scale is not known"
        mean = math.fsum(finite) / len(finite)
        newest = scales[-1]
        grows = newest > mean
        total = max(min(2 * present, largest), present) if grows else present
        return (
            total,
            (
                f"the noise scale is {newest:.0f}, {mean:.0f} in the mean of "
                f"{len(finite)} epochs"
            ),
        )


def _parameters(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    return [
        parameter for group in optimizer.param_groups for parameter in group["params"]
    ]
