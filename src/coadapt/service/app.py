"""The HTTP API, version 1: its routes. Each change is in the journal before the API
answers.
"""

import asyncio
import logging
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, TypeVar, cast

from fastapi import (
    APIRouter,
    Depends,
    FastAPI,
    Header,
    HTTPException,
    Query,
    Request,
    Response,
)
from fastapi.responses import JSONResponse, StreamingResponse
from fastapi.security import HTTPBearer
from pydantic import BaseModel, ConfigDict, Field, JsonValue
from starlette.types import ASGIApp

from coadapt import __version__
from coadapt.core.events import (
    CancelRequested,
    Event,
    JobSubmitted,
    PriorityChanged,
    TrainingReported,
    TrainingResumed,
)
from coadapt.core.lifecycle import ENDED
from coadapt.core.state import JobRecord, SchedulerState
from coadapt.model import JobId, JobSpec, Node
from coadapt.model.contract_env import STATUS_ROUTE
from coadapt.model.wire import Json, from_json, to_json
from coadapt.runtime.job_history import (
    changes_of,
    latest_decisions,
    latest_spans,
    story_of,
)
from coadapt.runtime.job_index import EndedJob, JobIndex
from coadapt.runtime.ports import KeepsNodes, LogPart
from coadapt.runtime.retention import Retention
from coadapt.runtime.snapshot import cluster_snapshot, count_states
from coadapt.service import errors, nodes, pruning, tenants, usage
from coadapt.service.auth import Credentials
from coadapt.service.bodies import StrictRoute
from coadapt.service.figures.latencies import Latencies
from coadapt.service.figures.metrics import metrics_text
from coadapt.service.figures.tally import Tally
from coadapt.service.guard import Guard
from coadapt.service.jobfile import JobFile, check_disk, job_spec
from coadapt.service.limits import (
    GENERATION_MAX,
    GPUS_MAX,
    LOG_BYTES_MAX,
    PRIORITY_MAX,
    SECONDS_MAX,
    SEQ_MAX,
)
from coadapt.service.listing import (
    PAGE_MAX,
    JobQuery,
    ended_jobs,
    find_job,
    find_live,
    job_page,
    live_jobs,
    parse_states,
    picture,
)
from coadapt.service.live_loop import LiveLoop, commit
from coadapt.service.logs import stream_logs
from coadapt.service.page import routes as page_routes
from coadapt.service.page import shell
from coadapt.service.page.decisions import DecisionLog
from coadapt.service.page.live import LiveSource
from coadapt.service.page.questions import Questions
from coadapt.service.plan_watch import PlanWatch
from coadapt.service.reports.answer import answer
from coadapt.service.reports.budget import ReportBudget
from coadapt.service.reports.groups import ReportGroups
from coadapt.service.reports.lane import ReportLane
from coadapt.service.reports.reading import read_report
from coadapt.service.reports.trainer_status import StatusBody, Throttle, report_of
from coadapt.service.studies import routes as study_routes
from coadapt.service.studies.driver import Studies
from coadapt.service.submission import (
    check_possible,
    check_prices,
    check_quota,
    job_id,
)

# The number of decisions about a job that `describe` shows. Its story has all of them.
DECISIONS_SHOWN = 10
# The number of ended jobs in the answer of /cluster, the latest. `top` shows a few.
ENDED_SHOWN = 20

T = TypeVar("T")
logger = logging.getLogger(__name__)
PartName = Annotated[str, Field(min_length=1, max_length=40, pattern=r"^[ -~]+$")]
Seconds = Annotated[float, Field(ge=0, le=SECONDS_MAX, allow_inf_nan=False)]
Generation = Annotated[int, Field(ge=0, le=GENERATION_MAX)]

# Only for the OpenAPI document: Guard checks the token.
BEARER = HTTPBearer(
    auto_error=False, description="The operator's token, or that of a job."
)

