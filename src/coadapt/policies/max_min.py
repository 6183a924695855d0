"""Max-min fairness: no job can have more without a job that has less getting still
less.
"""

from typing import ClassVar

from coadapt.model import ClusterView, JobId, JobView, Plan
from coadapt.policies.allocation.capacity import Capacity, span
from coadapt.policies.allocation.counted_plan import counted_plan
from coadapt.policies.allocation.progressive_filling import fair_shares, fill
from coadapt.policies.allocation.queue import by_priority
from coadapt.policies.allocation.reasons import go_first, waits
from coadapt.policies.allocation.turns import GAVEL_ROUND_S, Turns
from coadapt.policies.base import PolicyCard


class MaxMin:
    """Max-min fairness: elastic jobs share GPUs, rigid jobs share time. It needs no
    durations and no model.

    First each job gets its fewest GPUs, in the order of what it got of its fair share
    so far (mean GPUs held since it came, over the share). This deficit order gives
    gangs their time shares (Gavel, OSDI'20). Then GPUs go one at a time to the tenant
    with the fewest per weight, and there to the job with the fewest.
    turn_s: how long jobs keep their place, s, as in Gavel's rounds; 0: each round
    orders jobs again. It matters only if not all jobs fit.
    """

    card: ClassVar[PolicyCard] = PolicyCard(
        paper="classic", decides="GPU counts, order"
    )

    def __init__(self, *, turn_s: float = GAVEL_ROUND_S) -> None:
        self._turns = Turns(turn_s)

    def allocate(self, view: ClusterView) -> Plan:
        capacity = Capacity(view)
        shares = fair_shares(view)
        ahead = self._turns.ahead(view)
        queue = sorted(
            view.jobs,
            key=lambda job: (not ahead(job), _served(view, job, shares[job.id])),
        )
        notes: dict[JobId, str] = {}
        num_served = 0
        for job in by_priority(view, queue):
            low = span(job)[0]
            if job.id in capacity.counts or capacity.give(job, low):
                num_served += 1
                notes[job.id] = f"its fair share is {shares[job.id]:.3g}"
            else:
                first = go_first(num_served, "that got less of their fair share")
                notes[job.id] = waits(job, low, capacity, first)
        fill(
            [job for job in view.jobs if job.id in capacity.counts],
            capacity,
            lambda tenant: (
                sum(capacity.held_by(tenant).values()) / view.tenant(tenant).weight
            ),
            lambda job: capacity.counts[job.id],
        )
        return counted_plan(view, capacity, notes)


def _served(view: ClusterView, job: JobView, share: float) -> float:
    """Return the mean GPUs that `job` held since it came, over its fair share; 0 for
    one that just came.
    """
    age_s = view.at - job.submitted_at
    service_gpu_s = view.service_gpu_s(job)
    if age_s <= 0.0 or service_gpu_s <= 0.0:
        return 0.0
    return service_gpu_s / age_s / share if share > 0.0 else float("inf")
