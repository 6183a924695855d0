"""Goodput of all jobs on all configurations of a round at once.

Axes: J jobs, C configurations (number of nodes, racks and replicas), B candidate
batches.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from coadapt.goodput.batch import (
    NUM_CANDIDATES,
    BatchGrid,
    adaptive_grid,
    limits_in_use,
    requested_grid,
)
from coadapt.goodput.efficiency import efficiency
from coadapt.goodput.efficiency_models import (
    NO_LOSS,
    Estimate,
    NoiseScale,
    model_of_job,
)
from coadapt.goodput.throughput import (
    FloatArray,
    ParamArrays,
    Shapes,
    ThroughputModel,
    step_time,
)
from coadapt.model import JobView, ThroughputParams

IntArray = NDArray[np.int64]

CHUNK_ELEMENTS = (
    1 << 15
)  # of one array (J, C, B): 256 KiB, so that a handful of them stays in the cache
# Freeing an array of this many elements, 4 MiB, once makes glibc keep up to 8 MiB of
# freed heap (mallopt(3)). Without that the pages of each temporary are mapped again,
# which takes longer than the arithmetic.
HEAP_KEPT = 1 << 19

ANY_PARAMS = ThroughputParams(
    alpha_c=1.0, beta_c=0.0
)  # not measured yet: the row's goodput is overwritten


@dataclass(frozen=True, slots=True)
class GoodputTable:
    """Best goodput per job and configuration, and the batch that reaches it. Arrays
    (num_jobs, num_configs).

    Goodput is in progress per second; 0 where the job's batch limits rule the
    configuration out. A job whose step time is not known scales perfectly: K on K
    replicas, in units of its own.
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
    model: ThroughputModel = step_time,
    estimate: Estimate = Estimate.EXPECTED,
) -> GoodputTable:
    """Return each job's best goodput on each configuration of `gpu_type` GPUs (Pollux
    eq. 12).

    An adaptive job takes the best of its candidate batches, the smallest on ties, by
    the efficiency model that its spec names; `estimate` is the end of that model's
    interval. Without gradient statistics it is taken to gain nothing from a larger
    batch. Any other job keeps its batch, at efficiency 1: under `self` the one in use,
    under `schedule` the one in force, else `limits.requested`.
    """
    num_replicas = np.asarray(num_replicas_C, dtype=np.int64)
    num_racks = (
        np.ones_like(num_replicas) if num_racks_C is None else np.asarray(num_racks_C)
    )
    columns = (np.asarray(num_nodes_C), num_racks, num_replicas)
    np.empty(HEAP_KEPT)
    round_ = _Round(
        shapes=Shapes(*(column.astype(np.float64)[:, None] for column in columns)),
        num_replicas_C=tuple(num_replicas.tolist()),
        gpu_type=gpu_type,
        model=model,
        estimate=estimate,
    )
    shape = (len(jobs), len(num_replicas))
    table = GoodputTable(
        np.zeros(shape), np.ones(shape, np.int64), np.zeros(shape, np.int64)
    )
    for adaptive, num_candidates in ((True, NUM_CANDIDATES), (False, 1)):
        rows = [row for row, job in enumerate(jobs) if job.spec.adaptive is adaptive]
        num_at_once = max(
            CHUNK_ELEMENTS // max(len(num_replicas) * num_candidates, 1), 1
        )
        for first in range(0, len(rows), num_at_once):
            chunk = rows[first : first + num_at_once]
            _fill(table, chunk, [jobs[row] for row in chunk], round_)
    return table


@dataclass(frozen=True, slots=True, kw_only=True)
class _Round:
    """What is the same for all jobs. Arrays of `shapes`: (num_configs, 1)."""

    shapes: Shapes
    num_replicas_C: tuple[int, ...]
    gpu_type: str
    model: ThroughputModel
    estimate: Estimate


def _fill(
    table: GoodputTable, rows: list[int], jobs: list[JobView], round_: _Round
) -> None:
    """Compute the rows of `jobs`, which are alike: all adaptive, or none."""
    grid = [_grid_of(job, round_) for job in jobs]
    total_JCB = np.stack([each.total_CB for each in grid], dtype=np.float64)
    atomic_JCB = np.stack([each.atomic_CB for each in grid], dtype=np.float64)
    accumulation_JCB = np.stack(
        [each.accumulation_CB for each in grid], dtype=np.float64
    )
    profiles = [job.measured.by_type.get(round_.gpu_type) for job in jobs]
    known = [None if profile is None else profile.params for profile in profiles]
    params = ParamArrays.stack([each or ANY_PARAMS for each in known], ndim=3)
    step_s_JCB = round_.model(params, round_.shapes, atomic_JCB, accumulation_JCB)
    goodput_JCB = _efficiency(jobs, total_JCB, round_.estimate)
    goodput_JCB *= total_JCB
    goodput_JCB /= step_s_JCB
    unknown = [row for row, each in enumerate(known) if each is None]
    goodput_JCB[unknown] = np.where(
        total_JCB[unknown] > 0.0, round_.shapes.num_replicas, 0.0
    )
    best_JC1 = goodput_JCB.argmax(axis=2)[:, :, None]
    table.goodput_JC[rows] = np.take_along_axis(goodput_JCB, best_JC1, axis=2)[:, :, 0]
    table.atomic_JC[rows] = np.take_along_axis(atomic_JCB, best_JC1, axis=2)[:, :, 0]
    table.accumulation_JC[rows] = np.take_along_axis(
        accumulation_JCB, best_JC1, axis=2
    )[:, :, 0]


def _grid_of(job: JobView, round_: _Round) -> BatchGrid:
    grid = adaptive_grid if job.spec.adaptive else requested_grid
    return grid(limits_in_use(job, round_.gpu_type), round_.num_replicas_C)


def _efficiency(
    jobs: list[JobView], total_JCB: FloatArray, estimate: Estimate
) -> FloatArray:
    """Return the efficiencies: jobs with the noise scale all at once, then those with
    another model each.
    """
    models = [model_of_job(job) for job in jobs]
    stats = [
        model.stats(estimate) if isinstance(model, NoiseScale) else NO_LOSS
        for model in models
    ]
    columns = [
        (job.spec.batch.initial, grad.sqr, grad.var)
        for job, grad in zip(jobs, stats, strict=True)
    ]
    initial, sqr, var = np.array(columns, dtype=np.float64).T[:, :, None, None]
    efficiency_JCB = efficiency(
        np.maximum(total_JCB, 1.0), initial, sqr, var
    )  # 0 where there is no batch
    for row, model in enumerate(models):
        if not isinstance(model, NoiseScale):
            # Where nothing is lawful the total is 0, and the goodput will be.
            efficiency_JCB[row] = model(np.maximum(total_JCB[row], 1.0)).at(estimate)
    return efficiency_JCB
