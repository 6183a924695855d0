"""Paces: how fast a job trains in each epoch while it keeps its batch. Equal jobs share
a pace.
"""

import math
from collections.abc import Hashable
from functools import lru_cache
from typing import NamedTuple, cast

from coadapt.goodput.efficiency import gain
from coadapt.model import GradStats
from coadapt.sim.applications import Application

# The number of paces that are kept, and of epochs that are computed together.
PACES_KEPT = 1024
PACES_AHEAD = 16


class EpochPace(NamedTuple):
    """One epoch: gradient statistics, progress per second, and the progress at its
    begin and end.

    whole_s: duration of the whole epoch, rounded to seconds (infinity: it makes no
    progress). whole_samples: samples in that time.
    """

    grad: GradStats
    rate: float
    begins: float
    ends: float
    whole_s: float
    whole_samples: float


class Pace:
    """The speed of training in each epoch with one batch, computed as far as needed."""

    def __init__(
        self, application: Application, total: int, initial: int, steps_per_s: float
    ) -> None:
        self._application = application
        self._total = total
        self._scale = total / initial
        self._steps_per_s = steps_per_s
        self.epochs: list[EpochPace] = []
        """The epochs that were computed so far."""

    def look_ahead(self, epoch: int) -> None:
        """Compute the epochs up to `epoch`, and PACES_AHEAD more."""
        epochs = self.epochs
        application = self._application
        for each in range(
            len(epochs), min(epoch + PACES_AHEAD, application.num_epochs)
        ):
            grad = application.grad_stats(self._total, each)
            rate = gain(self._scale, grad.sqr, grad.var) * self._steps_per_s
            begins = application.progress_at(each)
            ends = application.progress_at(each + 1)
            seconds = (ends - begins) / rate if rate > 0.0 else math.inf
            whole_s = float(round(seconds)) if seconds < math.inf else math.inf
            samples = whole_s * self._steps_per_s * self._total
            epochs.append(EpochPace(grad, rate, begins, ends, whole_s, samples))


def pace_of(
    application: Application, total: int, initial: int, steps_per_s: float
) -> Pace:
    """Return the pace at total batch `total` and a number of steps per second.

    initial: the job's initial batch, samples.
    """
    return _pace(cast("Hashable", application), total, initial, steps_per_s)


@lru_cache(maxsize=PACES_KEPT)
def _pace(application: Hashable, total: int, initial: int, steps_per_s: float) -> Pace:
    return Pace(cast("Application", application), total, initial, steps_per_s)
