"""The data of the live page, in slices that a browser can show."""

import asyncio
from functools import partial
from typing import Annotated, cast

from fastapi import APIRouter, FastAPI, HTTPException, Query, Request, Response
from fastapi.responses import JSONResponse, StreamingResponse
from pydantic import BaseModel, ConfigDict, Field

from coadapt import __version__
from coadapt.core.lifecycle import JobState
from coadapt.core.state import JobRecord
from coadapt.model import InputError, JobId
from coadapt.model.wire import Json, to_json
from coadapt.policies import policy_names
from coadapt.policies.choice import parse_choice
from coadapt.runtime.job_index import EndedJob
from coadapt.runtime.snapshot import count_states
from coadapt.service.bodies import StrictRoute
from coadapt.service.limits import GPUS_MAX
from coadapt.service.listing import (
    JobQuery,
    ended_jobs,
    find_job,
    find_live,
    job_page,
    live_jobs,
    parse_states,
)
from coadapt.service.page.job_log import log_values
from coadapt.service.page.job_record import job_values
from coadapt.service.page.overview import Overview, Overviews
from coadapt.service.page.questions import BusyError, Questions
from coadapt.service.page.source import PageSource
from coadapt.service.page.stream import beats
from coadapt.service.page.tenant_rows import TenantRows
from coadapt.service.page.trouble import Trouble

NODES_SHOWN = 48
QUEUE_SHOWN = 30
TROUBLES_SHOWN = 30
JOBS_SHOWN = 50
ROW_MAX = 1_000_000
TEXT_SHOWN = 400
# A job that failed is a trouble for so long.
FAILED_RECENTLY_S = 3_600.0
ENDED_LOOKED_AT = 30
# Limits of a what-if question: each policy is twenty futures more.
POLICIES_ASKED = 4
SIZES_ASKED = 4
NODES_ASKED = 1_000

# Fields of a job's picture that a row of the list shows.
ROW_FIELDS = (
    "id",
    "name",
    "tenant",
    "priority",
    "state",
    "reason",
    "explanation",
    "submitted_at",
    "ended_at",
    "gpus_min",
    "gpus_max",
    "num_gpus",
    "progress",
    "progress_target",
    "num_failures",
)

# What the page reads is made for it, and may change with it: programs use the other
# routes.
router = APIRouter(
    prefix="/v1/page",
    route_class=StrictRoute,
    redirect_slashes=False,
    include_in_schema=False,
)


class PageJobsQuery(BaseModel):
    """Which jobs a page of the list shows; as `GET /v1/jobs` has it."""

    model_config = ConfigDict(extra="forbid")
    state: str = Field(default="", max_length=200)
    tenant: str = Field(default="", max_length=200)
    name: str = Field(default="", max_length=200)
    limit: int = Field(default=JOBS_SHOWN, ge=1, le=200)
    cursor: str = Field(default="", max_length=300)
    newest: bool = True


PolicyText = Annotated[str, Field(min_length=1, max_length=200)]
TenantName = Annotated[str, Field(min_length=1, max_length=200)]
Gpus = Annotated[int, Field(ge=0, le=GPUS_MAX)]
Nodes = Annotated[int, Field(ge=-NODES_ASKED, le=NODES_ASKED)]
JobText = Annotated[str, Field(min_length=1, max_length=200)]


class WhatIfBody(BaseModel):
    """What is to be different; as `coadapt what-if` has it."""

    model_config = ConfigDict(extra="forbid", strict=True)
    policies: list[PolicyText] = Field(default=[], max_length=POLICIES_ASKED)
    nodes: list[Nodes] = Field(default=[], max_length=SIZES_ASKED)
    quotas: dict[TenantName, Gpus | None] = Field(default={}, max_length=20)
    without: list[JobText] = Field(default=[], max_length=100)


class PageData:
    """What the routes keep between two requests."""

    def __init__(self, source: PageSource) -> None:
        self.source = source
        self.overviews = Overviews(source)
        self.tenants = TenantRows(source)


def install(app: FastAPI, source: PageSource) -> None:
    """Make the routes show `source`."""
    app.state.page = PageData(source)


