"""Request bodies: strict JSON in UTF-8, checked before any route sees it."""

import json
from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import HTTPException, Request, Response
from fastapi.routing import APIRoute

from coadapt.model.bounds import check_outside

Handler = Callable[[Request], Coroutine[Any, Any, Response]]


class StrictRoute(APIRoute):
    """A route whose body is JSON that can be taken in one way only: see
    `parse_body`.
    """

    def get_route_handler(self) -> Handler:
        handle = super().get_route_handler()

        async def handle_checked(request: Request) -> Response:
            if body := await request.body():
                parse_body(body)
            return await handle(request)

        return handle_checked


def parse_body(body: bytes) -> object:
    """Return the plain data of a body.

    Raises HTTPException 400 for what is not JSON in UTF-8, for a key that stands twice
    and for NaN, which JSON does not know; InputError for numbers and texts that no
    field may hold.
    """
    try:
        data = json.loads(
            body.decode(), object_pairs_hook=_unique, parse_constant=_refuse_constant
        )
    except RecursionError:
        raise HTTPException(400, "the body must be JSON of a few levels") from None
    except (
        ValueError
    ) as error:  # not UTF-8, not JSON, or a number of more than 4,300 digits
        raise HTTPException(
            400, f"the body must be JSON in UTF-8: {str(error)[:200]}"
        ) from None
    check_outside(data)
    return data


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [key for key, _ in pairs]
        twice = next(name for name in found if names.count(name) > 1)
        raise ValueError(f"the key {twice[:100]!r} appears twice")
    return found


def _refuse_constant(name: str) -> object:
    raise ValueError(f"{name} is not a number")
