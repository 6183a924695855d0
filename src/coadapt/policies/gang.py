"""One engine for all policies that put jobs in an order and give each the GPUs that it requested, or none.

First in first out, shortest first and Tiresias differ in the order, in the rule for a job that does not fit,
and in whether running jobs may be preempted: that is all that their files say.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from coadapt.model import ClusterView, JobView, Plan
from coadapt.policies.counted import counted_plan
from coadapt.policies.reasons import go_first, plural, waits
from coadapt.policies.room import Room, Verdict, span


@dataclass(frozen=True, slots=True, kw_only=True)
class GangRule:
    """How a queue is served.

    ahead: which jobs go first, to complete the sentence "3 jobs … go first". backfill: later jobs may pass
    one that does not fit. preempt: running jobs must win their GPUs again each round, else they keep them.
    """

    ahead: str
    backfill: bool = True
    preempt: bool = True


def admit(view: ClusterView, queue: Iterable[JobView], rule: GangRule) -> Plan:
    """Return the plan in which the jobs of `queue`, in its order, get the GPUs they requested while they fit.

    Those that must be placed anew are placed in this order too (as Tiresias in Pollux's simulator).
    `queue` holds each job of `view` once. Only a job that waits for free GPUs stops those behind it (without
    backfill): one that waits for its tenant's quota, or for a larger cluster, harms nobody.
    """
    room = Room(view)
    order = list(queue)
    if not rule.preempt:
        for job in order:
            if job.id not in room.counts:
                room.keep(job)
    notes = {}
    num_served = 0
    blocker: JobView | None = None
    for job in order:
        count = _requested(job)
        if job.id in room.counts or (blocker is None and room.give(job, count)):
            num_served += 1
        elif blocker is not None:
            needs = plural(blocker.spec.replicas.requested, "GPU")
            notes[job.id] = f"waits behind {blocker.spec.name}, which needs {needs}"
        else:
            notes[job.id] = waits(job, count, room, go_first(num_served, rule.ahead))
            if not rule.backfill and room.verdict(job, count) is Verdict.BUSY:
                blocker = job
    return counted_plan(view, room, notes, order=[job.id for job in order])


def _requested(job: JobView) -> int:
    low, high = span(job)
    return min(max(job.spec.replicas.requested, low), high)