router = APIRouter(prefix="/v1", route_class=StrictRoute, redirect_slashes=False)
open_router = APIRouter(
    prefix="/v1", route_class=StrictRoute, redirect_slashes=False
)  # needs no token, see Guard


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """The parts of the service that the routes use.

    policy: its name, for display. to_come, shares_disk, engine_trouble, nodes: see
    LiveExecutor.
    """

    loop: LiveLoop
    index: JobIndex
    read_log: Callable[[JobId, int, int], LogPart]
    policy: str
    retention: Retention
    tally: Tally
    latencies: Latencies
    credentials: Credentials
    to_come: Callable[[], Sequence[Node]] = tuple
    shares_disk: bool = True
    engine_trouble: Callable[[], str] = str
    nodes: KeepsNodes | None = None
    decisions: DecisionLog = field(default_factory=DecisionLog)
    studies: Studies | None = None
    questions: Questions | None = None
    why_no_plan_yet: Callable[[], str] = str
    plans: PlanWatch = field(default_factory=PlanWatch)


class ListQuery(BaseModel):
    """The filters of a list of jobs, see JobQuery."""

    model_config = ConfigDict(extra="forbid")
    state: str = Field(default="", max_length=200)
    tenant: str = Field(default="", max_length=200)
    name: str = Field(default="", max_length=200)
    limit: int = Field(default=PAGE_MAX, ge=1, le=PAGE_MAX)
    cursor: str = Field(default="", max_length=300)
    newest: bool = False


class ReportBody(BaseModel):
    """A training report of one generation. `report` is a TrainingReport in wire
    form.
    """

    model_config = ConfigDict(extra="forbid", strict=True)
    generation: Generation
    report: dict[str, JsonValue]


class RescaledBody(BaseModel):
    """A generation took its first step. `rescale_s`: training time lost to the change,
    s.

    `pause`: seconds of each part of a rescale in place.
    """

    model_config = ConfigDict(extra="forbid", strict=True)
    generation: Generation
    rescale_s: Seconds
    pause: dict[PartName, Seconds] = Field(default={}, max_length=20)


def create_app(service: Service) -> ASGIApp:
    """Return the ASGI application: the routes, and before them the ReportLane, which
    handles valid reports itself.
    """

    def tell(text: str) -> None:
        logger.warning("%s", text)
        service.loop.notice(text)

    groups = ReportGroups(service.loop, ReportBudget(tell))
    return ReportLane(
        api_routes(service, groups),
        service.loop,
        groups,
        service.credentials,
        service.latencies.request,
    )


