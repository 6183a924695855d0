"""The HTTP API, version 1: routes only. Every change is journaled before it is answered."""

import asyncio
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, TypeVar

from fastapi import APIRouter, FastAPI, Header, HTTPException, Query, Request, Response
from fastapi.responses import StreamingResponse
from pydantic import BaseModel, ConfigDict, Field, JsonValue

from coadapt import __version__
from coadapt.core.config import SchedulerConfig
from coadapt.core.events import CancelRequested, Event, JobSubmitted, ReplicasRescaled, TrainingReported
from coadapt.core.lifecycle import ENDED
from coadapt.core.state import JobRecord, SchedulerState
from coadapt.model import JobId, TrainingReport
from coadapt.model.wire import Json, from_json, to_json
from coadapt.runtime.history import Recorder
from coadapt.runtime.ports import Store
from coadapt.runtime.snapshot import cluster_snapshot, job_snapshot
from coadapt.runtime.story import story
from coadapt.service import errors
from coadapt.service.guard import Guard
from coadapt.service.jobfile import JobFile, job_spec
from coadapt.service.live_loop import LiveLoop
from coadapt.service.logs import stream_logs
from coadapt.service.metrics import metrics_text
from coadapt.service.submission import check_possible, job_id

# Decisions about a job that `describe` shows; its story tells all of them.
DECISIONS_SHOWN = 10

T = TypeVar("T")
PartName = Annotated[str, Field(max_length=40)]
Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]

router = APIRouter(prefix="/v1")


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """What the routes stand on. first_config: that the journal begins under. policy: its name, to
    be shown. decision_s: the latest decision times."""

    loop: LiveLoop
    store: Store
    first_config: SchedulerConfig
    recorder: Recorder
    log_files: Callable[[JobId, int], Sequence[Path]]
    policy: str
    decision_s: Sequence[float]
    token: str


class ReportBody(BaseModel):
    """A training report of one generation; `report` is a TrainingReport in wire form."""

    model_config = ConfigDict(extra="forbid", strict=True)
    generation: int = Field(ge=0)
    report: dict[str, JsonValue]


class RescaledBody(BaseModel):
    """A generation took its first step; the change cost `rescale_s` of training time.

    `pause`: if it was one in place, the seconds that each part of it took.
    """

    model_config = ConfigDict(extra="forbid", strict=True)
    generation: int = Field(ge=0)
    rescale_s: float = Field(ge=0, allow_inf_nan=False)
    pause: dict[PartName, Seconds] = Field(default={}, max_length=20)


def create_app(service: Service) -> FastAPI:
    """Return the ASGI application."""
    # No documentation pages: they would load scripts from foreign servers.
    app = FastAPI(
        title="Coadapt", version=__version__, openapi_url="/v1/openapi.json", docs_url=None, redoc_url=None
    )
    app.state.service = service
    app.include_router(router)
    app.add_api_route("/metrics", _metrics, methods=["GET"], response_class=Response)
    errors.install(app)
    app.add_middleware(Guard, token=service.token)
    return app


@router.get("/healthz")
def healthz() -> dict[str, str]:
    """Say that the API answers."""
    return {"status": "ok", "version": __version__}


@router.get("/cluster")
def cluster(request: Request) -> dict[str, JsonValue]:
    """Nodes, jobs and the last round."""
    service = _service(request)
    at = service.loop.now()
    snapshot = service.loop.read(lambda state: cluster_snapshot(state, at))
    return {**snapshot, "policy": service.policy, "version": __version__}


@router.post("/jobs", status_code=202)
async def submit(
    request: Request, job: JobFile, idempotency_key: Annotated[str, Header(max_length=200)] = ""
) -> dict[str, JsonValue]:
    """Take a job in. A repeat under the same Idempotency-Key answers with the same job."""
    spec = await asyncio.to_thread(job_spec, job)
    new_id = job_id(job.name, idempotency_key or secrets.token_hex())
    known = await _read(request, lambda state: state.jobs.get(new_id))
    if known is None:
        check_possible(spec, await _read(request, lambda state: list(state.nodes.values())))
        await _commit(request, JobSubmitted(at=_service(request).loop.now(), job=new_id, spec=spec))
    elif known.spec != spec:
        raise HTTPException(409, f"this Idempotency-Key belongs to {new_id}, which is another job")
    return {"id": new_id}


@router.get("/jobs")
def jobs(request: Request) -> dict[str, JsonValue]:
    """All jobs in the order of their submission, ended ones too."""
    return {"jobs": cluster(request)["jobs"]}


