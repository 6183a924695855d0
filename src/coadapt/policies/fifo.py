"""First in, first out: jobs start in order of arrival on the GPUs they requested, and run to their end."""

from coadapt.model import ClusterView, Plan
from coadapt.policies.gang import GangRule, admit


class Fifo:
    """Without preemption. Strict unless `backfill`: a job that does not fit stops those behind it."""

    def __init__(self, *, backfill: bool = False) -> None:
        self._rule = GangRule(ahead="that came earlier", backfill=backfill, preempt=False)

    def allocate(self, view: ClusterView) -> Plan:
        return admit(view, view.jobs, self._rule)
