"""What a declared batch schedule still asks of a job, from truth: optimiser steps by
total batch.
"""

import math

from coadapt.goodput.efficiency import gain
from coadapt.model import JobSpec
from coadapt.sim.applications import Application


def steps_to_come(
    application: Application,
    spec: JobSpec,
    epoch: int = 0,
    progress: float = 0.0,
    samples: float = 0.0,
) -> dict[int, float]:
    """Return the optimiser steps left at each total batch of the schedule that is still
    to be used.

    After `epoch` whole epochs, at `progress` (steps at the initial batch) and
    `samples`. Steps are parts of whole ones where the batch changes within an epoch.
    """
    ramp = spec.batch.schedule
    assert ramp is not None, "only jobs under contract schedule declare one"
    steps: dict[int, float] = {}
    while epoch < application.num_epochs:
        total = ramp.total_at(samples)
        grad = application.grad_stats(total, epoch)
        each = float(gain(total / spec.batch.initial, grad.sqr, grad.var))
        to_epoch = max(application.progress_at(epoch + 1) - progress, 0.0) / each
        change = ramp.next_change(samples)
        to_change = math.inf if change is None else (change - samples) / total
        taken = min(to_epoch, to_change)
        steps[total] = steps.get(total, 0.0) + taken
        progress += taken * each
        # Exactly there, as rounding may not leave the batch or the epoch before in
        # force.
        samples = (
            float(change)
            if change is not None and taken == to_change
            else samples + taken * total
        )
        if taken == to_epoch:
            epoch, progress = epoch + 1, application.progress_at(epoch + 1)
    return steps
