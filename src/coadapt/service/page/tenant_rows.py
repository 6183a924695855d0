"""Tenants as the page shows them: their share of the GPUs against what they are
entitled to, and their use.
"""

import threading
import time
from collections import defaultdict
from collections.abc import Mapping
from typing import cast

from coadapt.core.accounting import num_gpus_held
from coadapt.core.lifecycle import JobState
from coadapt.core.state import SchedulerState
from coadapt.model import TenantId
from coadapt.model.tenant import EVERYBODY
from coadapt.model.wire import Json
from coadapt.service.page.source import PageSource
from coadapt.service.tenants import tenant_snapshots

HOUR_S = 3_600.0
# Of so long ago and later the GPU-hours of ended jobs count.
USE_DAYS = 7
DAY_S = 86_400.0
# The sums over ended jobs are at most so old.
USE_AGE_S = 60.0
# States in which a job holds GPUs and does not train.
IDLE_STATES = frozenset({JobState.STARTING, JobState.STOPPING})


class TenantRows:
    """The rows of one source. For any thread."""

    def __init__(self, source: PageSource) -> None:
        self._source = source
        self._lock = threading.Lock()
        self._ended: dict[TenantId, tuple[int, float]] = {}
        self._looked_at = float("-inf")

    def rows(self) -> list[dict[str, Json]]:
        """Return a row for each tenant that was configured or has jobs, by name."""
        at = self._source.now()
        live, idle, used, capacity = self._source.read(
            lambda state: _live_figures(state, at)
        )
        ended = self._ended_figures(at)
        names = {str(row["id"]) for row in live} | ended.keys()
        by_name = {str(row["id"]): row for row in live}
        total_weight = sum(
            cast(float, row["weight"])
            for row in live
            if row["num_jobs"] and row["id"] != EVERYBODY
        )
        return [
            {
                **by_name.get(name, {"id": name}),
                "entitled_gpus": _entitled(by_name.get(name), total_weight, capacity),
                "num_gpus_idle": idle.get(name, 0.0),
                "gpu_h": used.get(name, 0.0) + ended.get(name, (0, 0.0))[1],
                "num_ended": ended.get(name, (0, 0.0))[0],
            }
            for name in sorted(names)
        ]

    def _ended_figures(self, at: float) -> dict[TenantId, tuple[int, float]]:
        """Return of each tenant the jobs that ended lately, and their GPU-hours."""
        with self._lock:
            if time.monotonic() - self._looked_at > USE_AGE_S:
                sums = self._source.index.ended_use(at - USE_DAYS * DAY_S)
                self._ended = {
                    name: (number, gpu_s / HOUR_S) for name, number, gpu_s in sums
                }
                self._looked_at = time.monotonic()
            return self._ended


def _live_figures(
    state: SchedulerState, at: float
) -> tuple[list[dict[str, Json]], dict[TenantId, float], dict[TenantId, float], int]:
    """Return the tenants, the GPUs held and idle of each, its live GPU-hours, and all
    GPUs.
    """
    idle: defaultdict[TenantId, float] = defaultdict(float)
    used: defaultdict[TenantId, float] = defaultdict(float)
    for job in state.active:
        num_gpus = num_gpus_held(job)
        usage = job.usage.upto(max(at, job.usage.accounted_at), num_gpus)
        used[job.spec.tenant] += usage.attained_service_gpu_s / HOUR_S
        if job.status.state in IDLE_STATES:
            idle[job.spec.tenant] += num_gpus
    capacity = sum(node.num_gpus for node in state.nodes.values())
    return tenant_snapshots(state, at), dict(idle), dict(used), capacity


def _entitled(
    row: Mapping[str, Json] | None, total_weight: float, capacity: int
) -> float | None:
    """Return the GPUs that are a tenant's by weight among those with live jobs; None
    without live jobs.
    """
    if row is None or not row.get("num_jobs") or row["id"] == EVERYBODY:
        return None
    share = capacity * cast(float, row["weight"]) / total_weight
    quota = cast("int | None", row["quota_gpus"])
    return share if quota is None else min(share, float(quota))
