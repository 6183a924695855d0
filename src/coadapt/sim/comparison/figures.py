"""Means, intervals and ratios over the runs of a comparison."""

# A ratio is taken within a cell (same trace, cluster and seed), so that what differs between cells cancels
# out; ratios are averaged as logarithms, since half and twice must balance. Intervals are Student's t over
# the cells: right where cells are independent draws (seeds), a measure of spread where traces were chosen.

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import t as student_t

from coadapt.sim.metrics import JobOutcome

CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A mean with its 95 % confidence interval; low and high are None where one value alone is known."""

    mean: float
    low: float | None
    high: float | None
    num_values: int


def mean_of(values: Sequence[float]) -> Estimate:
    """Return the arithmetic mean of `values`. Raises ValueError for none."""
    if not values:
        raise ValueError("there are no values")
    mean = float(np.mean(values))
    if len(values) == 1:
        return Estimate(mean=mean, low=None, high=None, num_values=1)
    half = _half_width(values)
    return Estimate(
        mean=mean, low=mean - half, high=mean + half, num_values=len(values)
    )


def ratio_of(pairs: Sequence[tuple[float, float]]) -> Estimate | None:
    """Return the geometric mean of value / baseline over `pairs`; None where none of them is positive."""
    logs = [
        math.log(value / base) for value, base in pairs if value > 0.0 and base > 0.0
    ]
    if not logs:
        return None
    found = mean_of(logs)
    return Estimate(
        mean=math.exp(found.mean),
        low=None if found.low is None else math.exp(found.low),
        high=None if found.high is None else math.exp(found.high),
        num_values=found.num_values,
    )


def _half_width(values: Sequence[float]) -> float:
    spread = float(np.std(values, ddof=1)) / math.sqrt(len(values))
    return float(student_t.ppf((1.0 + CONFIDENCE) / 2.0, len(values) - 1)) * spread


@dataclass(frozen=True, slots=True, kw_only=True)
class JobPick:
    """A job under a policy and under the baseline, same trace, cluster and seed. Times in seconds."""

    trace: str
    cluster: str
    seed: int
    job: str
    application: str
    num_gpus: int
    jct_s: float
    baseline_jct_s: float

    @property
    def ratio(self) -> float:
        return self.jct_s / self.baseline_jct_s


def picks(
    cell: tuple[str, str, int],
    jobs: Sequence[JobOutcome],
    baseline: Sequence[JobOutcome],
) -> list[JobPick]:
    """Return the jobs that both runs of a cell finished."""
    base_jct_s = {job.id: job.jct_s for job in baseline}
    return [
        JobPick(
            trace=cell[0],
            cluster=cell[1],
            seed=cell[2],
            job=job.id,
            application=job.application,
            num_gpus=job.num_gpus,
            jct_s=job.jct_s,
            baseline_jct_s=base_jct_s[job.id],
        )
        for job in jobs
        if job.id in base_jct_s
    ]
