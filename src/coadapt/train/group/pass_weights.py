"""How much each pass of a step weighs, and that all replicas run the same backwards."""

# A pass leaves the gradient of its own mean loss. Where that is a mean over samples,
# its weight is its share of the step's samples, which every replica can work out by
# itself. Where it is a mean over tokens, boxes or pairs, only the loop's body knows how
# many there were: it says so with `run.weight(n)`.
#
# The step's gradient is then Σ n_p g_p / Σ n_p over all passes and replicas. The sum in
# the denominator is known in the last pass only. So passes before it are weighted by
# n_p / (samples of the step), a number that needs nobody else, and what they left is
# multiplied by (samples of the step) / Σ n_p when it is added to the gradient of the
# last pass, which is weighted by n_p / Σ n_p itself. Clipping sees the step's gradient.
#
# The sum over the replicas is taken when the exchange of gradients begins, in the group
# that carries them:
# a replica that skips a backward is then met by the others in its next one, as it was
# before.
#
# All replicas must say weights, or none. Whether they do is fixed by the first backward
# of a run: a pass that does otherwise later is refused by the replica that runs it. In
# the first steps of each group every backward begins with a word of all replicas
# (CHECKED_STEPS): which step and which backward it is, and whether passes say their
# weight. So a script that runs another number of backwards on some replicas (gradients
# accumulated by hand, as often as the number of replicas at the start says) ends with a
# sentence; without it, the gradients of different steps would mix, and then two
# replicas would wait for each other for ever.

import logging
import math
from dataclasses import dataclass
from typing import cast

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import all_gather

from coadapt.model import InputError
from coadapt.train.group.group import Group
from coadapt.train.samples.order import Pass

logger = logging.getLogger(__name__)

# Steps of a new group in which each backward begins with a word of all replicas: 0.3 ms
# each.
CHECKED_STEPS = 3
FIELD = "run.weight(n)"
WANTED = "how many tokens, boxes or pairs the loss of this pass is a mean of"
BACKWARDS_REMEDY = (
    "gradients accumulated by hand, as often as the number of replicas at the start "
    "says, or a backward "
    "behind an `if` that differs between replicas; let run.loader(max_atomic=...) "
    "accumulate"
)

# A factor of gradients: a tensor where the sum of weights is on a GPU, which nobody
# waits for.
Factor = float | Tensor


class UnlikeReplicasError(RuntimeError):
    """The replicas do not do the same; the text says what differs, and what to do, in
    one line.
    """


@dataclass(frozen=True, slots=True)
class _Word:
    """What one replica says at the start of a backward. number: of the backward within
    its step, from 1.
    """

    step: int
    number: int
    weighs: bool
    weight: float


