"""Shortest remaining time first: preemptive, by the time left on the requested GPUs."""

from typing import ClassVar

from coadapt.model import ClusterView, JobView, Plan
from coadapt.policies.allocation.queue import GangRule, admit
from coadapt.policies.allocation.turns import GAVEL_ROUND_S, Turns
from coadapt.policies.base import PolicyCard
from coadapt.policies.predictors.declared import forecast_of


class Srtf:
    """Needs a forecast or a declared length; jobs without one come behind, the least
    attained service first.

    turn_s: how long a running job stays in front of waiting ones, s, among jobs without
    a forecast. Time counts at the requested replicas even for an elastic job, which
    this policy never rescales.
    """

    card: ClassVar[PolicyCard] = PolicyCard(
        paper="classic", decides="order", oracle="time left"
    )

    def __init__(self, *, turn_s: float = GAVEL_ROUND_S) -> None:
        self._turns = Turns(turn_s)

    def allocate(self, view: ClusterView) -> Plan:
        return admit(
            view,
            self._turns.by_time_left(view, _left_s),
            GangRule(ahead="ahead of it by remaining time"),
        )


def _left_s(job: JobView) -> float | None:
    forecast = forecast_of(job)
    return (
        None if forecast is None else forecast.remaining_s(job.spec.replicas.requested)
    )
