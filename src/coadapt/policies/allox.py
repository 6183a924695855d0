"""AlloX (Le et al., EuroSys 2020): jobs matched to places in queues, for the mean
completion.
"""

from typing import ClassVar

import numpy as np

from coadapt.model import ClusterView, JobId, Plan
from coadapt.policies.allocation.paced_jobs import DividedTime, FloatArray, PacedJobs
from coadapt.policies.allocation.time_share_rounds import RoundOptions
from coadapt.policies.allocation.turns import GAVEL_ROUND_S
from coadapt.policies.base import PolicyCard

# Jobs in one matching at most: it takes time as the cube of them. The oldest enter.
JOBS_MAX = 200
NEVER = 1e12  # the cost of a place on a type that the job may not use


class Allox:
    """Shortest jobs first, as far as `alpha` lets. A job of one GPU that has its turn
    keeps it to its end.

    alpha: of the jobs that wait, this part, the oldest, are matched; at least as many
    as GPUs are free. round_s, resolve_s, hold_back: see RoundOptions. Jobs that do not
    tell their length count as half done.
    """

    card: ClassVar[PolicyCard] = PolicyCard(
        paper="Le et al., AlloX, EuroSys 2020",
        decides="order and GPU type",
        oracle="time left on each type",
        needs_scipy=True,
    )

    def __init__(
        self,
        *,
        alpha: float = 1.0,
        round_s: float = GAVEL_ROUND_S,
        resolve_s: float = 0.0,
        hold_back: bool = False,
    ) -> None:
        if not 0.0 < alpha <= 1.0:
            raise ValueError(f"alpha must be in (0, 1], got {alpha}")
        self._alpha = alpha
        options = RoundOptions(
            round_s=round_s, resolve_s=resolve_s, hold_back=hold_back
        )
        self._time = DividedTime(options, needs_length=True)
        self._parts: dict[JobId, dict[str, float]] = {}

    def allocate(self, view: ClusterView) -> Plan:
        return self._time.plan(view, self._decide)

    def _decide(self, jobs: PacedJobs) -> FloatArray:
        x_JT = np.array(
            [
                [self._parts.get(job.id, {}).get(name, 0.0) for name in jobs.types]
                for job in jobs.jobs
            ]
        ).reshape(jobs.base.rate_JT.shape)
        holds_J = np.isclose(x_JT.sum(axis=1), 1.0)
        free_T = np.maximum(
            jobs.base.gpus_T - x_JT[holds_J].sum(axis=0).round().astype(np.int64), 0
        )
        # The view is in order of submission: the oldest come first.
        waiting = np.flatnonzero(~holds_J & jobs.base.can.any(axis=1))
        num_kept = max(int(self._alpha * len(waiting)), int(free_T.sum()))
        waiting = waiting[: min(num_kept, JOBS_MAX)]
        for job, gpu_type in first_in_line(jobs, waiting, free_T):
            x_JT[job] = 0.0
            x_JT[job, gpu_type] = 1.0 / jobs.base.width_J[job]
        self._parts = {
            job.id: dict(zip(jobs.types, x_T.tolist(), strict=True))
            for job, x_T in zip(jobs.jobs, x_JT, strict=True)
        }
        return x_JT


def first_in_line(
    jobs: PacedJobs,
    waiting: np.ndarray[tuple[int], np.dtype[np.intp]],
    free_T: np.ndarray[tuple[int], np.dtype[np.int64]],
) -> list[tuple[int, int]]:
    """Return (job, type) of those that the matching puts first on a free GPU.

    A job that is k-th from the end on its GPU delays itself and the k - 1 behind it: it
    costs k times its time there. Places are matched to jobs at least cost.
    """
    from scipy.optimize import linear_sum_assignment

    type_W = np.repeat(np.arange(len(free_T)), np.minimum(free_T, len(waiting)))
    num_gpus = len(type_W)
    num_jobs = len(waiting)
    if not num_gpus or not num_jobs:
        return []
    can_JT = jobs.base.can[waiting]
    rate_JT = jobs.base.rate_JT[waiting]
    left_JT = jobs.left_J[waiting, None] / np.where(can_JT, rate_JT, 1.0)
    cost_JW = np.where(can_JT, left_JT, NEVER)[:, type_W]
    places = np.arange(1, num_jobs + 1)
    cost_JP = (places[None, :, None] * cost_JW[:, None, :]).reshape(
        num_jobs, num_jobs * num_gpus
    )
    row_M, column_M = linear_sum_assignment(cost_JP)
    first: dict[int, tuple[int, int]] = {}
    for row, column in zip(row_M.tolist(), column_M.tolist(), strict=True):
        place, gpu = divmod(column, num_gpus)
        if can_JT[row, type_W[gpu]] and place >= first.get(gpu, (-1, -1))[0]:
            first[gpu] = (place, row)
    return [
        (int(waiting[row]), int(type_W[gpu])) for gpu, (_, row) in sorted(first.items())
    ]
