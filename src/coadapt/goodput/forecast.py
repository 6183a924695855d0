"""Step times that a job may expect on more or fewer replicas, for its `Forecast`."""

import numpy as np

from coadapt.goodput.batch import requested_grid
from coadapt.goodput.throughput import Shapes, ThroughputModel, step_time
from coadapt.model import BatchLimits, ThroughputParams


def packed_step_times(
    params: ThroughputParams,
    limits: BatchLimits,
    num_replicas_max: int,
    gpus_per_node: int,
    model: ThroughputModel = step_time,
) -> tuple[float, ...]:
    """Return the seconds of one step at `limits.requested` on 1, 2, ...
    `num_replicas_max` replicas.

    The replicas are on as few nodes of `gpus_per_node` GPUs as possible, in one rack;
    the total batch is split as by `split_total(exact=True)`. ValueError for counts
    below 1.
    """
    if num_replicas_max < 1 or gpus_per_node < 1:
        raise ValueError(
            f"replicas and GPUs per node must be >= 1, got {num_replicas_max} and "
            f"{gpus_per_node}"
        )
    num_replicas = np.arange(1, num_replicas_max + 1)
    grid = requested_grid(limits, tuple(num_replicas.tolist()))
    shapes = Shapes(
        num_nodes=np.ceil(num_replicas / gpus_per_node),
        num_racks=np.ones(num_replicas_max),
        num_replicas=num_replicas.astype(np.float64),
    )
    atomic = grid.atomic_CB[:, 0].astype(np.float64)
    accumulation = grid.accumulation_CB[:, 0].astype(np.float64)
    step_s = np.asarray(model(params, shapes, atomic, accumulation))
    return tuple(step_s.tolist())
