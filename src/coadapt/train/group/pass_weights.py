"""The weight of each pass of a step, and the check that all replicas run the same
backwards.
"""

# A pass computes the gradient of its own mean loss. If this is a mean over samples, the
# pass's weight is its share of the step's samples, which every replica can compute by
# itself. If it is a mean over tokens, boxes or pairs, only the loop's body knows their
# number, and passes it to `run.weight(n)`.
#
# The step's gradient is then Σ n_p g_p / Σ n_p over all passes and replicas. The sum in
# the denominator is known in the last pass only. So earlier passes are weighted by n_p
# / (samples of the step), which needs no other replica. Their gradient is multiplied by
# (samples of the step) / Σ n_p when it is added to the gradient of the last pass. The
# last pass is weighted by n_p / Σ n_p. Clipping sees the step's gradient.
#
# The sum over the replicas is computed when the exchange of gradients begins, in the
# same group. So if a replica skips a backward, the others wait for its next one, as
# they do without weights.
#
# Either all replicas set weights, or none does. The first backward of a run decides
# which. If a later pass differs, its replica raises an error. In the first steps of
# each group (CHECKED_STEPS), every backward begins with an exchange between all
# replicas: the number of the step and of the backward, and whether passes set their
# weight. So if a script runs another number of backwards on some replicas, it ends with
# a clear error. An example is a script that accumulates gradients by hand, by the
# number of replicas at its start. Without the check, gradients of different steps would
# mix, and then two replicas would wait for each other forever.

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

# The number of steps of a new group in which each backward begins with an exchange
# between all replicas, which takes 0.3 ms.
CHECKED_STEPS = 3
FIELD = "run.weight(n)"
WANTED = "how many tokens, boxes or pairs the loss of this pass is a mean of"
BACKWARDS_REMEDY = (
    "gradients accumulated by hand, as often as the number of replicas at the start "
    "says, or a backward "
    "behind an `if` that differs between replicas; let run.loader(max_atomic=...) "
    "accumulate"
)

# A factor of gradients. It is a tensor if the sum of weights is on a GPU, so that the
# CPU need not wait for it.
Factor = float | Tensor


class UnlikeReplicasError(RuntimeError):
    """The replicas do not do the same. The text says in one line what differs and what
    to do.
    """


@dataclass(frozen=True, slots=True)
class _Word:
    """One replica's part of the exchange at the start of a backward. number: the number
    of the backward within its step, from 1.
    """

    step: int
    number: int
    weighs: bool
    weight: float


class PassWeights:
    """The weights of passes. The session notes each pass here, and the code that
    weights gradients or means reads them.
    """

    def __init__(self) -> None:
        # Whether passes set their weight; None: not known before the first backward.
        self._weighs: bool | None = None
        self._amount: float | None = None
        self._asked = False
        self._sum = 0.0
        self._whole: Factor | None = None
        self._number = 0
        self._unchecked = 0
        self._zero_warned = False
        # The number of backwards whose gradients were exchanged since the last
        # consensus.
        self.exchanged = 0

    @property
    def said(self) -> bool:
        """Return whether the body has set the weight of the present pass."""
        return self._amount is not None

    def enter(self) -> None:
        """Note that a new group begins."""
        self.exchanged = 0
        self._unchecked = 0

    def take_exchanged(self) -> int:
        """Return how many backwards have exchanged gradients since the last call."""
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
        """Note that a step is over on all replicas."""
        if self._unchecked < CHECKED_STEPS:
            self._unchecked += 1

    def give(self, amount: float | Tensor, current: Pass, step: int) -> None:
        """Set the weight of the present pass. Raises InputError for an invalid weight,
        or if it comes too late.
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
        if value == 0.0 and current.num_samples and not self._zero_warned:
            self._zero_warned = True
            logger.warning(
                "step %d: run.weight(0): the gradient of this pass is left out",
                step + 1,
            )

    def of_pass(self, current: Pass) -> float:
        """Return the weight of the present pass: the one that the body has set, or else
        the number of its samples. A stand-in has 0.

        Raises InputError if the body has set no weight, although it did for earlier
        passes.
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
        """Return the factor by which the gradient of the present pass's mean loss is
        multiplied.
        """
        weight = self.of_pass(current)
        if not self._weighs:
            return current.weight
        if not current.synchronising:
            return weight / current.step_samples
        whole = self._sum_of_step
        if weight == 0.0:
            return 0.0
        return weight / whole  # exactly 1 if the step is one pass

    def rest(self, current: Pass) -> Factor:
        """Return the factor by which the gradients of earlier passes are multiplied
        before they are added to that of the last pass.
        """
        if not self._weighs:
            return 1.0
        whole = self._sum_of_step
        if isinstance(whole, float):
            return current.step_samples / whole if whole else 0.0
        return current.step_samples / whole.clamp_min(1e-30)

    def unit(self, step_samples: int) -> float:
        """Return how many samples one unit of weight is worth in the step that ends.
        Waits for the device.
        """
        if not self._weighs or self._whole is None:
            return 1.0
        whole = float(self._whole)
        return step_samples / whole if whole else 1.0

    def meet(self, current: Pass, group: Group, step: int) -> None:
        """Note that a backward has computed its first gradients, and all replicas are
        about to exchange theirs.

        Collective if replicas have to exchange weights or checks. Raises
        UnlikeReplicasError if they do not do the same.
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
        numbers = torch.tensor(own, dtype=torch.float64, device=group.device)
        rows = [torch.empty_like(numbers) for _ in range(group.size)]
        all_gather(rows, numbers)
        words = [
            _Word(int(at), int(number), bool(weighs), weight)
            for at, number, weighs, weight in (row.tolist() for row in rows)
        ]
        _check_words(words)
        if self._weighs and current.synchronising:
            self._whole = math.fsum(word.weight for word in words)


def checked_weight(amount: float | Tensor) -> float:
    """Return a weight as a number. Raises InputError unless it is a finite number
    >= 0.
    """
    try:
        value = float(amount)
    except (TypeError, ValueError, RuntimeError):
        raise InputError(FIELD, amount, f"a number: {WANTED}") from None
    if not math.isfinite(value) or value < 0.0:
        raise InputError(FIELD, value, f"a finite number, at least 0: {WANTED}")
    return value


def scale_all(tensors: list[Tensor], factor: Factor) -> None:
    """Multiply `tensors` in place. A factor of 0 gives zeros, also for values that are
    not finite.
    """
    if isinstance(factor, float):
        if factor == 1.0 or not tensors:
            return
        if factor == 0.0:
            torch._foreach_zero_(tensors)
            return
    torch._foreach_mul_(tensors, factor)


def explain_unlike(error: BaseException) -> str | None:
    """Return the one line of an error about replicas that differ, None for other
    errors.
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
    """Return the value as a number if that needs no wait, else as it is."""
    return cast("float", value.item()) if value.device.type == "cpu" else value