@router.get("/jobs/{job}")
async def describe(request: Request, job: JobId) -> dict[str, JsonValue]:
    """All about one job: what it holds and why, what it reported, the latest decisions."""
    service = _service(request)
    at = service.loop.now()
    return await _of_job(request, job, lambda record: _description(service.recorder, record, at))


@router.get("/jobs/{job}/story")
async def tell_story(request: Request, job: JobId) -> dict[str, JsonValue]:
    """The whole life of one job, from the journal."""
    await _check_known(request, job)
    service = _service(request)
    lines = await asyncio.to_thread(story, service.store.events(), job, service.first_config)
    return {"lines": [to_json(line) for line in lines]}


@router.get("/jobs/{job}/logs", response_class=StreamingResponse)
async def logs(
    request: Request,
    job: JobId,
    rank: Annotated[int, Query(ge=0)] = 0,
    offset: Annotated[int, Query(ge=0)] = 0,
    follow: bool = False,
) -> StreamingResponse:
    """The log of one replica over all generations from byte `offset`; with `follow` until the job ends."""
    await _check_known(request, job)
    service = _service(request)

    def ended() -> bool:
        return service.loop.read(lambda state: state.jobs[job].state in ENDED)

    stream = stream_logs(lambda: service.log_files(job, rank), offset, ended if follow else None)
    return StreamingResponse(stream, media_type="text/plain; charset=utf-8")


@router.post("/jobs/{job}/cancel", status_code=202)
async def cancel(request: Request, job: JobId) -> dict[str, JsonValue]:
    """Ask for the job's end; a job that has ended stays as it is."""
    await _check_known(request, job)
    await _commit(request, CancelRequested(at=_service(request).loop.now(), job=job))
    return {"id": job}


@router.post("/jobs/{job}/reports", status_code=202)
async def report(request: Request, job: JobId, body: ReportBody) -> dict[str, JsonValue]:
    """Take in a training report; one of an old generation changes nothing."""
    await _check_known(request, job)
    training_report = from_json(TrainingReport, body.report, "report")
    at = _service(request).loop.now()
    event = TrainingReported(at=at, job=job, generation=body.generation, report=training_report)
    await _commit(request, event)
    return {"id": job}


@router.post("/jobs/{job}/rescaled", status_code=202)
async def rescaled(request: Request, job: JobId, body: RescaledBody) -> dict[str, JsonValue]:
    """Note that a generation took its first step, and what the change cost."""
    await _check_known(request, job)
    at = _service(request).loop.now()
    event = ReplicasRescaled(
        at=at, job=job, generation=body.generation, rescale_s=body.rescale_s, pause=body.pause
    )
    await _commit(request, event)
    return {"id": job}


def _metrics(request: Request) -> Response:
    service = _service(request)
    text = metrics_text(service.loop.read, service.decision_s)
    return Response(text, media_type="text/plain; version=0.0.4; charset=utf-8")


def _service(request: Request) -> Service:
    service = request.app.state.service
    assert isinstance(service, Service)
    return service


async def _commit(request: Request, event: Event) -> None:
    await asyncio.wrap_future(_service(request).loop.commit(event))


async def _read(request: Request, question: Callable[[SchedulerState], T]) -> T:
    # In a thread: the loop holds its lock while a group is written to disk.
    return await asyncio.to_thread(_service(request).loop.read, question)


async def _of_job(request: Request, job: JobId, question: Callable[[JobRecord], T]) -> T:
    """Return `question(record)` of a known job; answer 404 for an unknown one."""

    def ask(state: SchedulerState) -> T:
        if job not in state.jobs:
            raise HTTPException(404, f"there is no job {job}")
        return question(state.jobs[job])

    return await _read(request, ask)


async def _check_known(request: Request, job: JobId) -> None:
    await _of_job(request, job, lambda _: None)


def _description(recorder: Recorder, record: JobRecord, at: float) -> dict[str, Json]:
    history = recorder.history.jobs.get(record.id)
    decisions = sorted([*history.reasons, *history.changes])[-DECISIONS_SHOWN:] if history else []
    spans = history.spans[-DECISIONS_SHOWN:] if history else []
    return {
        **job_snapshot(record, at),
        "spec": to_json(record.spec),
        "decisions": [{"at": when, "text": text} for when, text in decisions],
        "spans": [to_json(span) for span in spans],
    }
