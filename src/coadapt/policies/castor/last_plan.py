"""The last plan, which a round keeps if a job has ended and no other job would gain
from its GPUs.
"""

# If neither GPUs nor quotas had a price in the last round, each job had its best size,
# whatever the others had. If a job ends within ROUND_S of that round, the other jobs
# still have their best sizes. On a cluster with room this is a quarter of all rounds.

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TypeVar

from coadapt.model import ClusterView, JobId, Node, Plan, Tenant, TenantId
from coadapt.policies.castor.situation import ROUND_S

_Each = TypeVar("_Each")


@dataclass(frozen=True, slots=True)
class LastPlan:
    """The last plan, and the cluster for which it was made.

    room: whether neither GPUs nor quotas had a price in that round.
    """

    plan: Plan = field(default_factory=Plan)
    at: float = -math.inf
    nodes: tuple[Node, ...] = ()
    tenants: Mapping[TenantId, Tenant] = field(default_factory=dict)
    num_jobs: int = 0
    room: bool = True

    @classmethod
    def of(cls, view: ClusterView, plan: Plan, *, room: bool) -> "LastPlan":
        """Return the plan of a round, to be kept."""
        return cls(plan, view.at, view.nodes, dict(view.tenants), len(view.jobs), room)

    def held(self, view: ClusterView) -> Plan | None:
        """Return the last plan without the jobs that have ended, None if a new plan is
        needed.
        """
        if not self._holds(view):
            return None
        here = {job.id for job in view.jobs}

        def present(of: Mapping[JobId, _Each]) -> dict[JobId, _Each]:
            return {job: each for job, each in of.items() if job in here}

        return replace(
            self.plan,
            allocations=present(self.plan.allocations),
            reasons=present(self.plan.reasons),
            application_times=present(self.plan.application_times),
        )

    def _holds(self, view: ClusterView) -> bool:
        """Return whether a job has ended, and nothing else has changed."""
        given = self.plan.allocations
        if view.at - self.at >= ROUND_S or not self.room:
            return False
        if view.nodes != self.nodes or view.tenants != self.tenants:
            return False
        if not len(view.jobs) < self.num_jobs == len(given):
            return False  # no job has ended, or one of them waited
        # A job that arrived, or does not hold what it was given, has another one.
        return all(given.get(job.id) == job.allocation for job in view.jobs)