class PassWeights:
    """Told of each pass; asked by whatever weights gradients or means."""

    def __init__(self) -> None:
        # Whether passes say their weight; None: not known before the first backward.
        self._weighs: bool | None = None
        self._amount: float | None = None
        self._asked = False
        self._sum = 0.0
        self._whole: Factor | None = None
        self._number = 0
        self._unchecked = 0
        self._told_zero = False
        # Backwards whose gradients were exchanged, since the replicas last talked.
        self.exchanged = 0

    @property
    def said(self) -> bool:
        """Return whether the body said what the present pass weighs."""
        return self._amount is not None

    def enter(self) -> None:
        """A new group begins."""
        self.exchanged = 0
        self._unchecked = 0

    def take_exchanged(self) -> int:
        """Return how many backwards exchanged gradients since this was asked last;
        once.
        """
        count = self.exchanged
        self.exchanged = 0
        return count

    def begin_pass(self, current: Pass) -> None:
        self._amount = None
        self._asked = False
        if current.first:
            self._sum = 0.0
            self._whole = None
            self._number = 0

    def end_step(self) -> None:
        """A step is over on all replicas."""
        if self._unchecked < CHECKED_STEPS:
            self._unchecked += 1

    def give(self, amount: float | Tensor, current: Pass, step: int) -> None:
        """Take the weight of the present pass. Raises InputError for one that is none,
        or comes too late.
        """
        value = checked_weight(amount)
        if self._amount is not None:
            raise InputError(FIELD, "a second call in a pass", "one call in each pass")
        if self._asked:
            allowed = "the call before loss.backward() and before run.mean(...)"
            raise InputError(
                FIELD, "a call after the pass's backward or run.mean", allowed
            )
        if self._weighs is False:
            allowed = "a call in every pass, from the first step on, on every replica"
            raise InputError(FIELD, f"a call in step {step + 1}, none before", allowed)
        self._amount = value
        if current.num_samples:
            self._sum += value
        if value == 0.0 and current.num_samples and not self._told_zero:
            self._told_zero = True
            logger.warning(
                "step %d: run.weight(0): the gradient of this pass is left out",
                step + 1,
            )

    def of_pass(self, current: Pass) -> float:
        """Return what the present pass weighs: what the body said, else its samples; 0
        for a stand-in.

        Raises InputError where the body said nothing, though passes before did.
        """
        self._asked = True
        given = self._amount is not None
        if self._weighs is None:
            self._weighs = given
        if self._weighs and not given:
            allowed = "a call in every pass, before loss.backward() and run.mean(...)"
            raise InputError(
                FIELD, "no call in a pass, though there was one before", allowed
            )
        if not current.num_samples:
            return 0.0
        return float(current.num_samples) if self._amount is None else self._amount

    def factor(self, current: Pass) -> Factor:
        """Return by what the gradient of the present pass's mean loss is multiplied."""
        weight = self.of_pass(current)
        if not self._weighs:
            return current.weight
        if not current.synchronising:
            return weight / current.step_samples
        whole = self._sum_of_step
        if weight == 0.0:
            return 0.0
        return weight / whole  # exactly 1 where the step is one pass

    def rest(self, current: Pass) -> Factor:
        """Return by what the gradients of passes before the last one are multiplied to
        be added to it.
        """
        if not self._weighs:
            return 1.0
        whole = self._sum_of_step
        if isinstance(whole, float):
            return current.step_samples / whole if whole else 0.0
        return current.step_samples / whole.clamp_min(1e-30)

    def unit(self, step_samples: int) -> float:
        """Return how many samples one unit of weight counts as, in the step that ends.
        Waits for the device.
        """
        if not self._weighs or self._whole is None:
            return 1.0
        whole = float(self._whole)
        return step_samples / whole if whole else 1.0

    def meet(self, current: Pass, group: Group, step: int) -> None:
        """A backward has computed its first gradients, and all replicas are about to
        exchange theirs.

        Collective where several replicas have to talk. Raises UnlikeReplicasError where
        they do not do the same.
        """
        self.of_pass(current)
        self._number += 1
        if not group.distributed:
            self._whole = self._sum
            return
        self.exchanged += 1
        if self._unchecked < CHECKED_STEPS:
            self._meet_checked(current, group, step)
        elif self._weighs and current.synchronising and self._whole is None:
            whole = torch.tensor([self._sum], dtype=torch.float64, device=group.device)
            dist.all_reduce(whole)
            self._whole = _as_number(whole[0])

    @property
    def _sum_of_step(self) -> Factor:
        return self._sum if self._whole is None else self._whole

    def _meet_checked(self, current: Pass, group: Group, step: int) -> None:
        assert self._weighs is not None
        own = [float(step), float(self._number), float(self._weighs), self._sum]
        told = torch.tensor(own, dtype=torch.float64, device=group.device)
        rows = [torch.empty_like(told) for _ in range(group.size)]
        all_gather(rows, told)
        words = [
            _Word(int(at), int(number), bool(weighs), weight)
            for at, number, weighs, weight in (row.tolist() for row in rows)
        ]
        _check_words(words)
        if self._weighs and current.synchronising:
            self._whole = math.fsum(word.weight for word in words)


def checked_weight(amount: float | Tensor) -> float:
    """Return a weight as a number. Raises InputError unless it is one, finite, and at
    least 0.
    """
    try:
        value = float(amount)
    except (TypeError, ValueError, RuntimeError):
        raise InputError(FIELD, amount, f"a number: {WANTED}") from None
    if not math.isfinite(value) or value < 0.0:
        raise InputError(FIELD, value, f"a finite number, at least 0: {WANTED}")
    return value


def scale_all(tensors: list[Tensor], factor: Factor) -> None:
    """Multiply `tensors` in place; 0 leaves zeros, also of what is not finite."""
    if isinstance(factor, float):
        if factor == 1.0 or not tensors:
            return
        if factor == 0.0:
            torch._foreach_zero_(tensors)
            return
    torch._foreach_mul_(tensors, factor)


def explain_unlike(error: BaseException) -> str | None:
    """Return the one line of an error that says what replicas do differently; None for
    other errors.
    """
    return f"error: {error}" if isinstance(error, UnlikeReplicasError) else None


def backwards_differ(text: str) -> UnlikeReplicasError:
    """Return the error of replicas that do not run the same backwards."""
    return UnlikeReplicasError(
        f"replicas run different numbers of backwards: {text}. Likely: "
        f"{BACKWARDS_REMEDY}"
    )


def _check_words(words: list[_Word]) -> None:
    if len({word.weighs for word in words}) > 1:
        ranks = [rank for rank, word in enumerate(words) if not word.weighs]
        raise UnlikeReplicasError(
            f"{FIELD} was called on some replicas only, not on replica "
            f"{', '.join(map(str, ranks))}: call it "
            "in every pass, on every replica, before loss.backward()"
        )
    if len({(word.step, word.number) for word in words}) > 1:
        places = (
            f"replica {rank} is in backward {word.number} of step {word.step + 1}"
            for rank, word in enumerate(words)
        )
        raise backwards_differ(", ".join(places))


def _as_number(value: Tensor) -> Factor:
    """Return the number where nothing has to be waited for."""
    return cast("float", value.item()) if value.device.type == "cpu" else value
