"""The last round, and when it holds: a job has gone, and nobody that is there would
gain by its GPUs.
"""

# Where neither GPUs nor quotas had a price in the last round, each job had its best
# size whatever the others had. When one of them ends soon after, the best of the others
# is what they have. On a cluster with room that is a quarter of all rounds. What else
# changed meanwhile (noise, what is left) waits, as between any two.

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from coadapt.model import ClusterView, JobId, Plan, Tenant, TenantId
from coadapt.policies.castor.ground import Ground

HOLDS_S = 60.0  # so long after a planned round at most (1)

Value = TypeVar("Value")


@dataclass(slots=True)
class LastRound:
    """The last round that was planned: its ground, when it was, for whom, what it gave;
    room: as of Sizes.
    """

    ground: Ground | None = None
    at: float = -math.inf
    tenants: Mapping[TenantId, Tenant] = field(default_factory=dict)
    num_jobs: int = 0
    plan: Plan = field(default_factory=Plan)
    room: bool = True

    def note(
        self, view: ClusterView, ground: Ground, plan: Plan, *, room: bool
    ) -> Plan:
        """Keep a planned round, and return its plan."""
        self.ground = ground
        self.at = view.at
        self.plan = plan
        self.room = room
        self.tenants = dict(view.tenants)
        self.num_jobs = len(view.jobs)
        return plan

    def holds(self, view: ClusterView) -> Plan | None:
        """Return the last plan without the jobs that have gone; None: this round has to
        be planned.
        """
        if view.at - self.at >= HOLDS_S or self.ground is None or not self.room:
            return None
        if view.nodes != self.ground.nodes or view.tenants != self.tenants:
            return None
        given = self.plan.allocations
        fewer = len(view.jobs) < self.num_jobs == len(given)
        if not fewer or any(given.get(job.id) != job.allocation for job in view.jobs):
            # nobody has gone; or somebody came, waited, or holds something else
            return None
        here = {job.id for job in view.jobs}

        def left(values: Mapping[JobId, Value]) -> dict[JobId, Value]:
            return {job: value for job, value in values.items() if job in here}

        return Plan(
            allocations=left(given),
            reasons=left(self.plan.reasons),
            kin_times=left(self.plan.kin_times),
            diagnostics=self.plan.diagnostics,
        )
