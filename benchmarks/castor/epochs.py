"""What a job can do at best in each of its epochs, on each number of GPUs: as measured,
whatever it knows.
"""

import math
from dataclasses import dataclass

import numpy as np

from coadapt.goodput.efficiency import gain
from coadapt.model import DEFAULT_GPU_TYPE, JobSpec, RescaleContract
from coadapt.policies.solvers.arrays import FloatArray
from coadapt.sim.agent import kept_batch, within_memory
from coadapt.sim.applications import Application, UnmeasuredError, packed, step_s

# Geometric batches; a batch between two of them counts as the larger, and as fast as
# the fastest.
TOTALS = 300
REFERENCE = 8  # GPUs by whose speed epochs are made alike


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """A cluster of equal nodes, and what a job cannot be spared: its start, s."""

    num_gpus: int
    node_gpus: int
    rescale_s: float = 30.0
    gpu_type: str = DEFAULT_GPU_TYPE


def epochs_of(
    application: Application, spec: JobSpec, setting: Setting
) -> tuple[FloatArray, FloatArray]:
    """Return the progress of each epoch, and the most progress per second in it,
    (epochs, GPUs from 1 on).

    As measured, on as few nodes as can be, with any batch that the job may have.
    """
    limits = spec.batch
    most = min(spec.replicas.max, setting.num_gpus)
    num_epochs = application.num_epochs
    work_E = np.diff(
        [application.progress_at(epoch) for epoch in range(num_epochs + 1)]
    )
    rate_EK = np.zeros((num_epochs, most))
    if spec.contract is not RescaleContract.ADAPTIVE:
        for count in range(1, min(most, limits.requested // limits.min_atomic) + 1):
            batch = kept_batch(limits, count)
            rate_EK[:, count - 1] = _gains(
                application, batch.total, limits.initial
            ) / step_s(
                application, packed(count, setting.node_gpus, setting.gpu_type), batch
            )
        return work_E, rate_EK
    totals = np.geomspace(limits.initial, limits.max_total, TOTALS)
    gain_ME = np.array(
        [
            _gains(application, _whole(total, limits.max_total), limits.initial)
            for total in totals
        ]
    )
    for count in range(max(spec.replicas.min, 1), most + 1):
        fastest_M = _fastest(application, spec, setting, count, totals)
        rate_EK[:, count - 1] = (gain_ME[1:] / fastest_M[:, None]).max(axis=0)
    return work_E, rate_EK


def _whole(total: float, most: int) -> int:
    return min(math.ceil(total - 1e-6), most)


def _gains(application: Application, total: int, initial: int) -> FloatArray:
    """Return the progress of a step of `total` samples in each epoch."""
    grads = [
        application.grad_stats(total, epoch) for epoch in range(application.num_epochs)
    ]
    return np.array([gain(total / initial, grad.sqr, grad.var) for grad in grads])


def _fastest(
    application: Application,
    spec: JobSpec,
    setting: Setting,
    count: int,
    totals: FloatArray,
) -> FloatArray:
    """Return the least seconds of a step between each two of `totals`, infinity where
    no batch is.
    """
    where = packed(count, setting.node_gpus, setting.gpu_type)
    limits = within_memory(spec.batch, application, where)
    fastest_M = np.full(len(totals) - 1, np.inf)
    for atomic in range(limits.min_atomic, (limits.max_atomic or limits.max_total) + 1):
        try:
            whole_s, sync_s = application.step_time(where, atomic)
        except UnmeasuredError:
            continue
        passes = np.arange(
            1, (limits.max_total // (count * atomic) if limits.accumulation else 1) + 1
        )
        total_A = count * atomic * passes
        passes = passes[total_A >= limits.initial]
        total_A = total_A[total_A >= limits.initial]
        keep = total_A <= limits.max_total
        place_A = np.clip(
            np.searchsorted(totals, total_A[keep], side="right") - 1,
            0,
            len(fastest_M) - 1,
        )
        np.minimum.at(
            fastest_M, place_A, whole_s + (passes[keep] - 1) * (whole_s - sync_s)
        )
    return fastest_M
