"""Retention over HTTP: show what would be deleted, or delete it for about a second."""

import asyncio
import time
from collections.abc import Iterable
from typing import Annotated

from fastapi import APIRouter, Request
from pydantic import BaseModel, ConfigDict, Field, JsonValue

from coadapt.runtime.retention import JOB, LOGS, Keep, Step
from coadapt.service.bodies import StrictRoute
from coadapt.service.limits import KEEP_DAYS_MAX, LOGS_MIB_MAX

# An answer's share of a prune: the client asks again until nothing is left.
ANSWER_S = 1.0

router = APIRouter(prefix="/v1/prune", route_class=StrictRoute, redirect_slashes=False)


class PruneBody(BaseModel):
    """How long ended jobs are kept, how much of all logs together; dry_run: only say
    what would go.
    """

    model_config = ConfigDict(extra="forbid", strict=True)
    keep_days: Annotated[float, Field(ge=0, le=KEEP_DAYS_MAX, allow_inf_nan=False)]
    logs_mib: Annotated[int, Field(ge=0, le=LOGS_MIB_MAX)]
    dry_run: bool = False


@router.post("")
async def prune(request: Request, body: PruneBody) -> dict[str, JsonValue]:
    """Delete what is too old, for a second or so; `done` says whether that was all."""
    service = request.app.state.service
    keep = Keep(days=body.keep_days, logs_mib=body.logs_mib)
    at = service.loop.now()
    retention = service.retention
    if body.dry_run:
        return await asyncio.to_thread(summed, retention.due(keep, at), None)
    return await asyncio.to_thread(summed, retention.steps(keep, at), ANSWER_S)


def summed(steps: Iterable[Step], limit_s: float | None) -> dict[str, JsonValue]:
    """Take steps for `limit_s`, all if None, and return what they came to."""
    until = None if limit_s is None else time.monotonic() + limit_s
    jobs: list[JsonValue] = []
    logs: list[JsonValue] = []
    num_bytes = num_events = 0
    done = True
    for step in steps:
        jobs += [step.job] * (step.what == JOB)
        logs += [step.job] * (step.what == LOGS)
        num_bytes += step.num_bytes
        num_events += step.num_events
        if until is not None and time.monotonic() > until:
            done = False
            break
    return {
        "jobs": jobs,
        "logs": logs,
        "num_bytes": num_bytes,
        "num_events": num_events,
        "done": done,
    }
