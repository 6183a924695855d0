"""A question to a forecast: what is to be different from now on."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from coadapt.core.events import (
    CancelRequested,
    Event,
    JobSubmitted,
    NodeJoined,
    NodeLost,
    TenantConfigured,
)
from coadapt.core.state import SchedulerState
from coadapt.model import InputError, JobId, JobSpec, Node, Tenant, TenantId


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """What is different from now on. policy: its name, "" for the one in force.

    nodes: how many more nodes like the largest one, fewer if negative. gpus: a node of
    so many GPUs more. submit: jobs that come now. priorities, first: jobs that have
    another priority, or came before all others.
    """

    name: str = "as it is"
    policy: str = ""
    nodes: int = 0
    gpus: int = 0
    quotas: Mapping[TenantId, int | None] = field(default_factory=dict)
    submit: Mapping[JobId, JobSpec] = field(default_factory=dict)
    without: tuple[JobId, ...] = ()
    priorities: Mapping[JobId, int] = field(default_factory=dict)
    first: tuple[JobId, ...] = ()

    def prepare(self, state: SchedulerState) -> None:
        """Change a copy of the state in what no event can change. Raises InputError."""
        for job in (*self.priorities, *self.first, *self.without):
            if job not in state.jobs:
                raise InputError("job", job, "the id of a live job")
        for job, priority in self.priorities.items():
            record = state.jobs[job]
            record.spec = replace(record.spec, priority=priority)
        for job in self.first:
            earliest = min(each.submitted_at for each in state.active)
            state.jobs[job].submitted_at = earliest - 1.0
        state.active.sort(key=lambda job: (job.submitted_at, job.id))

    def events(self, state: SchedulerState, at: float) -> list[Event]:
        """Return what happens at `at` (s), in order. Raises InputError."""
        found: list[Event] = []
        for tenant, quota in self.quotas.items():
            known = state.tenants.get(tenant) or Tenant(id=tenant)
            changed = replace(known, quota_gpus=quota)
            found.append(TenantConfigured(at=at, tenant=changed))
        found += [NodeJoined(at=at, node=node) for node in self._new_nodes(state)]
        found += [NodeLost(at=at, node=node) for node in self._lost_nodes(state)]
        found += [CancelRequested(at=at, job=job) for job in self.without]
        found += [
            JobSubmitted(at=at, job=job, spec=spec) for job, spec in self.submit.items()
        ]
        return found

    def _new_nodes(self, state: SchedulerState) -> list[Node]:
        if self.nodes <= 0 and self.gpus <= 0:
            return []
        if not state.nodes:
            raise InputError("--nodes", str(self.nodes), "a cluster that has a node")
        like = max(state.nodes.values(), key=lambda node: (node.num_gpus, node.id))
        made = [
            replace(like, id=f"what-if-{number}")
            for number in range(max(self.nodes, 0))
        ]
        if self.gpus > 0:
            made.append(replace(like, id="what-if-gpus", num_gpus=self.gpus))
        return made

    def _lost_nodes(self, state: SchedulerState) -> list[str]:
        count = max(-self.nodes, 0)
        if count >= len(state.nodes) and count:
            allowed = f"fewer than the {len(state.nodes)} nodes that there are"
            raise InputError("--nodes", str(self.nodes), allowed)
        return sorted(state.nodes)[len(state.nodes) - count :] if count else []
