"""How fast a job trains on 1, 2, ... GPUs of an offer: goodput, or throughput alone.

Axes: K GPUs 1..most.
"""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from coadapt.goodput.efficiency_models import NO_LOSS
from coadapt.goodput.table import goodput_table
from coadapt.model import EfficiencySpec, JobView
from coadapt.model.offer import Offer

FloatArray = NDArray[np.float64]


def usable_gpus(job: JobView, explore: float = 0.0) -> int:
    """Return the most GPUs that the job can use.

    explore: at most so many times as many as it was timed on, as Pollux caps growth
    (OSDI'21, §4.1); 0: no cap. Never less than its minimum.
    """
    spec = job.spec
    total = spec.batch.max_total if spec.adaptive else spec.batch.requested
    most = min(spec.replicas.max, max(total // spec.batch.min_atomic, 1))
    if explore:
        timed = job.measured.num_replicas_profiled
        most = min(most, max(int(explore * timed), 1))
    return max(most, spec.replicas.min)


def is_timed(job: JobView, gpu_type: str) -> bool:
    """Return whether the job's step-time model is known on a GPU type."""
    return gpu_type in job.measured.by_type


def goodput_curve(job: JobView, offer: Offer, most: int) -> FloatArray:
    """Return the job's best goodput on 1..most GPUs, packed on nodes of the offer:
    (most,).

    Progress per second; 0 where the job cannot run on so many.
    """
    num_gpus_K = np.arange(1, most + 1)
    num_nodes_K = -(-num_gpus_K // offer.num_gpus)
    table = goodput_table([job], num_nodes_K, num_gpus_K, gpu_type=offer.gpu_type)
    curve_K: FloatArray = table.goodput_JC[0]
    limits = job.spec.replicas
    allowed_K = (num_gpus_K >= limits.min) & (num_gpus_K <= limits.max)
    return np.where(allowed_K, curve_K, 0.0)


def throughput_curve(job: JobView, offer: Offer, most: int) -> FloatArray:
    """Return samples per second at the fastest batch, as if each sample counted alike.

    The batch grows with the GPUs, up to what fits on each, without accumulation.
    """
    batch = replace(job.spec.batch, accumulation=False)
    blind = replace(
        job,
        spec=replace(job.spec, batch=batch, efficiency=EfficiencySpec()),
        measured=replace(job.measured, grad=NO_LOSS),
    )
    return goodput_curve(blind, offer, most)


def best_up_to(curve_K: FloatArray) -> FloatArray:
    """Return the best value on at most 1, 2, ... GPUs: more GPUs never hurt."""
    return np.maximum.accumulate(curve_K)


def progress_left(job: JobView) -> float | None:
    """Return the progress that is left, in scale-invariant samples; None: not known."""
    measured = job.measured
    if measured.progress_target is not None:
        return max(measured.progress_target - measured.progress, 0.0)
    if measured.forecast is not None:
        steps = max(measured.forecast.remaining_steps, 0.0)
        return steps * job.spec.batch.requested
    return None
