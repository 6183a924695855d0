"""GPU-hours over HTTP: who held how many GPUs for how long."""

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Literal

from fastapi import APIRouter, Query, Request
from pydantic import JsonValue

from coadapt.core.lifecycle import ENDED
from coadapt.core.state import SchedulerState
from coadapt.model import JobId, JobSpec
from coadapt.model.wire import Json, from_json
from coadapt.runtime.job_history import spans_of
from coadapt.runtime.job_index import EndedQuery, JobIndex
from coadapt.service.bodies import StrictRoute
from coadapt.service.limits import SECONDS_MAX

HOUR_S = 3_600.0
PAGE = 500

By = Literal["tenant", "job", "application", "day"]

router = APIRouter(prefix="/v1/usage", route_class=StrictRoute, redirect_slashes=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """A job held `num_gpus` from `start` to `end`, s since 1970."""

    job: JobId
    tenant: str
    application: str
    start: float
    end: float
    num_gpus: float

    @property
    def gpu_s(self) -> float:
        return self.num_gpus * (self.end - self.start)


@router.get("")
async def usage(
    request: Request,
    by: By = "tenant",
    since: Annotated[float, Query(ge=0, le=SECONDS_MAX)] = 0.0,
) -> dict[str, JsonValue]:
    """GPU-hours held by tenant, job, application or day (of the scheduler's time zone),
    from `since` (s since 1970) until now. They add up to GPUs held times wall time.
    """
    service = request.app.state.service
    at = service.loop.now()
    live = await asyncio.to_thread(service.loop.read, _live_specs)
    rows = await asyncio.to_thread(usage_rows, service.index, live, by, since, at)
    return {"by": by, "since": since, "until": at, "rows": [*rows]}


def usage_rows(
    index: JobIndex, live: dict[JobId, JobSpec], by: By, since: float, at: float
) -> list[dict[str, Json]]:
    """Return the GPU-hours of each key, the most first."""
    keys: dict[By, Callable[[Held], str]] = {
        "tenant": lambda held: held.tenant,
        "job": lambda held: held.job,
        "application": lambda held: held.application,
        "day": lambda held: _day(held.start),
    }
    key_of = keys[by]
    gpu_s: dict[str, float] = {}
    for held in _all_held(index, live, since, at):
        for part in _by_day(held) if by == "day" else (held,):
            key = key_of(part)
            gpu_s[key] = gpu_s.get(key, 0.0) + part.gpu_s
    order = sorted(gpu_s, key=lambda key: key if by == "day" else (-gpu_s[key], key))
    return [{"key": key, "gpu_hours": gpu_s[key] / HOUR_S} for key in order]


def _live_specs(state: SchedulerState) -> dict[JobId, JobSpec]:
    return {job.id: job.spec for job in state.jobs.values() if job.state not in ENDED}


def _all_held(
    index: JobIndex, live: dict[JobId, JobSpec], since: float, at: float
) -> Iterator[Held]:
    seen = set(live)
    for job, spec in live.items():
        yield from _held_by(index, job, spec, at, since)
    after = None
    while page := index.ended_page(EndedQuery(limit=PAGE, after=after)):
        for ended in page:
            if ended.id not in seen and ended.ended_at > since:
                spec = from_json(JobSpec, ended.spec, "spec")
                yield from _held_by(index, ended.id, spec, ended.ended_at, since)
        after = (page[-1].submitted_at, page[-1].id)


def _held_by(
    index: JobIndex, job: JobId, spec: JobSpec, until: float, since: float
) -> Iterator[Held]:
    for span in spans_of(index, job, until):
        start = max(span.start, since)
        if span.num_gpus and span.end > start:
            yield Held(
                job=job,
                tenant=spec.tenant,
                application=spec.application,
                start=start,
                end=span.end,
                num_gpus=span.num_gpus,
            )


def _by_day(held: Held) -> Iterator[Held]:
    """Yield the parts of a stretch, one for each day that it touches."""
    start = held.start
    while start < held.end:
        end = min(_next_midnight(start), held.end)
        yield Held(
            job=held.job,
            tenant=held.tenant,
            application=held.application,
            start=start,
            end=end,
            num_gpus=held.num_gpus,
        )
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
