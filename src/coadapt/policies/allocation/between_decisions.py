"""Rounds in which a policy decides nothing, because it does so every few minutes
only.
"""

from coadapt.model import ClusterView, Plan
from coadapt.policies.allocation.capacity import Capacity, span
from coadapt.policies.allocation.counted_plan import counted_plan
from coadapt.policies.allocation.reasons import waits


def between_decisions(view: ClusterView, period_s: float) -> Plan:
    """Return the plan in which everybody stays, and jobs that wait get their minimum of
    what is free.

    period_s: how often the policy decides, for the sentences.
    """
    capacity = Capacity(view)
    notes = {}
    for job in view.jobs:
        if job.id not in capacity.counts and job.allocation:
            capacity.keep(job)
    ahead = f"GPUs are allocated every {period_s:g} s"
    for job in view.jobs:
        low = span(job)[0]
        if job.id in capacity.counts or capacity.give(job, low):
            notes[job.id] = ahead
        else:
            notes[job.id] = waits(job, low, capacity, ahead)
    return counted_plan(view, capacity, notes)
