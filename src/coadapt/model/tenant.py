"""Tenants, which own jobs, and what the operator grants them. The scheduler keeps the
grants, so they may change at any time.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache

from coadapt.model.budget_period import BudgetPeriod

TenantId = str

DEFAULT_TENANT: TenantId = "default"
EVERYBODY: TenantId = "*"
"""Owns no job: its quota is what all jobs together may hold."""
# Shares of GPUs are summed as fractions; this slack in GPUs absorbs their rounding.
SHARE_SLACK_GPUS = 1e-9
NUM_UNCONFIGURED_KEPT = 1024  # policies ask for the same few once per job and gift


@dataclass(frozen=True, slots=True, kw_only=True)
class Tenant:
    """A user or a team. The defaults are those of a tenant without settings."""

    id: TenantId = DEFAULT_TENANT
    weight: float = 1.0
    """Its weight in fair shares."""
    quota_gpus: int | None = None
    """The most GPUs that its jobs may hold at once; None: no limit."""
    priority: int = 0
    """Higher goes first, for policies that know priorities."""
    budget: float | None = None
    """What its jobs may cost, in the currency of the prices; None: no limit."""
    budget_period: BudgetPeriod | None = None
    """How often the budget is granted again; None: never."""
    value_of_time: float | None = None
    """What an hour of completion time of one of its jobs is worth, in the currency of
    the prices; None: what the sizer takes for all jobs.
    """

    def __post_init__(self) -> None:
        if not self.id:
            raise ValueError("Tenant.id must not be empty")
        if not (math.isfinite(self.weight) and self.weight > 0):
            raise ValueError(f"Tenant.weight must be finite and > 0, got {self.weight}")
        if self.quota_gpus is not None and self.quota_gpus < 0:
            raise ValueError(f"Tenant.quota_gpus must be >= 0, got {self.quota_gpus}")
        if self.budget is not None and not 0.0 <= self.budget < math.inf:
            raise ValueError(
                f"Tenant.budget must be finite and >= 0, got {self.budget}"
            )
        if self.budget_period is not None and self.budget is None:
            raise ValueError("Tenant.budget_period needs a budget")
        value = self.value_of_time
        if value is not None and not 0.0 <= value < math.inf:
            raise ValueError(
                f"Tenant.value_of_time must be finite and >= 0, got {value}"
            )

    def allows(self, num_gpus: int) -> bool:
        """Return whether one job may hold `num_gpus` GPUs when no other job holds
        any.
        """
        return self.quota_gpus is None or num_gpus <= self.quota_gpus


def value_of_time(tenants: Iterable[Tenant]) -> tuple[TenantId, float] | None:
    """Return the first tenant that has a value of time, and the value; None if none
    has.
    """
    for each in tenants:
        if each.value_of_time is not None:
            return each.id, each.value_of_time
    return None


@lru_cache(maxsize=NUM_UNCONFIGURED_KEPT)
def unconfigured(tenant: TenantId) -> Tenant:
    """Return the settings of a tenant that the operator did not configure."""
    return Tenant(id=tenant)


def beyond_quota(
    quotas: Mapping[TenantId, int], held: Iterable[tuple[TenantId, float]]
) -> set[TenantId]:
    """Return the tenants whose jobs hold more GPUs than the quota. held: tenant and
    GPUs of each job.
    """
    sums = dict.fromkeys(quotas, 0.0)
    for tenant, gpus in held:
        for name in (tenant, EVERYBODY):
            if name in sums:
                sums[name] += gpus
    return {
        name for name, gpus in sums.items() if gpus > quotas[name] + SHARE_SLACK_GPUS
    }


def quotas_of(tenants: Iterable[Tenant]) -> dict[TenantId, int]:
    """Return the most GPUs of each tenant that has a quota."""
    return {
        tenant.id: tenant.quota_gpus
        for tenant in tenants
        if tenant.quota_gpus is not None
    }