@router.get("/now")
def now(
    request: Request,
    nodes_from: Annotated[int, Query(ge=0, le=ROW_MAX)] = 0,
    queue_from: Annotated[int, Query(ge=0, le=ROW_MAX)] = 0,
) -> Response:
    """What is wrong, which jobs hold which GPUs, and which jobs wait and why: a slice
    of nodes and queue.
    """
    page = _page(request)
    seen = page.overviews.latest()
    troubles = _troubles(page.source, seen)
    counts = {**seen.num_jobs, **page.source.index.counts()}
    return JSONResponse(
        {
            **_about(page.source, seen),
            "num_gpus": seen.num_gpus,
            "num_gpus_used": seen.num_gpus_used,
            "num_jobs": counts,
            "troubles": [_trouble(each) for each in troubles[:TROUBLES_SHOWN]],
            "num_troubles": len(troubles),
            "num_nodes": len(seen.nodes),
            "nodes": _nodes(seen, nodes_from),
            "buying": seen.buying,
            "num_waiting": len(seen.queue),
            "queue": _queue(seen, queue_from, page.source.why_no_plan_yet()),
        }
    )


@router.get("/jobs")
def page_jobs(request: Request, given: Annotated[PageJobsQuery, Query()]) -> Response:
    """A page of the list of jobs, ended ones too; `next` is the cursor of the page
    after it.
    """
    source = _page(request).source
    fields = {**given.model_dump(), "state": parse_states(given.state)}
    query = JobQuery(**fields)
    at = source.now()
    live, counts, plan_error = source.read(
        lambda state: (live_jobs(state, query), count_states(state), state.plan_error)
    )
    why = plan_error or source.why_no_plan_yet()
    found = job_page(live, ended_jobs(source.index, query), query, at, why)
    rows = [
        _row(cast("dict[str, Json]", job)) for job in cast("list[Json]", found["jobs"])
    ]
    num_jobs = {**counts, **source.index.counts()}
    return JSONResponse({**found, "at": at, "jobs": rows, "num_jobs": num_jobs})


@router.get("/jobs/{job}")
async def page_job(request: Request, job: JobId) -> Response:
    """A job: what it is, and its GPUs, batch, noise scale, metrics, pauses and
    decisions over time.
    """
    source = _page(request).source
    found = await _find(source, job)
    at = source.now()
    plan_error = await asyncio.to_thread(source.read, lambda state: state.plan_error)
    why = plan_error or source.why_no_plan_yet()
    values = await asyncio.to_thread(job_values, found, source.index, at, why)
    return JSONResponse({**values, "recorded": source.recorded})


@router.get("/jobs/{job}/log")
async def page_log(
    request: Request,
    job: JobId,
    rank: Annotated[int, Query(ge=0, le=GPUS_MAX)] = 0,
    search: Annotated[str, Query(max_length=200)] = "",
) -> Response:
    """The end of a replica's log, or with `search` the last lines that contain that
    text.
    """
    source = _page(request).source
    found = await _find(source, job)
    read = partial(source.read_log, found.id, rank)
    return JSONResponse(await asyncio.to_thread(log_values, read, search))


@router.get("/tenants")
def page_tenants(request: Request) -> Response:
    """Tenants: GPUs held against what their weight entitles them to, idle GPUs,
    GPU-hours of the last week.
    """
    page = _page(request)
    return JSONResponse({"at": page.source.now(), "tenants": page.tenants.rows()})


@router.get("/policy")
def page_policy(request: Request) -> Response:
    """The latest decisions: when, how long each took, what the solver reported, and why
    one failed.
    """
    source = _page(request).source
    decisions = [
        [
            each.round,
            each.asked_at,
            each.took_s,
            each.num_jobs,
            each.error,
            dict(each.figures),
        ]
        for each in source.decisions.latest()
    ]
    return JSONResponse(
        {"at": source.now(), "policy": source.policy, "decisions": to_json(decisions)}
    )


@router.get("/what-if")
def what_if(request: Request) -> Response:
    """The last what-if question and its answer, and which policies may be asked for."""
    source = _page(request).source
    questions = source.questions
    latest = None if questions is None else questions.latest()
    return JSONResponse(
        {
            "at": source.now(),
            "policy": source.policy,
            "policies": list(policy_names()),
            "available": questions is not None,
            "last": None if latest is None else latest.values(),
        }
    )


