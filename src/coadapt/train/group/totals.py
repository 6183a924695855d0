"""Figures that are summed over the passes and replicas of an epoch, and are kept when
replicas change.
"""

import logging
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from coadapt.model import InputError
from coadapt.train.group.group import Group, gather_all

logger = logging.getLogger(__name__)

# A replica that waits for the others' figures for this long logs a warning.
LONG_WAIT_S = 30.0

Figure = float | Tensor
# name -> (sum over all replicas, weight); a plain sum has no weight
Sums = Mapping[str, tuple[float, float | None]]


@dataclass(slots=True)
class Totals:
    """This replica's part of the epoch's sums. name -> (sum, weight); a plain sum has
    no weight.

    Sums stay on the device of the figures, in float64, so adding never waits for the
    device.
    """

    _sums: dict[str, Figure] = field(default_factory=dict)
    _weights: dict[str, float] = field(default_factory=dict)
    # Whether means are weighted by `run.weight`; None: there is no mean yet.
    _said: bool | None = None

    def add(self, name: str, value: Figure, weight: float | None) -> None:
        """Add `value` to a sum, or with a weight to a mean. Raises ValueError if a name
        is used as both.
        """
        if name in self._sums and (weight is None) == (name in self._weights):
            raise ValueError(f"{name!r} is both a sum and a mean")
        figure = value.detach().double() if isinstance(value, Tensor) else float(value)
        if weight is not None:
            figure = figure * weight
            self._weights[name] = self._weights.get(name, 0.0) + weight
        self._sums[name] = figure + self._sums[name] if name in self._sums else figure

    def check_weighted(self, *, said: bool) -> None:
        """Check a new mean. Raises InputError if `run.weight` was called for only some
        of the passes.
        """
        if self._said is None:
            self._said = said
        if self._said != said:
            raise InputError(
                "run.weight(n)",
                "no call in some passes",
                "a call in every pass, before run.mean(...), or in none",
            )

    def clear(self) -> None:
        self._sums = {}
        self._weights = {}
        self._said = None

    def gather(self, group: Group) -> dict[str, tuple[float, float | None]]:
        """Return name -> (sum, weight or None) over all replicas. Collective; waits for
        the device.
        """
        own = {
            name: (_number(value), self._weights.get(name))
            for name, value in self._sums.items()
        }
        whole: dict[str, tuple[float, float | None]] = {}
        for part in gather_all(group, own):
            for name, (value, weight) in part.items():
                before, before_weight = whole.get(name, (0.0, None))
                both = None if weight is None else weight + (before_weight or 0.0)
                whole[name] = (before + value, both)
        return whole

    def restore(self, whole: Sums, group: Group) -> None:
        """Continue from the result of a former group's `gather`, which the first
        replica keeps as its part.
        """
        self.clear()
        if group.rank == 0:
            self._sums = {name: value for name, (value, _) in whole.items()}
            self._weights = {
                name: weight
                for name, (_, weight) in whole.items()
                if weight is not None
            }


def whole_values(
    totals: Totals, group: Group, *, patience_s: float = LONG_WAIT_S
) -> dict[str, float]:
    """Return the sums and means over all replicas. Collective.

    A replica that waits for the others logs a warning after `patience_s`.
    """
    text = (
        "replica %d has waited %g s in totals() for the others: all replicas must "
        "call it, alike"
    )
    warning = threading.Timer(
        patience_s, logger.warning, (text, group.rank, patience_s)
    )
    warning.daemon = True
    if group.distributed:
        warning.start()
    try:
        return values_of(totals.gather(group))
    finally:
        warning.cancel()


def values_of(whole: Sums) -> dict[str, float]:
    """Return the sums and means from the result of `Totals.gather`. A mean over no
    samples is NaN.
    """
    return {
        name: value if weight is None else _mean(value, weight)
        for name, (value, weight) in whole.items()
    }


def _mean(value: float, weight: float) -> float:
    return value / weight if weight else float("nan")


def _number(value: Figure) -> float:
    return float(value.sum()) if isinstance(value, torch.Tensor) else value
