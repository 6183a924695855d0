"""The largest sum of throughputs now: a baseline of Gavel's and Shockwave's comparisons
(also called MSS).
"""

from typing import ClassVar

import numpy as np

from coadapt.model import ClusterView, Plan
from coadapt.policies.allocation.paced_jobs import DividedTime, FloatArray, PacedJobs
from coadapt.policies.allocation.time_share_rounds import RoundOptions
from coadapt.policies.allocation.turns import GAVEL_ROUND_S
from coadapt.policies.base import PolicyCard
from coadapt.policies.solvers.time_shares import central_max_total, max_total


class Mst:
    """Runs the fastest jobs, whatever becomes of the others.

    round_s, resolve_s, hold_back: see RoundOptions. raw: throughput in passes per
    second of all replicas, as in the released code, where a job with small passes beats
    one with large ones; without it each job counts by its rate over its best one, times
    its GPUs. central: of equally good parts the most central, in which jobs that are
    alike are treated alike.
    """

    card: ClassVar[PolicyCard] = PolicyCard(
        paper="largest sum of throughputs, a baseline of Gavel, OSDI 2020",
        decides="part of the time on each GPU type",
        needs_scipy=True,
    )

    def __init__(
        self,
        *,
        round_s: float = GAVEL_ROUND_S,
        resolve_s: float = 0.0,
        hold_back: bool = False,
        raw: bool = False,
        central: bool = False,
    ) -> None:
        self._raw = raw
        self._central = central
        options = RoundOptions(
            round_s=round_s, resolve_s=resolve_s, hold_back=hold_back
        )
        self._time = DividedTime(options, needs_length=False)

    def allocate(self, view: ClusterView) -> Plan:
        return self._time.plan(view, self._decide)

    def _decide(self, jobs: PacedJobs) -> FloatArray | None:
        base = jobs.base
        best_J = np.where(jobs.best > 0.0, jobs.best, 1.0)
        scale_J = jobs.passes_J if self._raw else base.width_J / best_J
        value_JT = base.rate_JT * scale_J[:, None]
        return (
            central_max_total(base, value_JT)
            if self._central
            else max_total(base, value_JT)
        )
