"""Shortest remaining time first: preemptive, by the time left on the requested GPUs."""

from typing import ClassVar

from coadapt.model import ClusterView, JobView, Plan
from coadapt.policies.base import PolicyCard
from coadapt.policies.giving.queue import GangRule, admit


class Srtf:
    """Needs a forecast; jobs without one come behind, those with the least attained service first.

    Time counts at the requested replicas even for an elastic job, which this policy never rescales.
    """

    card: ClassVar[PolicyCard] = PolicyCard(paper="classic", decides="order", oracle="time left")

    def allocate(self, view: ClusterView) -> Plan:
        return admit(view, sorted(view.jobs, key=_key), GangRule(ahead="ahead of it by remaining time"))


def _key(job: JobView) -> tuple[bool, float]:
    """Ties keep the view's order: sorting is stable."""
    forecast = job.measured.forecast
    if forecast is None:
        return True, job.usage.attained_service_gpu_s
    return False, forecast.remaining_s(job.spec.replicas.requested)
