"""Shortest remaining service first: preemptive, by remaining time x GPUs on the requested count."""

from typing import ClassVar

from coadapt.model import ClusterView, JobView, Plan
from coadapt.policies.base import PolicyCard
from coadapt.policies.giving.queue import GangRule, admit, by_priority, requested_gpus


class Srsf:
    """Needs a forecast; jobs without one come behind, those with the least attained service first.

    The oracle that gang schedulers compare themselves with (Tiresias, NSDI'19): a job that is short but wide
    holds up as many others as one that is long and narrow.
    """

    card: ClassVar[PolicyCard] = PolicyCard(paper="classic", decides="order", oracle="time left")

    def allocate(self, view: ClusterView) -> Plan:
        queue = by_priority(view, sorted(view.jobs, key=_key))
        return admit(view, queue, GangRule(ahead="ahead of it by remaining GPU time"))


def _key(job: JobView) -> tuple[bool, float]:
    """Ties keep the view's order: sorting is stable."""
    forecast = job.measured.forecast
    if forecast is None:
        return True, job.usage.attained_service_gpu_s
    count = requested_gpus(job)
    return False, forecast.remaining_s(count) * count
