"""Least attained service first: preemptive, by the GPU-seconds that jobs have held so
far.
"""

from typing import ClassVar

from coadapt.model import ClusterView, Plan
from coadapt.policies.allocation.queue import GangRule, admit, by_priority
from coadapt.policies.allocation.turns import GAVEL_ROUND_S, Turns
from coadapt.policies.base import PolicyCard


class Las:
    """LAS starts the job with the least attained service first. It needs no durations
    and no model. Equal jobs take turns, which the queues of `tiresias` prevent.

    turn_s: how long running jobs stay in front of waiting ones, s; 0: each round has a
    new order (the textbook). A job that never ran always comes first.
    """

    card: ClassVar[PolicyCard] = PolicyCard(paper="classic", decides="order")

    def __init__(self, *, turn_s: float = GAVEL_ROUND_S) -> None:
        self._turns = Turns(turn_s)

    def allocate(self, view: ClusterView) -> Plan:
        ahead = self._turns.ahead(view)
        queue = sorted(
            view.jobs, key=lambda job: (not ahead(job), view.service_gpu_s(job))
        )
        return admit(
            view,
            by_priority(view, queue),
            GangRule(ahead="that used fewer GPU-seconds"),
        )
