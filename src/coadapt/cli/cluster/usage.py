"""`coadapt usage`: GPU-hours by tenant, job, application or day, and what they cost."""

import json
import time
from enum import StrEnum
from typing import Annotated, cast

import typer

from coadapt.cli.client import JsonObject, find_client
from coadapt.cli.state_dir import StateOption

DAY_S = 86_400.0


class By(StrEnum):
    """What usage is added up by."""

    TENANT = "tenant"
    JOB = "job"
    APPLICATION = "application"
    DAY = "day"


def usage(
    by: Annotated[By, typer.Option("--by", help="What to add up by.")] = By.TENANT,
    days: Annotated[
        float | None,
        typer.Option("--days", min=0.0, help="Only the last so many days."),
    ] = None,
    price: Annotated[
        float | None,
        typer.Option(
            "--price", min=0.0, help="Price of a GPU-hour, to show costs as well."
        ),
    ] = None,
    state: StateOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show the GPU-hours that jobs held. They add up to GPUs held times wall time."""
    since = 0.0 if days is None else max(time.time() - days * DAY_S, 0.0)
    answer = find_client(state).get(f"/v1/usage?by={by.value}&since={since}")
    rows = cast("list[JsonObject]", answer["rows"])
    hours = sum(cast(float, row["gpu_hours"]) for row in rows)
    if price is not None:
        for row in rows:
            row["cost"] = cast(float, row["gpu_hours"]) * price
    if as_json:
        total: JsonObject = {"gpu_hours": hours}
        if price is not None:
            total["cost"] = hours * price
        typer.echo(json.dumps({**answer, "total": total}))
        return
    for row in rows:
        name = str(row["key"]) or "(none)"
        typer.echo(_line(name, cast(float, row["gpu_hours"]), price))
    typer.echo(_line("total", hours, price))


def _line(name: str, hours: float, price: float | None) -> str:
    cost = "" if price is None else f"  {hours * price:>10.2f}"
    return f"{name:<40} {hours:>10.3f} GPU-hours{cost}"
