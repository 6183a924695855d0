"""Tiresias (Gu et al., NSDI 2019): two-dimensional least attained service, discretised into queues."""

from collections.abc import Sequence
from dataclasses import dataclass

from coadapt.model import ClusterView, JobId, JobView, Plan
from coadapt.policies.gang import GangRule, admit

# 16 GPU-hours: the one threshold of the baseline in Pollux's simulator (OSDI'21 artifact).
POLLUX_THRESHOLD_GPU_S = 57_600.0


@dataclass(frozen=True, slots=True)
class _Entry:
    """When a job entered the first queue, and the service it had attained by then."""

    at: float
    service_gpu_s: float


class Tiresias:
    """Jobs that used the fewest GPU-seconds first, in a few queues so that equal jobs do not alternate.

    thresholds_gpu_s: attained service at which a job falls from queue i to the tail of queue i + 1.
    promote_knob: a waiting job of a lower queue returns to the tail of the first one when it has waited this
    many times as long as it ran, both since it last entered the first queue; 0 (the paper's test bed) is
    never.

    Attained service is what the scheduler measured (`JobView.attained_service_gpu_s`), not a sum of round
    lengths kept here: it survives a restart of the scheduler, and it is right where a node was lost between
    two rounds. Without faults both are equal at every round.
    """

    def __init__(
        self, *, thresholds_gpu_s: Sequence[float] = (POLLUX_THRESHOLD_GPU_S,), promote_knob: float = 0.0
    ) -> None:
        thresholds = tuple(thresholds_gpu_s)
        if list(thresholds) != sorted(set(thresholds)) or any(bound <= 0 for bound in thresholds):
            raise ValueError(f"thresholds_gpu_s must be > 0 and ascending, got {thresholds}")
        if not promote_knob >= 0:
            raise ValueError(f"promote_knob must be >= 0, got {promote_knob}")
        self._thresholds = thresholds
        self._promote_knob = promote_knob
        self._queues: tuple[dict[JobId, _Entry], ...] = tuple({} for _ in range(len(thresholds) + 1))

    def allocate(self, view: ClusterView) -> Plan:
        jobs = {job.id: job for job in view.jobs}
        self._forget_all_but(jobs)
        for job in view.jobs:
            self._queue_up(job, view.at)
        order = [jobs[job_id] for queue in self._queues for job_id in queue]
        return admit(view, order, GangRule(ahead="in a higher queue or before it in its own"))

    def _forget_all_but(self, jobs: dict[JobId, JobView]) -> None:
        for queue in self._queues:
            for job_id in [job_id for job_id in queue if job_id not in jobs]:
                del queue[job_id]

    def _queue_up(self, job: JobView, at: float) -> None:
        """Put `job` at the tail of the queue that it belongs to, unless it stands there already."""
        level = next((level for level, queue in enumerate(self._queues) if job.id in queue), None)
        if level is None:
            level = 0
            self._queues[0][job.id] = _Entry(job.submitted_at, 0.0)
        entry = self._queues[level][job.id]
        service_gpu_s = job.attained_service_gpu_s - entry.service_gpu_s
        deserved = sum(service_gpu_s >= bound for bound in self._thresholds)
        if deserved > level:
            del self._queues[level][job.id]
            self._queues[deserved][job.id] = entry
        elif level and not job.allocation and self._starves(job, at - entry.at, service_gpu_s):
            del self._queues[level][job.id]
            self._queues[0][job.id] = _Entry(at, job.attained_service_gpu_s)

    def _starves(self, job: JobView, since_entry_s: float, service_gpu_s: float) -> bool:
        """Return whether `job` waited PromoteKnob times as long as it ran since its last entry."""
        ran_s = service_gpu_s / job.spec.replicas.requested
        return self._promote_knob > 0 and since_entry_s - ran_s >= self._promote_knob * ran_s
