"""How fast a job trains in each epoch while it keeps its batch: the same for all jobs that are alike."""

from collections.abc import Hashable
from functools import lru_cache
from typing import cast

from coadapt.goodput.efficiency import gain
from coadapt.model import GradStats
from coadapt.sim.applications import Application

# Paces that are kept for jobs alike, and epochs beyond the present one that are looked up together.
PACES_KEPT = 1024
PACES_AHEAD = 16


class Pace:
    """How fast training goes in each epoch while the batch stays, found as far as a job has come."""

    def __init__(self, application: Application, total: int, initial: int, steps_per_s: float) -> None:
        self._application = application
        self._total, self._scale, self._steps_per_s = total, total / initial, steps_per_s
        self._epochs: list[tuple[GradStats, float, float]] = []

    def upto(self, epoch: int) -> list[tuple[GradStats, float, float]]:
        """Return of each epoch, up to `epoch` and some more: gradients, progress per second, its end."""
        epochs, application = self._epochs, self._application
        for each in range(len(epochs), min(epoch + PACES_AHEAD, application.num_epochs)):
            grad = application.grad_stats(self._total, each)
            rate = gain(self._scale, grad.sqr, grad.var) * self._steps_per_s
            epochs.append((grad, rate, application.progress_at(each + 1)))
        return epochs


def pace_of(application: Application, total: int, initial: int, steps_per_s: float) -> Pace:
    """Return the pace of jobs with `initial` samples that train with `total`, so many steps in a second."""
    return _pace(cast("Hashable", application), total, initial, steps_per_s)


@lru_cache(maxsize=PACES_KEPT)
def _pace(application: Hashable, total: int, initial: int, steps_per_s: float) -> Pace:
    return Pace(cast("Application", application), total, initial, steps_per_s)
