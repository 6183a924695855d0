"""GPU-hours and their cost over HTTP, by tenant, job, application or day."""

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Annotated, Literal, NamedTuple, cast

from fastapi import APIRouter, Query, Request
from pydantic import JsonValue

from coadapt.core.costs import budget_uses
from coadapt.core.lifecycle import ENDED
from coadapt.core.state import SchedulerState
from coadapt.model import JobId
from coadapt.model.wire import Json
from coadapt.runtime.buying_picture import buying_picture
from coadapt.runtime.job_history import HeldGpus, held_gpus_of, held_gpus_of_ended
from coadapt.runtime.job_index import JobIndex
from coadapt.service.bodies import StrictRoute
from coadapt.service.limits import SECONDS_MAX

HOUR_S = 3_600.0

By = Literal["tenant", "job", "application", "day"]

router = APIRouter(prefix="/v1/usage", route_class=StrictRoute, redirect_slashes=False)


class Owner(NamedTuple):
    """A job, and what its GPU-hours are added up by."""

    job: JobId
    tenant: str
    application: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """A job held `num_gpus` from `start` to `end`, s since 1970."""

    owner: Owner
    start: float
    end: float
    num_gpus: float
    per_h: float = 0.0
    """What they cost per hour."""

    @property
    def gpu_s(self) -> float:
        return self.num_gpus * (self.end - self.start)

    @property
    def cost(self) -> float:
        return self.per_h * (self.end - self.start) / HOUR_S


@router.get("")
async def usage(
    request: Request,
    by: By = "tenant",
    since: Annotated[float, Query(ge=0, le=SECONDS_MAX)] = 0.0,
) -> dict[str, JsonValue]:
    """GPU-hours held by tenant, job, application or day (of the scheduler's time zone),
    from `since` (s since 1970) until now, and what they cost at the prices of then.
    They add up to GPUs held times wall time. Without prices `currency` is null.
    `budgets`: how much of each tenant's budget is spent and left now.
    `buying`: node-hours and cost of bought nodes, since offers were configured.
    """
    service = request.app.state.service
    at = service.loop.now()
    live, prices, budgets, buying = await asyncio.to_thread(
        service.loop.read,
        lambda state: (
            _live_owners(state),
            state.prices,
            budget_rows(state, at),
            buying_picture(state, at),
        ),
    )
    rows = await asyncio.to_thread(usage_rows, service.index, live, by, since, at)
    currency = None if prices is None else prices.currency
    about = {"by": by, "since": since, "until": at, "currency": currency}
    return {
        **about,
        "rows": [*rows],
        "budgets": [*budgets],
        "buying": cast(JsonValue, buying),
    }


def budget_rows(state: SchedulerState, at: float) -> list[dict[str, Json]]:
    """Return how much of each tenant's budget is spent and left at `at` (s), by name.

    period, since, until (s since 1970): the present period of the budget; None for a
    budget without a period. left: negative if the tenant has spent more than the
    budget. Empty without prices.
    """
    if state.prices is None:
        return []
    return [
        {
            "tenant": name,
            "budget": use.budget,
            "period": None if use.period is None else use.period.period.value,
            "since": None if use.period is None else use.period.begins_at,
            "until": None if use.period is None else use.period.ends_at,
            "spent": use.cost,
            "left": use.budget - use.cost,
            "currency": state.prices.currency,
        }
        for name, use in budget_uses(state, max(at, state.at)).items()
    ]


def usage_rows(
    index: JobIndex, live: list[Owner], by: By, since: float, at: float
) -> list[dict[str, Json]]:
    """Return the GPU-hours and the cost of each key, the most GPU-hours first."""
    keys: dict[By, Callable[[Held], str]] = {
        "tenant": lambda held: held.owner.tenant,
        "job": lambda held: held.owner.job,
        "application": lambda held: held.owner.application,
        "day": lambda held: _day(held.start),
    }
    key_of = keys[by]
    gpu_s: dict[str, float] = {}
    cost: dict[str, float] = {}
    for held in _all_held(index, live, since, at):
        for part in _by_day(held) if by == "day" else (held,):
            key = key_of(part)
            gpu_s[key] = gpu_s.get(key, 0.0) + part.gpu_s
            cost[key] = cost.get(key, 0.0) + part.cost
    order = sorted(gpu_s, key=lambda key: key if by == "day" else (-gpu_s[key], key))
    return [
        {"key": key, "gpu_hours": gpu_s[key] / HOUR_S, "cost": cost[key]}
        for key in order
    ]


def _live_owners(state: SchedulerState) -> list[Owner]:
    return [
        Owner(job.id, job.spec.tenant, job.spec.application)
        for job in state.jobs.values()
        if job.state not in ENDED
    ]


def _all_held(
    index: JobIndex, live: list[Owner], since: float, at: float
) -> Iterator[Held]:
    for owner in live:
        yield from _cut(owner, held_gpus_of(index, owner.job, at), since)
    seen = {owner.job for owner in live}
    for ended, stretches in held_gpus_of_ended(index, since):
        if ended.job not in seen:
            owner = Owner(ended.job, ended.tenant, ended.application)
            yield from _cut(owner, stretches, since)


def _cut(owner: Owner, stretches: list[HeldGpus], since: float) -> Iterator[Held]:
    """Yield what of the stretches lies after `since` (s)."""
    for held in stretches:
        start = max(held.start, since)
        if held.end > start:
            yield Held(
                owner=owner,
                start=start,
                end=held.end,
                num_gpus=held.num_gpus,
                per_h=held.per_h,
            )


def _by_day(held: Held) -> Iterator[Held]:
    """Yield the parts of a stretch, one for each day that it touches."""
    start = held.start
    while start < held.end:
        end = min(_next_midnight(start), held.end)
        yield replace(held, start=start, end=end)
        start = end


def _day(at: float) -> str:
    return datetime.fromtimestamp(at).astimezone().strftime("%Y-%m-%d")


def _next_midnight(at: float) -> float:
    """Return the next instant at which another day begins; days with a change of clocks
    are 23 or 25 hours long.
    """
    local = datetime.fromtimestamp(at).astimezone()
    midnight = local.replace(hour=0, minute=0, second=0, microsecond=0, tzinfo=None)
    ordinal = midnight.toordinal() + 1
    return datetime.fromordinal(ordinal).astimezone().timestamp()
