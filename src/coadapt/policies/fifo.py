"""First in, first out: jobs start in order of arrival on the GPUs they requested, and
run to their end.
"""

from typing import ClassVar

from coadapt.model import ClusterView, Plan
from coadapt.policies.allocation.queue import GangRule, admit
from coadapt.policies.base import PolicyCard


class Fifo:
    """Without preemption. Strict: a job that does not fit stops those behind it.

    backfill: those behind it may use what is free.
    """

    card: ClassVar[PolicyCard] = PolicyCard(paper="classic", decides="order")

    def __init__(self, *, backfill: bool = False) -> None:
        self._rule = GangRule(
            ahead="that came earlier", backfill=backfill, preempt=False
        )

    def allocate(self, view: ClusterView) -> Plan:
        return admit(view, view.jobs, self._rule)
