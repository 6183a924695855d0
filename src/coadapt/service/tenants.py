"""Tenants over HTTP: weight, quota, budget and value of time of each, and what its jobs
hold.
"""

import asyncio
from collections import Counter
from collections.abc import Mapping
from typing import Annotated

from fastapi import APIRouter, Path, Request
from pydantic import BaseModel, ConfigDict, Field, JsonValue

from coadapt.core.accounting import num_gpus_held
from coadapt.core.costs import budget_uses, cost_of, spent
from coadapt.core.events import TenantConfigured
from coadapt.core.lifecycle import ENDED
from coadapt.core.state import SchedulerState
from coadapt.model import InputError, Tenant, TenantId
from coadapt.model.bounds import LABEL_ALLOWED, is_label
from coadapt.model.budget_period import BudgetPeriod
from coadapt.model.tenant import EVERYBODY, value_of_time
from coadapt.model.wire import Json, to_json
from coadapt.service.bodies import StrictRoute
from coadapt.service.limits import (
    COST_MAX,
    GPUS_MAX,
    NAME_LENGTH_MAX,
    PRIORITY_MAX,
    TENANTS_MAX,
    WEIGHT_MAX,
)
from coadapt.service.live_loop import LiveLoop, commit
from coadapt.service.submission import NO_PRICES

PERIODS = ", ".join(BudgetPeriod)
NEEDS_BUDGET = "null, as there is no budget; or name a budget, too"

router = APIRouter(
    prefix="/v1/tenants", route_class=StrictRoute, redirect_slashes=False
)

TenantName = Annotated[TenantId, Path(min_length=1, max_length=NAME_LENGTH_MAX)]


class TenantBody(BaseModel):
    """The settings of a tenant. Fields that are left out have the values of a tenant
    without settings.
    """

    model_config = ConfigDict(extra="forbid", strict=True)
    weight: float = Field(
        default=1.0,
        gt=0,
        le=WEIGHT_MAX,
        description=f"a number > 0, at most {WEIGHT_MAX}: its fair share",
    )
    quota_gpus: int | None = Field(
        default=None,
        ge=0,
        le=GPUS_MAX,
        description=f"a whole number in 0..{GPUS_MAX}, or null for no limit",
    )
    priority: int = Field(
        default=0,
        ge=-PRIORITY_MAX,
        le=PRIORITY_MAX,
        description=f"a whole number in {-PRIORITY_MAX}..{PRIORITY_MAX}; higher goes first",
    )
    budget: float | None = Field(
        default=None,
        ge=0,
        le=COST_MAX,
        description=f"a number in 0..{COST_MAX:g}, or null for no limit",
    )
    budget_period: BudgetPeriod | None = Field(
        default=None,
        strict=False,
        description=f"{PERIODS}: how often the budget is granted again, in UTC; or null "
        "for never",
    )
    value_of_time: float | None = Field(
        default=None,
        ge=0,
        le=COST_MAX,
        description=f"a number in 0..{COST_MAX:g}: what an hour of a job's completion "
        "time is worth, or null for the sizer's",
    )


@router.put("/{tenant}")
async def configure(
    request: Request, tenant: TenantName, body: TenantBody
) -> dict[str, JsonValue]:
    """Grant a tenant something else; it counts from the next round on, which is brought
    forward.
    """
    if not is_label(tenant):
        raise InputError("tenant", tenant, LABEL_ALLOWED)
    if body.budget_period is not None and body.budget is None:
        raise InputError("budget_period", body.budget_period.value, NEEDS_BUDGET)
    granted = Tenant(id=tenant, **body.model_dump())
    loop: LiveLoop = request.app.state.service.loop
    known, priced = await asyncio.to_thread(
        loop.read, lambda state: (set(state.tenants), state.prices is not None)
    )
    if body.budget is not None and not priced:
        raise InputError("budget", body.budget, NO_PRICES)
    if tenant not in known and len(known) >= TENANTS_MAX:
        raise InputError(
            "tenant",
            tenant,
            f"one of the {len(known)} existing tenants; the scheduler keeps no more",
        )
    await commit(loop, TenantConfigured(at=loop.now(), tenant=granted))
    (snapshot,) = await asyncio.to_thread(
        loop.read, lambda state: tenant_snapshots(state, loop.now(), {tenant})
    )
    return snapshot


@router.get("")
async def tenants(request: Request) -> dict[str, JsonValue]:
    """All tenants that were configured or own jobs that have not ended."""
    loop: LiveLoop = request.app.state.service.loop
    rows = await asyncio.to_thread(
        loop.read, lambda state: tenant_snapshots(state, loop.now())
    )
    return {"tenants": list(rows)}


def tenant_snapshots(
    state: SchedulerState, at: float, only: set[TenantId] | None = None
) -> list[dict[str, Json]]:
    """Return tenants as plain data, by name: what is granted, what live jobs hold, and
    what they have cost up to `at` (s). `only`: of these.

    budget_spent: what counts against the budget; None for a tenant without one.
    """
    at = max(at, state.at)
    costs = spent(state, at)
    uses = budget_uses(state, at)
    held: Counter[TenantId] = Counter()
    num_jobs: Counter[TenantId] = Counter()
    num_barred: Counter[TenantId] = Counter()
    gpus: dict[TenantId, float] = {}
    for job in state.jobs.values():
        if job.state not in ENDED:
            owner = state.tenants.get(job.spec.tenant)
            if owner is not None and not owner.allows(job.spec.replicas.min):
                num_barred[owner.id] += 1
            for tenant in (job.spec.tenant, EVERYBODY):
                num_jobs[tenant] += 1
                held[tenant] += bool(job.ordered)
                gpus[tenant] = gpus.get(tenant, 0.0) + num_gpus_held(job)
    names = (
        only
        if only is not None
        else {*state.tenants, *num_jobs} - ({EVERYBODY} - state.tenants.keys())
    )
    return [
        {
            **_granted(state.tenants.get(name) or Tenant(id=name)),
            "num_gpus": gpus.get(name, 0.0),
            "num_jobs": num_jobs[name],
            "num_jobs_with_gpus": held[name],
            "num_jobs_beyond_quota": num_barred[name],
            "cost": cost_of(costs, name),
            "budget_spent": uses[name].cost if name in uses else None,
        }
        for name in sorted(names)
    ]


def value_of_a_job(
    tenants: Mapping[TenantId, Tenant], tenant: TenantId
) -> dict[str, Json] | None:
    """Return what an hour of a job of `tenant` is worth, and which tenant's setting
    that is; None if the sizer's own value counts.
    """
    names = (tenant, EVERYBODY)
    found = value_of_time(tenants[name] for name in names if name in tenants)
    return None if found is None else {"tenant": found[0], "value": found[1]}


def _granted(tenant: Tenant) -> dict[str, Json]:
    data = to_json(tenant)
    assert isinstance(data, dict)
    return data
