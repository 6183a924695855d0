"""Goodput of all jobs on all configurations of a round at once. Axes: J jobs, C configurations, B batches."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from coadapt.goodput.goodput import best_batch
from coadapt.goodput.throughput import POLLUX, FloatArray, ThroughputModel
from coadapt.model import GradStats, JobView, Placement

IntArray = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class GoodputTable:
    """Best goodput per job and configuration, and the batch that reaches it. Arrays (num_jobs, num_configs).

    Goodput is in progress per second, 0 where the job's batch limits rule the configuration out; a job whose
    step time is not known yet has goodput K on K replicas (relative units).
    """

    goodput_JC: FloatArray
    atomic_JC: IntArray
    accumulation_JC: IntArray


def goodput_table(
    jobs: Sequence[JobView],
    num_nodes_C: Sequence[int] | IntArray,
    num_replicas_C: Sequence[int] | IntArray,
    *,
    gpu_type: str,
    num_racks_C: Sequence[int] | IntArray | None = None,
    model: ThroughputModel = POLLUX,
) -> GoodputTable:
    num_racks_C = [1] * len(num_nodes_C) if num_racks_C is None else num_racks_C
    shape = (len(jobs), len(num_nodes_C))
    goodput, atomic, accumulation = np.zeros(shape), np.ones(shape, np.int64), np.zeros(shape, np.int64)
    for j, job in enumerate(jobs):
        for c, (n, k, r) in enumerate(zip(num_nodes_C, num_replicas_C, num_racks_C, strict=True)):
            params = job.throughput.get(gpu_type)
            if params is None:
                goodput[j, c] = k
                continue
            placement = Placement((int(k) - int(n) + 1, *[1] * (int(n) - 1)), int(r))
            choice = best_batch(
                job.spec.batch,
                params,
                job.grad or GradStats(sqr=1.0, var=0.0),
                placement,
                adaptive=job.spec.adaptive,
                model=model,
            )
            goodput[j, c] = choice.goodput
            atomic[j, c] = choice.config.atomic
            accumulation[j, c] = choice.config.accumulation
    return GoodputTable(goodput, atomic, accumulation)
