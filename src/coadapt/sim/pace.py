"""How fast a job trains in each epoch while it keeps its batch: the same for all jobs
that are alike.
"""

import math
from collections.abc import Hashable
from functools import lru_cache
from typing import NamedTuple, cast

from coadapt.goodput.efficiency import gain
from coadapt.model import GradStats
from coadapt.sim.applications import Application

# Paces that are kept for jobs alike, and epochs beyond the present one that are looked
# up together.
PACES_KEPT = 1024
PACES_AHEAD = 16


class EpochPace(NamedTuple):
    """One epoch: its gradients, progress per second, and the progress at its begin and
    end.

    whole_s: what it takes from begin to end, in whole seconds (infinity: too long to
    say); whole_samples: its samples then.
    """

    grad: GradStats
    rate: float
    begins: float
    ends: float
    whole_s: float
    whole_samples: float


class Pace:
    """How fast training goes in each epoch while the batch stays, found as far as a job
    has come.
    """

    def __init__(
        self, application: Application, total: int, initial: int, steps_per_s: float
    ) -> None:
        self._application = application
        self._total = total
        self._scale = total / initial
        self._steps_per_s = steps_per_s
        self.epochs: list[EpochPace] = []
        """Those that were asked for so far, and some more."""

    def look_ahead(self, epoch: int) -> None:
        """Take in the epochs up to `epoch`, and some more."""
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
    """Return the pace of jobs with `initial` samples that train with `total`, so many
    steps in a second.
    """
    return _pace(cast("Hashable", application), total, initial, steps_per_s)


@lru_cache(maxsize=PACES_KEPT)
def _pace(application: Hashable, total: int, initial: int, steps_per_s: float) -> Pace:
    return Pace(cast("Application", application), total, initial, steps_per_s)
