"""Studies over HTTP: submit a search, look at it, stop it and let it go on."""

import asyncio
import json
import secrets
from pathlib import Path as FilePath
from typing import Annotated, cast

from fastapi import APIRouter, Body, HTTPException, Path, Query, Request
from pydantic import JsonValue

from coadapt.core.events import Event, StudyResumed, StudyStopped, StudySubmitted
from coadapt.core.state import Study
from coadapt.model.errors import require, suggestion
from coadapt.model.wire import Json
from coadapt.service.bodies import StrictRoute
from coadapt.service.limits import NAME_LENGTH_MAX
from coadapt.service.live_loop import commit
from coadapt.service.studies.driver import Studies
from coadapt.service.studies.page_view import page_view
from coadapt.service.studies.search_file import (
    TRIALS_MAX,
    SearchFile,
    search_file_of,
)

STUDIES_MAX = 1_000

router = APIRouter(
    prefix="/v1/studies", route_class=StrictRoute, redirect_slashes=False
)

# What the page reads is made for it, and may change with it.
page_router = APIRouter(
    prefix="/v1/page/studies",
    route_class=StrictRoute,
    redirect_slashes=False,
    include_in_schema=False,
)

StudyName = Annotated[str, Path(min_length=1, max_length=NAME_LENGTH_MAX)]


@router.post("", status_code=202)
async def submit(
    request: Request, body: Annotated[dict[str, JsonValue], Body()]
) -> dict[str, JsonValue]:
    """Submit a search file. The same file again is the same study."""
    require("a search", "optuna", "sweep")
    file = search_file_of(body, "body", FilePath("/"))
    text = json.dumps(file.document(), sort_keys=True)
    known = await _known(request)
    if file.name not in known:
        if len(known) >= STUDIES_MAX:
            raise HTTPException(
                409,
                f"there are {STUDIES_MAX} studies; more are not kept: delete some that "
                f"have ended, with coadapt sweep rm STUDY",
            )
        loop = request.app.state.service.loop
        at = loop.now()
        await asyncio.to_thread(_studies(request).check, file, at)
        key = secrets.token_hex(8)
        event = StudySubmitted(at=at, study=file.name, file=text, key=key)
        await commit(loop, event)
    elif known[file.name].file != text:
        raise HTTPException(
            409, f"there is a study {file.name} of another search file: choose a name"
        )
    return {"study": file.name}


@router.get("")
async def studies(request: Request) -> dict[str, JsonValue]:
    """All studies: how far each is, and its best trial."""
    known = await _known(request)
    found = await asyncio.to_thread(
        lambda: [_picture(_studies(request), study) for study in known.values()]
    )
    return {"studies": [*found]}


@router.get("/{study}")
async def show(request: Request, study: StudyName) -> dict[str, JsonValue]:
    """One study, and all its trials."""
    found = await _find(request, study)
    return await asyncio.to_thread(_picture, _studies(request), found, trials=True)


@router.post("/{study}/stop", status_code=202)
async def stop(
    request: Request, study: StudyName, *, cancel: bool = False
) -> dict[str, JsonValue]:
    """Start no further trial. Those that run go on to their end, or with `cancel` are
    cancelled; in Optuna these have failed.
    """
    return await _change(
        request,
        study,
        StudyStopped(
            at=request.app.state.service.loop.now(),
            study=study,
            why="stopped on request",
            cancel=cancel,
        ),
    )


@router.delete("/{study}")
async def remove(request: Request, study: StudyName) -> dict[str, JsonValue]:
    """Delete a study that has ended, or is stopped and has no trial that runs. The jobs
    of its trials stay.
    """
    await _find(request, study)
    if not await asyncio.to_thread(_studies(request).remove, study):
        raise HTTPException(
            409,
            f"study {study} goes on, or a trial of it runs: stop it first, with coadapt "
            f"sweep stop --cancel {study}",
        )
    return {"study": study, "removed": True}


@router.post("/{study}/resume", status_code=202)
async def resume(request: Request, study: StudyName) -> dict[str, JsonValue]:
    """Start trials again."""
    at = request.app.state.service.loop.now()
    return await _change(request, study, StudyResumed(at=at, study=study))


@page_router.get("/{study}")
async def page_study(
    request: Request,
    study: StudyName,
    trials_from: Annotated[int, Query(ge=0, le=TRIALS_MAX)] = 0,
) -> dict[str, JsonValue]:
    """A study, a slice of its trials from the newest on, and what its charts show."""
    found = await _find(request, study)

    def view() -> dict[str, Json]:
        studies = _studies(request)
        picture = _picture(studies, found, trials=True)
        rows = cast("list[dict[str, Json]]", picture["trials"])
        return {
            **picture,
            **page_view(file_of(found), rows, trials_from),
            "importance": studies.importance(found.name),
            "at": request.app.state.service.loop.now(),
        }

    return await asyncio.to_thread(view)


async def _change(request: Request, study: str, event: Event) -> dict[str, JsonValue]:
    await _find(request, study)
    await commit(request.app.state.service.loop, event)
    found = await _find(request, study)
    return await asyncio.to_thread(_picture, _studies(request), found)


def _picture(
    studies: Studies, study: Study, *, trials: bool = False
) -> dict[str, Json]:
    file = file_of(study)
    rows = studies.trials(study.name)
    counts: dict[str, int] = {}
    for row in rows:
        state = str(row["state"])
        counts[state] = counts.get(state, 0) + 1
    best = _best_of(file, rows)
    picture: dict[str, Json] = {
        "study": study.name,
        "state": _state(study),
        "why": study.stopped,
        "submitted_at": study.submitted_at,
        "metric": file.search.metric,
        "direction": file.search.direction,
        "n_trials": file.search.n_trials,
        "n_jobs": file.search.n_jobs,
        "deadline_at": file.deadline_at(study.submitted_at),
        "budget": file.search.budget,
        "cost": sum(cast(float, row["cost"]) for row in rows),
        "num_trials": cast("dict[str, Json]", counts),
        "best": best,
        "storage": studies.storage_url,
    }
    return {**picture, "trials": [*rows]} if trials else picture


def file_of(study: Study) -> SearchFile:
    return search_file_of(json.loads(study.file), study.name, FilePath("/"))


def _state(study: Study) -> str:
    if study.done:
        return "done"
    return "stopped" if study.stopped else "running"


def _best_of(file: SearchFile, rows: list[dict[str, Json]]) -> dict[str, Json] | None:
    """Return the completed trial with the best value, the first of equals; None if no
    trial is completed.
    """
    completed = [row for row in rows if row["state"] == "complete"]
    sign = -1.0 if file.search.direction == "maximize" else 1.0
    return min(
        completed, key=lambda row: sign * cast(float, row["value"]), default=None
    )


async def _known(request: Request) -> dict[str, Study]:
    loop = request.app.state.service.loop
    return await asyncio.to_thread(loop.read, lambda state: dict(state.studies))


async def _find(request: Request, study: str) -> Study:
    known = await _known(request)
    if study not in known:
        if not known:
            raise HTTPException(404, f"no study {study!r}: none was submitted yet")
        names = ", ".join(sorted(known))
        hint = suggestion(study, known)
        raise HTTPException(404, f"no study {study!r}; there are: {names}{hint}")
    return known[study]


def _studies(request: Request) -> Studies:
    studies = request.app.state.service.studies
    if studies is None:
        raise HTTPException(404, "this scheduler drives no studies")
    assert isinstance(studies, Studies)
    return studies