def api_routes(service: Service, groups: ReportGroups) -> FastAPI:
    """Return all routes of the API. The reports that they accept go through
    `groups`.
    """
    # No documentation pages, because they would load scripts from other servers.
    # No redirects from paths with a trailing slash, because a redirect fails for
    # queries that are not UTF-8.
    app = FastAPI(
        title="Coadapt",
        version=__version__,
        openapi_url="/v1/openapi.json",
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    app.state.service = service
    app.state.reports = groups
    app.state.throttle = Throttle()
    page_routes.install(app, _page_source(service))
    app.include_router(shell.router)
    parts = (
        router,
        tenants.router,
        nodes.router,
        pruning.router,
        study_routes.router,
        study_routes.page_router,
        usage.router,
        page_routes.router,
    )
    for part in parts:
        app.include_router(
            part, responses=errors.RESPONSES, dependencies=[Depends(BEARER)]
        )
    app.include_router(open_router, responses=errors.RESPONSES)
    needs_token = [Depends(BEARER)]
    app.add_api_route(
        "/metrics",
        _metrics,
        methods=["GET"],
        response_class=Response,
        responses=errors.RESPONSES,
        dependencies=needs_token,
    )
    errors.install(app)
    app.add_middleware(
        Guard, credentials=service.credentials, answered=service.latencies.request
    )
    return app


@open_router.get("/livez")
async def livez() -> dict[str, str]:
    """Return 200 while the API answers, even if no plans are made."""
    return {"status": "ok", "version": __version__}


@open_router.get("/healthz")
async def healthz(request: Request) -> dict[str, str]:
    """Return 200 while the scheduler is healthy.

    Return 503 with an explanation if it makes no plans although jobs are active.
    """
    late = _service(request).plans.summary()
    if late:
        raise HTTPException(503, late)
    return {"status": "ok", "version": __version__}


# First, because nearly all requests are reports, and routes are tried in order.
@router.post("/jobs/{job}/reports", status_code=202)
async def report(
    request: Request, job: JobId, body: ReportBody
) -> dict[str, JsonValue]:
    """Accept a training report. A report of an old generation changes nothing.

    The response may have `application_times`, an ApplicationTimes in wire form: step
    times of other jobs of the same application on this placement. For a job on spot
    nodes it has `hazard_per_h`: the expected losses of any of its nodes in an hour.
    """
    record = _service(request).loop.peek(job)
    if record is None:
        # The last report of a job that has ended is valid, but has no effect.
        return {"id": await _known(request, job)}
    training_report = read_report(body.report, record)
    at = _service(request).loop.now()
    event = TrainingReported(
        at=at, job=job, generation=body.generation, report=training_report
    )
    await _reports(request).commit(event, _length(request))
    return answer(_service(request).loop, job)


@router.get("/cluster")
def cluster(
    request: Request, limit: Annotated[int, Query(ge=0, le=PAGE_MAX)] = PAGE_MAX
) -> Response:
    """Return the nodes, the number of jobs by state, the last round, and up to `limit`
    jobs.

    Jobs that hold GPUs come first, then those that have waited the longest, then those
    that ended last.
    """
    service = _service(request)
    at = service.loop.now()
    no_plan_yet = service.why_no_plan_yet()
    snapshot = service.loop.read(
        lambda state: cluster_snapshot(state, at, limit, no_plan_yet)
    )
    live = cast("list[dict[str, Json]]", snapshot.pop("jobs"))
    shown = {str(job["id"]): job for job in live}
    latest = service.index.ended_latest(min(limit - len(live), ENDED_SHOWN))
    shown.update({job.id: job.picture for job in latest})
    jobs = sorted(shown.values(), key=_submission)
    counts = {**cast("dict[str, Json]", snapshot["num_jobs"]), **service.index.counts()}
    about = {"policy": service.policy, "version": __version__}
    return JSONResponse({**snapshot, "num_jobs": counts, "jobs": jobs, **about})


@router.post("/jobs", status_code=202)
async def submit(
    request: Request,
    job: JobFile,
    idempotency_key: Annotated[str, Header(max_length=200)] = "",
) -> dict[str, JsonValue]:
    "Submit a job. A repeated request with the same Idempotency-Key returns the"
    "same job."
    new_id = job_id(job.name, idempotency_key or secrets.token_hex())
    known = await _submitted(request, new_id)
    at = _service(request).loop.now() if known is None else known[1]
    spec = job_spec(job, at)
    assert spec.launch is not None
    if _service(request).shares_disk:
        await asyncio.to_thread(check_disk, spec.launch)
    if known is None:
        present, away, known_tenants, prices = await _read(
            request,
            lambda state: (
                list(state.nodes.values()),
                [each.node for each in state.away.values()],
                dict(state.tenants),
                state.prices,
            ),
        )
        check_prices(spec, prices)
        check_possible(spec, [*present, *_service(request).to_come()], away)
        check_quota(spec, known_tenants)
        await _commit(request, JobSubmitted(at=at, job=new_id, spec=spec))
    elif known[0] != spec:
        raise HTTPException(
            409, f"this Idempotency-Key belongs to {new_id}, which is another job"
        )
    return {"id": new_id}


@router.get("/jobs")
def jobs(request: Request, given: Annotated[ListQuery, Query()]) -> Response:
    """Return a page of jobs in the order of their submission, ended jobs included.

    `state`: states separated by commas. `name`: a part of the name or id, or a pattern
    with `*`. In the answer, `next` is the cursor of the next page.
    """
    query = JobQuery(**{**given.model_dump(), "state": parse_states(given.state)})
    service = _service(request)
    at = service.loop.now()

    live, counts, plan_error = service.loop.read(
        lambda state: (live_jobs(state, query), count_states(state), state.plan_error)
    )
    why = plan_error or service.why_no_plan_yet()
    page = job_page(live, ended_jobs(service.index, query), query, at, why)
    return JSONResponse({**page, "num_jobs": {**counts, **service.index.counts()}})


@router.get("/jobs/{job}")
async def describe(request: Request, job: JobId) -> Response:
    """Return one job: its GPUs and the reason, its last report, its latest
    decisions.
    """
    found = await _find(request, job)
    return JSONResponse(await asyncio.to_thread(_description, _service(request), found))


@router.get("/jobs/{job}/story")
async def tell_story(request: Request, job: JobId) -> dict[str, JsonValue]:
    """Return the whole history of one job, in sentences."""
    job = await _known(request, job)
    lines = await asyncio.to_thread(story_of, _service(request).index, job)
    return {"lines": [to_json(line) for line in lines]}


@router.get("/jobs/{job}/changes")
async def changes(
    request: Request, job: JobId, after: Annotated[int, Query(ge=-1, le=SEQ_MAX)] = -1
) -> dict[str, JsonValue]:
    """Return the changes of one job after event number `after`, for programs: one
    page.
    """
    job = await _known(request, job)
    found = await asyncio.to_thread(changes_of, _service(request).index, job, after)
    return {"changes": [to_json(change) for change in found]}


@router.get("/jobs/{job}/logs", response_class=StreamingResponse)
async def logs(
    request: Request,
    job: JobId,
    rank: Annotated[int, Query(ge=0, le=GPUS_MAX)] = 0,
    offset: Annotated[int, Query(ge=0, le=LOG_BYTES_MAX)] = 0,
    follow: bool = False,
) -> StreamingResponse:
    """Stream the log of one replica over all generations, from byte `offset` on.

    With `follow` the stream lasts until the job ends.
    """
    job = await _known(request, job)
    service = _service(request)

    def ended() -> bool:
        return service.loop.read(
            lambda state: job not in state.jobs or state.jobs[job].state in ENDED
        )

    stream = stream_logs(
        partial(service.read_log, job, rank), offset, ended if follow else None
    )
    return StreamingResponse(stream, media_type="text/plain; charset=utf-8")


@router.post("/jobs/{job}/cancel", status_code=202)
async def cancel(
    request: Request, job: JobId, why: Annotated[str, Query(max_length=200)] = ""
) -> dict[str, JsonValue]:
    """Cancel a job. If it has ended before, nothing changes, and `ended_before` is
    true.

    `why`: the reason, for the job's explanation.
    """
    found = await _find(request, job)
    ended = isinstance(found, EndedJob)
    if not ended:
        at = _service(request).loop.now()
        await _commit(request, CancelRequested(at=at, job=found.id, why=why))
        found = await _find(request, found.id)
    return {"id": found.id, "state": found.state.value, "ended_before": ended}


class PriorityBody(BaseModel):
    """The new priority of a job."""

    model_config = ConfigDict(extra="forbid", strict=True)

    priority: int = Field(ge=-PRIORITY_MAX, le=PRIORITY_MAX)


@router.put("/jobs/{job}/priority", status_code=202)
async def set_priority(
    request: Request, job: JobId, body: PriorityBody
) -> dict[str, JsonValue]:
    """Change a job's priority among the jobs of its tenant.

    If the job has ended before, nothing changes, and `ended_before` is true.
    """
    found = await _find(request, job)
    ended = isinstance(found, EndedJob)
    if not ended:
        at = _service(request).loop.now()
        changed = PriorityChanged(at=at, job=found.id, priority=body.priority)
        await _commit(request, changed)
    return {"id": found.id, "priority": body.priority, "ended_before": ended}


@router.post("/jobs/{job}/rescaled", status_code=202)
async def rescaled(
    request: Request, job: JobId, body: RescaledBody
) -> dict[str, JsonValue]:
    """Accept that a generation took its first step, and the cost of the change.

    The answer is that of a report.
    """
    job = await _known(request, job)
    _reports(request).take(job, _length(request))
    at = _service(request).loop.now()
    event = TrainingResumed(
        at=at,
        job=job,
        generation=body.generation,
        rescale_s=body.rescale_s,
        pause=body.pause,
    )
    await _commit(request, event)
    return answer(_service(request).loop, job)


@router.post(f"/jobs/{{job}}/{STATUS_ROUTE}")
async def trainer_status(
    request: Request, job: JobId, body: StatusBody
) -> dict[str, JsonValue]:
    """Accept a job's progress in Kubeflow's trainer status protocol (KEP-2779)."""
    record = _service(request).loop.peek(job)
    if record is None:
        return {"id": await _known(request, job)}
    found = read_report(report_of(body.trainerStatus), record)
    if not found.metrics:
        return {"id": job}
    request.app.state.throttle.check(job)
    at = _service(request).loop.now()
    generation = record.running.generation
    event = TrainingReported(at=at, job=job, generation=generation, report=found)
    await _reports(request).commit(event, _length(request))
    return {"id": job}


@router.post("/token")
async def rotate_token(request: Request) -> dict[str, JsonValue]:
    """Write a new operator's token to the token file. The old token is no longer
    valid.
    """
    await asyncio.to_thread(_service(request).credentials.rotate)
    return {"rotated": True}


@router.get("/notices")
async def notices(request: Request) -> dict[str, JsonValue]:
    """Return internal errors since the start, and whether the engine cannot be
    reached now.
    """
    service = _service(request)
    found = await asyncio.to_thread(service.loop.notices)
    return {"notices": [*filter(None, (*found, service.engine_trouble()))]}


def _page_source(service: Service) -> LiveSource:
    return LiveSource(
        loop=service.loop,
        index=service.index,
        policy=service.policy,
        log=service.read_log,
        engine_trouble=service.engine_trouble,
        nodes=service.nodes,
        decisions=service.decisions,
        questions=service.questions,
        why_no_plan=service.why_no_plan_yet,
    )


def _submission(job: Mapping[str, Json]) -> tuple[float, str]:
    return (cast(float, job["submitted_at"]), str(job["id"]))


def _metrics(request: Request) -> Response:
    service = _service(request)
    text = metrics_text(
        service.loop.hold,
        service.tally,
        service.loop.now(),
        ended=service.index.counts(),
        num_waiting=service.loop.num_waiting() + _reports(request).num_waiting(),
        num_dropped=_reports(request).num_dropped,
        overdue_s=service.plans.overdue_s(),
    )
    return Response(text, media_type="text/plain; version=0.0.4; charset=utf-8")


def _service(request: Request) -> Service:
    service = request.app.state.service
    assert isinstance(service, Service)
    return service


def _reports(request: Request) -> ReportGroups:
    reports = request.app.state.reports
    assert isinstance(reports, ReportGroups)
    return reports


def _length(request: Request) -> int:
    """Return the length of the body in bytes by its header, which the server has
    checked.
    """
    length = request.headers.get("content-length", "")
    return int(length) if length.isdecimal() else 0


async def _commit(request: Request, event: Event) -> None:
    await commit(_service(request).loop, event)


async def _read(request: Request, question: Callable[[SchedulerState], T]) -> T:
    # In a thread, because the loop holds its lock while it writes a group to disk.
    return await asyncio.to_thread(_service(request).loop.read, question)


async def _find(request: Request, job: JobId) -> JobRecord | EndedJob:
    """Return the job with this id, or the only job whose id has this prefix.

    Raises UnknownJobError.
    """
    live = await _read(request, lambda state: find_live(state, job))
    return await asyncio.to_thread(find_job, live, _service(request).index, job)


async def _known(request: Request, job: JobId) -> JobId:
    return (await _find(request, job)).id


async def _submitted(request: Request, job: JobId) -> tuple[JobSpec, float] | None:
    """Return the spec submitted under this id and the instant, None if there is
    none.
    """
    live = await _read(request, lambda state: state.jobs.get(job))
    if live is not None:
        return live.spec, live.submitted_at
    ended = await asyncio.to_thread(_service(request).index.ended, job)
    return (
        None
        if ended is None
        else (from_json(JobSpec, ended.spec, "spec"), ended.submitted_at)
    )


def _description(service: Service, job: JobRecord | EndedJob) -> dict[str, Json]:
    at = service.loop.now()
    until = job.ended_at if job.ended_at is not None else at
    decisions = latest_decisions(service.index, job.id, DECISIONS_SHOWN)
    spans = latest_spans(service.index, job.id, until, DECISIONS_SHOWN)
    plan_error, prices = service.loop.read(
        lambda state: (state.plan_error, state.prices)
    )
    value = None
    if isinstance(job, JobRecord):
        value = service.loop.read(
            lambda state: tenants.value_of_a_job(state.tenants, job.spec.tenant)
        )
    return {
        **picture(job, at, plan_error or service.why_no_plan_yet()),
        "currency": None if prices is None else prices.currency,
        "value_of_time": value,
        "spec": job.spec if isinstance(job, EndedJob) else to_json(job.spec),
        "decisions": [{"at": when, "text": text} for when, text in decisions],
        "spans": [to_json(span) for span in spans],
    }
