"""The last plan, and whether it still holds: a job has gone, and no other would gain
by its GPUs.
"""

# Where neither GPUs nor quotas had a price in the last round, each job had its best
# size whatever the others had. When one of them ends soon after, the best of the others
# is what they have. On a cluster with room that is a quarter of all rounds.

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from coadapt.model import ClusterView, Node, Plan, Tenant, TenantId
from coadapt.policies.castor.situation import ROUND_S


@dataclass(slots=True)
class LastPlan:
    """The last plan, and for what it was made.

    room: whether neither GPUs nor quotas had a price in it.
    """

    plan: Plan = field(default_factory=Plan)
    at: float = -math.inf
    nodes: tuple[Node, ...] = ()
    tenants: Mapping[TenantId, Tenant] = field(default_factory=dict)
    num_jobs: int = 0
    room: bool = True

    def note(self, view: ClusterView, plan: Plan, *, room: bool) -> None:
        """Keep the plan of a round."""
        self.plan = plan
        self.at = view.at
        self.nodes = view.nodes
        self.tenants = dict(view.tenants)
        self.num_jobs = len(view.jobs)
        self.room = room

    def held(self, view: ClusterView) -> Plan | None:
        """Return the last plan without the jobs that have gone; None: it does not
        hold.
        """
        given = self.plan.allocations
        is_new = view.at - self.at >= ROUND_S or not self.room
        if is_new or view.nodes != self.nodes or view.tenants != self.tenants:
            return None
        if not len(view.jobs) < self.num_jobs == len(given):
            return None  # no job has gone, or one waited
        if any(given.get(job.id) != job.allocation for job in view.jobs):
            return None  # one came, or holds something else
        here = {job.id for job in view.jobs}
        return Plan(
            allocations={job: each for job, each in given.items() if job in here},
            reasons={
                job: each for job, each in self.plan.reasons.items() if job in here
            },
            application_times={
                job: each
                for job, each in self.plan.application_times.items()
                if job in here
            },
            diagnostics=self.plan.diagnostics,
        )
