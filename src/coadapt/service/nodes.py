"""Nodes over HTTP: what each has and gives, and which are set aside since jobs fail
there again and again.
"""

import asyncio
from typing import Annotated, cast

from fastapi import APIRouter, HTTPException, Path, Request
from pydantic import BaseModel, ConfigDict, Field, JsonValue

from coadapt.model import NodeId
from coadapt.runtime.ports import TakesNodes
from coadapt.runtime.snapshot import cluster_snapshot
from coadapt.service.bodies import StrictRoute
from coadapt.service.limits import NAME_LENGTH_MAX, SECONDS_MAX

router = APIRouter(prefix="/v1/nodes", route_class=StrictRoute, redirect_slashes=False)

NodeName = Annotated[NodeId, Path(min_length=1, max_length=NAME_LENGTH_MAX)]


@router.get("")
async def nodes(request: Request) -> dict[str, JsonValue]:
    """All nodes that jobs may have, and those that are set aside, with the reason in
    `aside`. `buying`: the nodes of each offer, null where no offer is configured.
    """
    service = request.app.state.service
    at = service.loop.now()
    picture = await asyncio.to_thread(
        service.loop.read, lambda state: cluster_snapshot(state, at, 0)
    )
    listed = cast("list[dict[str, JsonValue]]", picture["nodes"])
    found: list[dict[str, JsonValue]] = [{**node, "aside": None} for node in listed]
    aside = service.nodes.aside if service.nodes is not None else {}
    found += [{"id": name, "aside": why} for name, why in aside.items()]
    ordered = sorted(found, key=lambda node: str(node["id"]))
    return {"nodes": [*ordered], "buying": cast(JsonValue, picture["buying"])}


@router.post("/{node}/take-back", status_code=202)
async def take_back(request: Request, node: NodeName) -> dict[str, JsonValue]:
    """Let jobs on a node again that is set aside; its failures are forgotten."""
    keeper = request.app.state.service.nodes
    if keeper is None or not await asyncio.to_thread(keeper.take_back, node):
        raise HTTPException(
            404, f"no node {node!r} is set aside; see: coadapt nodes ls"
        )
    return {"id": node}


class NoticeBody(BaseModel):
    """In how many seconds a node is taken away; 0: now, without a notice."""

    model_config = ConfigDict(extra="forbid", strict=True)
    in_s: Annotated[float, Field(ge=0, le=SECONDS_MAX, allow_inf_nan=False)]


@router.post("/{node}/notice", status_code=202)
async def notice(
    request: Request, node: NodeName, body: NoticeBody
) -> dict[str, JsonValue]:
    """Take a bought node away, as the owner of a spot node does; for tests, on engines
    that have no other owner of their nodes.
    """
    service = request.app.state.service
    taker = service.nodes
    if not isinstance(taker, TakesNodes):
        raise HTTPException(
            409, "this engine's nodes are not bought here, or others take them away"
        )
    gone_at = service.loop.now() + body.in_s
    if not await asyncio.to_thread(taker.take_away, node, gone_at):
        raise HTTPException(404, f"no node {node!r} is bought; see: coadapt nodes ls")
    return {"id": node, "gone_at": gone_at}
