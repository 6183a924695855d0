"""Every error of the API has one shape: `{"error": {"field", "value", "allowed",
"message"}}`.
"""

import logging
from collections.abc import Mapping
from typing import Any, get_type_hints

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel
from starlette.exceptions import HTTPException

from coadapt.model import InputError
from coadapt.model.errors import StoreAwayError, StoreError, shown
from coadapt.service.jobfile import input_error
from coadapt.service.listing import UnknownJobError
from coadapt.service.live_loop import (
    EndedError,
    EventRefusedError,
    OverloadedError,
)
from coadapt.service.reports.budget import TooManyReportsError

RETRY_AFTER_S = 1


class ErrorFields(BaseModel):
    """What is wrong, in one line, and where it is about a field: which, what was given,
    what is allowed.
    """

    field: str | None
    value: str | None
    allowed: str | None
    message: str


class ErrorBody(BaseModel):
    """Every error of the API."""

    error: ErrorFields


# What any route may answer beside its own, for the OpenAPI document.
RESPONSES: dict[int | str, dict[str, Any]] = {
    status: {"model": ErrorBody, "description": description}
    for status, description in {
        400: "The body is not JSON in UTF-8, or has a key twice.",
        401: "No token, or one that is not known.",
        403: "A job's token, where only the operator's is good.",
        404: "No such job or route.",
        409: "The Idempotency-Key belongs to another job.",
        413: "The body is longer than 1,000,000 bytes.",
        429: "The job reports too often, or too much (`Retry-After`).",
        422: "A value is not allowed, or the scheduler could not handle it.",
        503: (
            "Nothing can be written now; with `Retry-After`, ask again after that "
            "number of seconds."
        ),
    }.items()
}

logger = logging.getLogger(__name__)


def install(app: FastAPI) -> None:
    """Make `app` answer all errors in that shape."""
    app.add_exception_handler(InputError, _on_input_error)
    app.add_exception_handler(UnknownJobError, _on_unknown_job)
    app.add_exception_handler(RequestValidationError, _on_invalid_request)
    app.add_exception_handler(HTTPException, _on_http_error)
    app.add_exception_handler(OverloadedError, _on_overload)
    app.add_exception_handler(StoreError, _on_loss)
    app.add_exception_handler(EventRefusedError, _on_loss)
    app.add_exception_handler(EndedError, _on_loss)
    app.add_exception_handler(TooManyReportsError, _on_loss)


async def _on_input_error(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, InputError)
    return _fielded(error, 422)


async def _on_unknown_job(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, UnknownJobError)
    return _fielded(error, 404)


async def _on_invalid_request(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    # The first part says where the value stood: body, query, header or path.
    errors = [{**item, "loc": tuple(item["loc"])[1:]} for item in error.errors()]
    return await _on_input_error(request, input_error(_body_model(request), errors))


def _body_model(request: Request) -> type[BaseModel]:
    """Return what the body of this route is to be, for an error to name its keys."""
    hints = get_type_hints(request.scope["endpoint"])
    models = [
        hint
        for hint in hints.values()
        if isinstance(hint, type) and issubclass(hint, BaseModel)
    ]
    return models[0] if models else _NoBody


class _NoBody(BaseModel):
    """A route without a body: its errors are about the address."""


async def _on_http_error(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    return _plain(error.status_code, error.detail, error.headers)


async def _on_overload(_: Request, error: Exception) -> JSONResponse:
    logger.warning("a request was refused: %s", error)
    return _plain(503, str(error), {"Retry-After": str(RETRY_AFTER_S)})


def _fielded(error: InputError, status: int) -> JSONResponse:
    fields = {
        "field": error.field,
        "value": shown(error.value),
        "allowed": error.allowed,
    }
    return JSONResponse({"error": {**fields, "message": str(error)}}, status)


Loss = EndedError | EventRefusedError | StoreError | TooManyReportsError


def answer_to_loss(error: Loss) -> JSONResponse:
    """Return the answer to a lawful request of which nothing came."""
    if isinstance(error, TooManyReportsError):
        return _plain(429, str(error), {"Retry-After": str(error.again_s)})
    if isinstance(error, EventRefusedError):
        return _plain(422, str(error))
    passes = isinstance(error, StoreAwayError)
    again = {"Retry-After": str(RETRY_AFTER_S)} if passes else None
    return _plain(503, str(error), again)


async def _on_loss(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, Loss)
    return answer_to_loss(error)


def _plain(
    status: int, message: str, headers: Mapping[str, str] | None = None
) -> JSONResponse:
    fields = {"field": None, "value": None, "allowed": None}
    return JSONResponse({"error": {**fields, "message": message}}, status, headers)
