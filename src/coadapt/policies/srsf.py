"""Shortest remaining service first: preemptive, by remaining time x GPUs on the
requested count.
"""

from typing import ClassVar

from coadapt.model import ClusterView, JobView, Plan
from coadapt.policies.allocation.queue import (
    GangRule,
    admit,
    by_priority,
    requested_gpus,
)
from coadapt.policies.allocation.turns import GAVEL_ROUND_S, Turns
from coadapt.policies.base import PolicyCard
from coadapt.policies.predictors.declared import forecast_of


class Srsf:
    """SRSF starts the job with the least remaining GPU time first. Jobs without a
    forecast or declared length come last, the least attained service first.

    Gang schedulers compare themselves with this oracle (Tiresias, NSDI'19): a short,
    wide job holds up as many others as a long, narrow one. turn_s: among jobs of
    unknown length, a running job stays in front of waiting ones for this time, s.
    """

    card: ClassVar[PolicyCard] = PolicyCard(
        paper="classic", decides="order", oracle="time left"
    )

    def __init__(self, *, turn_s: float = GAVEL_ROUND_S) -> None:
        self._turns = Turns(turn_s)

    def allocate(self, view: ClusterView) -> Plan:
        queue = by_priority(view, self._turns.by_time_left(view, _left_gpu_s))
        return admit(view, queue, GangRule(ahead="ahead of it by remaining GPU time"))


def _left_gpu_s(job: JobView) -> float | None:
    forecast = forecast_of(job)
    count = requested_gpus(job)
    return None if forecast is None else forecast.remaining_s(count) * count
