"""SLAQ (Zhang et al., SoCC 2017): GPUs go where the normalised loss is predicted to
fall most.
"""

import math
from enum import StrEnum
from typing import ClassVar, NamedTuple

import numpy as np

from coadapt.model import ClusterView, JobView, Plan
from coadapt.policies.allocation.between_decisions import between_decisions
from coadapt.policies.allocation.capacity import Capacity, span, useful_span
from coadapt.policies.allocation.counted_plan import counted_plan
from coadapt.policies.allocation.greedy import MarginalGain, grow_greedily
from coadapt.policies.allocation.queue import requested_gpus
from coadapt.policies.allocation.reasons import waits
from coadapt.policies.base import PolicyCard
from coadapt.policies.predictors.learning import (
    Learning,
    total_batch,
    types_to_count_on,
)


class Family(StrEnum):
    """QUADRATIC: 1/(q x^2 + a x + b) + c, of the paper. LINEAR: q = 0, of Optimus."""

    QUADRATIC = "quadratic"
    LINEAR = "linear"


class _Fall(NamedTuple):
    """The fall of one job's normalised loss in the epoch to come, by replicas. curved:
    as predicted.
    """

    fall_N: tuple[float, ...]
    curved: bool


class Slaq:
    """Each job gets its minimum, then GPUs go one by one where predicted quality gains
    most from them.

    epoch_s: the time that is looked ahead, and the least time between two decisions; in
    between, new jobs get their minimum of what is free. family: of the loss curves, one
    of Family. keep: what a new count must promise over the present one, as a part of
    it, before a job is rescaled. metric: the name that losses are logged under; none:
    the first known one that a job logs.
    """

    card: ClassVar[PolicyCard] = PolicyCard(
        paper="Zhang et al., SLAQ, SoCC 2017",
        decides="GPU counts, by the predicted fall of losses",
    )

    def __init__(
        self,
        *,
        epoch_s: float = 300.0,
        family: str = Family.QUADRATIC,
        keep: float = 0.05,
        metric: str = "",
    ) -> None:
        if not (math.isfinite(epoch_s) and epoch_s > 0.0):
            raise ValueError(f"epoch_s must be finite and > 0, got {epoch_s}")
        if family not in list(Family):
            raise ValueError(
                f"family must be one of {', '.join(Family)}, got {family!r}"
            )
        if not keep >= 0.0:
            raise ValueError(f"keep must be >= 0, got {keep}")
        self._epoch_s = epoch_s
        self._quadratic = family == Family.QUADRATIC
        self._keep = keep
        self._learning = Learning(metric)
        self._decided_at = -math.inf

    def allocate(self, view: ClusterView) -> Plan:
        self._learning.observe(view)
        if view.at - self._decided_at < self._epoch_s:
            return between_decisions(view, self._epoch_s)
        self._decided_at = view.at
        capacity = Capacity(view)
        falls = self._falls(view)
        # Where not all fit, those whose loss falls most by their minimum.
        for job in sorted(
            view.jobs, key=lambda job: -falls[job.id].fall_N[span(job)[0] - 1]
        ):
            if job.id not in capacity.counts:
                capacity.give(job, span(job)[0])
        worth = {
            job_id: MarginalGain(fall.fall_N, scale=-1.0)
            for job_id, fall in falls.items()
        }
        grow_greedily(
            [job for job in view.jobs if job.id in capacity.counts], capacity, worth
        )
        capacity = self._steady(view, capacity, falls)
        notes = {job.id: self._note(job, capacity, falls[job.id]) for job in view.jobs}
        return counted_plan(view, capacity, notes)

    def _falls(self, view: ClusterView) -> dict[str, _Fall]:
        gpu_types, most = types_to_count_on(view)
        return {job.id: self._fall(job, gpu_types[job.id], most) for job in view.jobs}

    def _fall(self, job: JobView, gpu_type: str, most: int) -> _Fall:
        """Return the fall in `epoch_s` on 1 to as many replicas as are of use to `job`.

        Losses are divided by the largest fall from one to the next so far, so that the
        first ones of any job count about 1 (§3). Until there is a curve each GPU that
        the job requested is worth one such fall.
        """
        low = span(job)[0]
        high = max(useful_span(job)[1], span(job)[0])
        high = max(min(high, most), low)
        curve = self._learning.curve(job, quadratic=self._quadratic)
        if curve is None:
            asked = requested_gpus(job)
            return _Fall(
                tuple(float(min(n, asked)) for n in range(1, high + 1)), curved=False
            )
        done = job.measured.samples
        step_s = np.array(self._learning.step_s(job, gpu_type, high))
        after_N = curve.at(done + self._epoch_s / step_s * total_batch(job))
        largest = self._learning.largest_fall(job)
        fall_N = np.maximum(float(curve.at(done)) - after_N, 0.0) / largest
        return _Fall(tuple(fall_N.tolist()), curved=True)

    def _steady(
        self, view: ClusterView, found: Capacity, falls: dict[str, _Fall]
    ) -> Capacity:
        """Return what was found but for changes that promise too little; `found` if not
        all of that fits.
        """
        steady = Capacity(view)
        for job in view.jobs:
            count = found.counts.get(job.id, 0)
            held = job.allocation.num_replicas
            if job.id in steady.counts or not count or not held or count == held:
                continue
            fall_N = falls[job.id].fall_N
            if max(count, held) > len(fall_N):
                continue
            little = (
                abs(fall_N[count - 1] - fall_N[held - 1])
                <= self._keep * fall_N[held - 1]
            )
            if little:
                steady.keep(job)
        for job in view.jobs:
            if job.id in steady.counts or job.id not in found.counts:
                continue
            if not steady.give(job, found.counts[job.id], found.gpu_types[job.id]):
                return found
        return steady

    def _note(self, job: JobView, capacity: Capacity, fall: _Fall) -> str:
        count = capacity.counts.get(job.id)
        if count is None:
            return waits(
                job, span(job)[0], capacity, "jobs whose loss falls more go first"
            )
        if not fall.curved:
            return "it counts as new: it reported too few losses to predict more"
        there = fall.fall_N[min(count, len(fall.fall_N)) - 1]
        return (
            f"its loss is to fall by {there:.2g} of its largest step in "
            f"{self._epoch_s:g} s"
        )
