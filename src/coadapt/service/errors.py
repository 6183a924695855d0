"""Every error of the API has one shape: `{"error": {"field", "value", "allowed", "message"}}`."""

import logging

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from coadapt.model import InputError
from coadapt.service.jobfile import JobFile, input_error
from coadapt.service.live_loop import OverloadedError

RETRY_AFTER_S = 1

logger = logging.getLogger(__name__)


def install(app: FastAPI) -> None:
    """Make `app` answer all errors in that shape."""
    app.add_exception_handler(InputError, _on_input_error)
    app.add_exception_handler(RequestValidationError, _on_invalid_request)
    app.add_exception_handler(HTTPException, _on_http_error)
    app.add_exception_handler(OverloadedError, _on_overload)


async def _on_input_error(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, InputError)
    fields = {"field": error.field, "value": repr(error.value), "allowed": error.allowed}
    return JSONResponse({"error": {**fields, "message": str(error)}}, 422)


async def _on_invalid_request(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    # The first part says where the value stood: body, query, header or path.
    errors = [{**item, "loc": tuple(item["loc"])[1:]} for item in error.errors()]
    return await _on_input_error(request, input_error(JobFile, errors))


async def _on_http_error(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    return _plain(error.status_code, error.detail)


async def _on_overload(_: Request, error: Exception) -> JSONResponse:
    logger.warning("a request was turned away: %s", error)
    return _plain(503, str(error), {"Retry-After": str(RETRY_AFTER_S)})


def _plain(status: int, message: str, headers: dict[str, str] | None = None) -> JSONResponse:
    fields = {"field": None, "value": None, "allowed": None}
    return JSONResponse({"error": {**fields, "message": message}}, status, headers)
