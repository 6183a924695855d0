"""Optimus (Peng et al., EuroSys 2018) without an oracle: ends by loss curves, speeds by
what was timed.
"""

import math
from dataclasses import replace
from typing import ClassVar

import numpy as np

from coadapt.model import ClusterView, Forecast, JobView, Plan
from coadapt.policies.allocation.between_decisions import between_decisions
from coadapt.policies.allocation.capacity import useful_span
from coadapt.policies.base import PolicyCard
from coadapt.policies.optimus import Optimus
from coadapt.policies.predictors.learning import (
    Learning,
    total_batch,
    types_to_count_on,
)

# Constants of Optimus's released code. A loss has converged if it is within TOLERANCE
# of the loss WINDOW_EPOCHS before. A job has at most EPOCHS_MAX epochs. A job of which
# nothing is known has MORE_EPOCHS left.
TOLERANCE = 0.05
WINDOW_EPOCHS = 10
EPOCHS_MAX = 100
MORE_EPOCHS = 20
# If not even the length of an epoch is known, a job has as many samples left as it has
# done, and at least this many steps. Our own choice.
LEAST_STEPS = 1000.0


class OptimusOnline:
    """Optimus with forecasts of its own, which it makes from the losses that jobs log
    and from step times.

    period_s: the least time between two decisions on all jobs; in between, new jobs get
    their minimum of what is free. metric: the name that losses are logged under; none:
    the first known one that a job logs.
    """

    card: ClassVar[PolicyCard] = PolicyCard(
        paper="Peng et al., Optimus, EuroSys 2018",
        decides="GPU counts, by ends and speeds that it predicts",
    )

    def __init__(self, *, period_s: float = 600.0, metric: str = "") -> None:
        if not (math.isfinite(period_s) and period_s >= 0.0):
            raise ValueError(f"period_s must be finite and >= 0, got {period_s}")
        self._period_s = period_s
        self._learning = Learning(metric)
        self._optimus = Optimus()
        self._decided_at = -math.inf

    def allocate(self, view: ClusterView) -> Plan:
        self._learning.observe(view)
        if view.at - self._decided_at < self._period_s:
            return between_decisions(view, self._period_s)
        self._decided_at = view.at
        jobs = []
        how = {}
        gpu_types, most = types_to_count_on(view)
        for job in view.jobs:
            forecast, how[job.id] = self._forecast(job, gpu_types[job.id], most)
            jobs.append(replace(job, measured=replace(job.measured, forecast=forecast)))
        plan = self._optimus.allocate(replace(view, jobs=tuple(jobs)))
        reasons = {
            job_id: f"{reason}; its end is {how[job_id]}"
            if job_id in plan.allocations
            else reason
            for job_id, reason in plan.reasons.items()
        }
        return replace(plan, reasons=reasons)

    def _forecast(self, job: JobView, gpu_type: str, most: int) -> tuple[Forecast, str]:
        """Return the forecast of steps left and of step times up to `most` replicas,
        and in words how the steps left are known.
        """
        samples, how = left_samples(job, self._learning)
        high = max(min(useful_span(job)[1], most), 1)
        times = self._learning.step_s(job, gpu_type, high)
        return Forecast(
            remaining_steps=samples / total_batch(job), step_time_s=times
        ), how


def left_samples(job: JobView, learning: Learning) -> tuple[float, str]:
    """Return the samples that `job` has left, at least an epoch, and in words how that
    is known.
    """
    done = job.measured.samples
    epoch = learning.epoch_samples(job)
    least = epoch or max(done / MORE_EPOCHS, total_batch(job))
    usual = learning.usual_samples(job)
    if usual is not None:
        return max(usual - done, least), "that of earlier jobs of its application"
    curve = learning.curve(job)
    if curve is not None and epoch is not None:
        loss_E = curve.at(epoch * np.arange(EPOCHS_MAX + 1.0))
        level = np.flatnonzero(
            loss_E[:-WINDOW_EPOCHS] - loss_E[WINDOW_EPOCHS:] <= TOLERANCE
        )
        end = int(level[0]) + WINDOW_EPOCHS if len(level) else EPOCHS_MAX
        return max(end * epoch - done, least), "by its loss curve"
    if epoch is not None:
        return MORE_EPOCHS * epoch, "a guess: it reported too few losses"
    return max(done, LEAST_STEPS * total_batch(job)), "a guess: it reported no loss"
