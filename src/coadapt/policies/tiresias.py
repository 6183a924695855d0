"""Tiresias (Gu et al., NSDI 2019): two-dimensional least attained service, discretised
into queues.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from coadapt.model import ClusterView, JobId, JobView, Plan
from coadapt.policies.allocation.pack import Pick
from coadapt.policies.allocation.queue import GangRule, admit
from coadapt.policies.base import PolicyCard
from coadapt.policies.predictors.gittins import GittinsIndex
from coadapt.policies.predictors.tensor_skew import tensor_skew

# 16 GPU-hours: the one threshold of the baseline in Pollux's simulator (OSDI'21
# artifact).
POLLUX_THRESHOLD_GPU_S = 57_600.0

FORMS = ("las", "gittins")
# Fewer ended jobs are too few to estimate the distribution of job lengths. Our own
# choice.
MIN_SAMPLES = 10


@dataclass(frozen=True, slots=True)
class _Entry:
    """When a job entered the first queue, and the service it had attained by then."""

    at: float
    service_gpu_s: float


class Tiresias:
    """Jobs with the least attained service go first. Jobs are in a few queues by
    attained service, so that equal jobs do not alternate.

    form: `las` knows nothing: within a queue, first in first out. `gittins` knows how
    long jobs were in the past: within a queue, the largest Gittins index for going on
    up to the queue's end.
    thresholds_gpu_s: attained service at which a job falls from queue i to the tail of
    queue i + 1. promote_knob: a waiting job of a lower queue returns to the tail of the
    first one when it has waited this many times as long as it ran, both since it last
    entered the first queue; 0 (the paper's test bed) is never.
    history_gpu_s: whole service of past jobs, for `gittins`; jobs that end are added,
    and until there are MIN_SAMPLES it is `las`. pack_limit: a job whose tensors are
    more skewed, or unknown, is put on as few nodes as possible, another on fragments of
    nodes; None: everybody on the emptiest nodes, as in the OSDI'21 artifact.

    Attained service is measured by the scheduler (`ClusterView.service_gpu_s`). It is
    not a sum of round lengths kept here, which would be lost with a restart of the
    scheduler, and wrong if a node is lost between two rounds. Without faults both are
    equal at every round.
    """

    card: ClassVar[PolicyCard] = PolicyCard(
        paper="Gu et al., Tiresias, NSDI 2019", decides="order; with pack_limit places"
    )

    def __init__(
        self,
        *,
        thresholds_gpu_s: Sequence[float] = (POLLUX_THRESHOLD_GPU_S,),
        promote_knob: float = 0.0,
        form: str = "las",
        history_gpu_s: Sequence[float] = (),
        pack_limit: float | None = None,
    ) -> None:
        thresholds = tuple(thresholds_gpu_s)
        if list(thresholds) != sorted(set(thresholds)) or any(
            bound <= 0 for bound in thresholds
        ):
            raise ValueError(
                f"thresholds_gpu_s must be > 0 and ascending, got {thresholds}"
            )
        if not promote_knob >= 0:
            raise ValueError(f"promote_knob must be >= 0, got {promote_knob}")
        if form not in FORMS:
            raise ValueError(f"form must be {' or '.join(FORMS)}, got {form!r}")
        if pack_limit is not None and not 0.0 <= pack_limit <= 1.0:
            raise ValueError(f"pack_limit must be within 0..1, got {pack_limit}")
        self._thresholds = thresholds
        self._promote_knob = promote_knob
        self._pack_limit = pack_limit
        self._index = GittinsIndex(history_gpu_s) if form == "gittins" else None
        self._queues: tuple[dict[JobId, _Entry], ...] = tuple(
            {} for _ in range(len(thresholds) + 1)
        )
        self._service_gpu_s: dict[JobId, float] = {}

    def allocate(self, view: ClusterView) -> Plan:
        jobs = {job.id: job for job in view.jobs}
        self._forget_all_but(view)
        for job in view.jobs:
            self._queue_up(job, view.at, view.service_gpu_s(job))
        order = [
            jobs[job_id]
            for level in range(len(self._queues))
            for job_id in self._ordered(level)
        ]
        rule = GangRule(ahead="in a higher queue or before it in its own")
        if self._pack_limit is None:
            return admit(view, order, rule)
        limit = self._pack_limit
        picks = {
            job.id: Pick.FRAGMENTS if _spreads_well(job, limit) else Pick.FEWEST
            for job in order
        }
        return admit(view, order, rule, picks=picks)

    def _ordered(self, level: int) -> list[JobId]:
        """Return the jobs of queue `level` in the order in which they get GPUs."""
        queue = list(self._queues[level])
        index = self._index
        if index is None or index.num_samples < MIN_SAMPLES:
            return queue
        bound = (*self._thresholds, math.inf)[level]
        return sorted(
            queue, key=lambda job_id: -index(self._service_gpu_s[job_id], bound)
        )

    def _forget_all_but(self, view: ClusterView) -> None:
        jobs = {job.id for job in view.jobs}
        for queue in self._queues:
            for job_id in [job_id for job_id in queue if job_id not in jobs]:
                del queue[job_id]
        if self._index is not None:
            for job_id in sorted(set(self._service_gpu_s) - jobs):
                if (service_gpu_s := self._service_gpu_s[job_id]) > 0.0:
                    self._index.add(service_gpu_s)
            self._service_gpu_s = {job.id: view.service_gpu_s(job) for job in view.jobs}

    def _queue_up(self, job: JobView, at: float, attained_gpu_s: float) -> None:
        """Put `job` at the tail of the queue that it belongs to, unless it is in that
        queue already.
        """
        level = next(
            (level for level, queue in enumerate(self._queues) if job.id in queue), None
        )
        if level is None:
            level = 0
            self._queues[0][job.id] = _Entry(job.submitted_at, 0.0)
        entry = self._queues[level][job.id]
        service_gpu_s = attained_gpu_s - entry.service_gpu_s
        deserved = sum(service_gpu_s >= bound for bound in self._thresholds)
        if deserved > level:
            del self._queues[level][job.id]
            self._queues[deserved][job.id] = entry
        elif (
            level
            and not job.allocation
            and self._starves(job, at - entry.at, service_gpu_s)
        ):
            del self._queues[level][job.id]
            self._queues[0][job.id] = _Entry(at, attained_gpu_s)

    def _starves(
        self, job: JobView, since_entry_s: float, service_gpu_s: float
    ) -> bool:
        """Return whether `job` waited at least promote_knob times as long as it ran,
        both since it last entered the first queue.
        """
        ran_s = service_gpu_s / job.spec.replicas.requested
        return (
            self._promote_knob > 0
            and since_entry_s - ran_s >= self._promote_knob * ran_s
        )


def _spreads_well(job: JobView, pack_limit: float) -> bool:
    skew = tensor_skew(job.spec.application)
    return skew is not None and skew <= pack_limit
