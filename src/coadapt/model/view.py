"""All that a policy sees: a frozen picture of the cluster at the start of a round."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from coadapt.model.cluster import Allocation, JobId, Node
from coadapt.model.grant import NO_GRANT, Grant
from coadapt.model.job import JobSpec
from coadapt.model.measured import Measured, Usage
from coadapt.model.quick_init import quick_init
from coadapt.model.tenant import Tenant, TenantId, quotas_of, unconfigured


@quick_init
@dataclass(frozen=True, slots=True, kw_only=True)
class JobView:
    """One active job. Nothing here refers to live state: it pickles, and it is safe to keep."""

    id: JobId
    spec: JobSpec
    submitted_at: float
    grant: Grant = NO_GRANT
    """What the last order gave it; nothing if it waits or is being stopped."""
    measured: Measured = field(default_factory=Measured)
    """What its reports told."""
    usage: Usage = field(default_factory=Usage)
    """What it used so far, up to the instant of the view."""
    rescale_s: float = 30.0
    """Mean cost of its starts and rescales, s; the cluster's default before one was measured."""

    @property
    def allocation(self) -> Allocation:
        """The GPUs that it holds in the policy's eyes."""
        return self.grant.allocation


@quick_init
@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterView:
    """The cluster at instant `at` (s): live nodes by id, and active jobs by (submitted_at, id)."""

    at: float
    nodes: tuple[Node, ...]
    jobs: tuple[JobView, ...]
    tenants: Mapping[TenantId, Tenant] = field(default_factory=dict)
    """The tenants that the operator configured; ask `tenant` for any other."""

    @property
    def num_gpus(self) -> int:
        return sum(node.num_gpus for node in self.nodes)

    def tenant(self, tenant: TenantId) -> Tenant:
        """Return what is granted to `tenant`: weight 1 and no quota where nobody said anything else."""
        return self.tenants.get(tenant) or unconfigured(tenant)

    def quotas(self) -> dict[TenantId, int]:
        """Return the GPUs that each tenant with a quota may hold."""
        return quotas_of(self.tenants.values())