@router.post("/what-if", status_code=202)
def ask_what_if(request: Request, body: WhatIfBody) -> Response:
    """Ask a what-if question. Another process computes the answer, one at a time."""
    known = policy_names()
    for policy in body.policies:
        if parse_choice(policy)[0] not in known:
            raise InputError("policies", policy, f"one of {', '.join(known)}")
    if not (body.policies or any(body.nodes) or body.quotas or body.without):
        allowed = "another policy, other nodes, another quota or a job to leave out"
        raise InputError("what-if", "no change", allowed)
    try:
        asked = _questions(request).ask(body.model_dump())
    except BusyError:
        raise HTTPException(409, "another question is being computed") from None
    return JSONResponse(asked.values(), 202)


@router.delete("/what-if", status_code=202)
def stop_what_if(request: Request) -> dict[str, Json]:
    """End the computation, if there is one."""
    _questions(request).stop()
    return {}


@router.get("/stream", response_class=StreamingResponse)
async def stream(request: Request) -> StreamingResponse:
    """Server-sent events, at least one a second: `changed` once something happened,
    else `beat`.
    """
    return StreamingResponse(
        beats(_page(request).source),
        media_type="text/event-stream",
        headers={"cache-control": "no-store", "x-accel-buffering": "no"},
    )


def _page(request: Request) -> PageData:
    page = request.app.state.page
    assert isinstance(page, PageData)
    return page


def _questions(request: Request) -> Questions:
    questions = _page(request).source.questions
    if questions is None:
        raise HTTPException(404, "a recorded journal answers no what-if question")
    return questions


async def _find(source: PageSource, job: JobId) -> JobRecord | EndedJob:
    live = await asyncio.to_thread(source.read, lambda state: find_live(state, job))
    return await asyncio.to_thread(find_job, live, source.index, job)


def _about(source: PageSource, seen: Overview) -> dict[str, Json]:
    return {
        "at": seen.at,
        "policy": source.policy,
        "version": __version__,
        "recorded": source.recorded,
        "round": seen.round,
        "num_events": seen.num_events,
    }


def _troubles(source: PageSource, seen: Overview) -> list[Trouble]:
    """Return all that is wrong: of the scheduler, of nodes, of jobs that failed lately,
    and of live jobs.
    """
    found = [Trouble(kind="scheduler", text=text) for text in source.notices()]
    if seen.plan_error:
        text = f"round {seen.round} has no plan: {seen.plan_error}"
        found.append(Trouble(kind="policy", text=text))
    aside = source.nodes_aside().items()
    found += [Trouble(kind="node", text=why, node=node) for node, why in sorted(aside)]
    for job in source.index.ended_latest(ENDED_LOOKED_AT):
        if job.state is JobState.FAILED and seen.at - job.ended_at < FAILED_RECENTLY_S:
            text = str(job.picture["explanation"])
            found.append(Trouble(kind="failed", text=text, job=job.id))
    return [*found, *seen.troubles]


def _trouble(trouble: Trouble) -> list[Json]:
    # The end of a log, on lines of its own, is on the page of the job.
    first = trouble.text.split("\n", 1)[0]
    return [trouble.kind, first[:TEXT_SHOWN], trouble.job, trouble.node]


def _nodes(seen: Overview, first: int) -> list[Json]:
    """Return [id, GPU type, GPUs, rack, [[job, name, GPUs], …], why it leaves] of each
    node of the slice.
    """
    return [
        [
            node.id,
            node.gpu_type,
            node.num_gpus,
            node.rack,
            [
                [holder.job, holder.name, holder.num_gpus]
                for holder in seen.holders.get(node.id, ())
            ],
            seen.leaving.get(node.id, ""),
        ]
        for node in seen.nodes[first : first + NODES_SHOWN]
    ]


def _queue(seen: Overview, first: int, no_plan_yet: str) -> list[Json]:
    """Return [id, name, tenant, priority, fewest GPUs, most, submitted at, why it
    waits] of each job.
    """
    return [
        [
            each.job,
            each.spec.name,
            each.spec.tenant,
            each.spec.priority,
            each.spec.replicas.min,
            each.spec.replicas.max,
            each.submitted_at,
            each.why(seen.plan_error or no_plan_yet)[:TEXT_SHOWN],
        ]
        for each in seen.queue[first : first + QUEUE_SHOWN]
    ]


def _row(job: dict[str, Json]) -> dict[str, Json]:
    row = {name: job.get(name) for name in ROW_FIELDS}
    return {
        **row,
        "explanation": str(row["explanation"]).split("\n", 1)[0][:TEXT_SHOWN],
    }
