"""`coadapt usage`: GPU-hours by tenant, job, application or day, and what they cost."""

import json
import time
from enum import StrEnum
from typing import Annotated, cast

import typer

from coadapt.cli.client import JsonObject, find_client
from coadapt.cli.cluster.bought import cost_lines
from coadapt.cli.state_dir import StateOption
from coadapt.model.budget_period import midnight_text

DAY_S = 86_400.0


class By(StrEnum):
    """How GPU-hours are grouped."""

    TENANT = "tenant"
    JOB = "job"
    APPLICATION = "application"
    DAY = "day"


def usage(
    by: Annotated[
        By, typer.Option("--by", help="Group the GPU-hours by this.")
    ] = By.TENANT,
    days: Annotated[
        float | None,
        typer.Option("--days", min=0.0, help="Only the last DAYS days."),
    ] = None,
    price: Annotated[
        float | None,
        typer.Option(
            "--price",
            min=0.0,
            help="One price for every GPU-hour, instead of the scheduler's prices.",
        ),
    ] = None,
    state: StateOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show the GPU-hours of jobs, and their cost. GPU-hours are GPUs held times wall
    time. Prices are set in the scheduler's settings file. Below are the spent and the
    remaining part of each tenant's budget, and the bought nodes with their cost.
    """
    since = 0.0 if days is None else max(time.time() - days * DAY_S, 0.0)
    answer = find_client(state).get(f"/v1/usage?by={by.value}&since={since}")
    rows = cast("list[JsonObject]", answer["rows"])
    hours = sum(cast(float, row["gpu_hours"]) for row in rows)
    if price is not None:
        answer["currency"] = ""
        for row in rows:
            row["cost"] = cast(float, row["gpu_hours"]) * price
    currency = cast("str | None", answer.get("currency"))
    if currency is None:
        for row in rows:
            row.pop("cost", None)
    total: JsonObject = {"key": "total", "gpu_hours": hours}
    if currency is not None:
        total["cost"] = sum(cast(float, row["cost"]) for row in rows)
    if as_json:
        del total["key"]
        typer.echo(json.dumps({**answer, "total": total}))
        return
    for row in (*rows, total):
        typer.echo(_line(row, currency))
    for budget in cast("list[JsonObject]", answer["budgets"]):
        typer.echo(_budget_line(budget))
    buying = cast("JsonObject | None", answer["buying"])
    for line in () if buying is None else cost_lines(buying):
        typer.echo(line)


def _budget_line(row: JsonObject) -> str:
    """Return how much of a budget is spent and left, in words."""
    spent = cast(float, row["spent"])
    left = cast(float, row["left"])
    rest = f"{left:.2f} left" if left >= 0.0 else f"{-left:.2f} above it"
    line = f"budget of {row['tenant']}: spent {spent:.2f} of {row['budget']:.2f}"
    line += f" {row['currency']}, {rest}"
    if row["until"] is None:
        return line
    until = midnight_text(cast(float, row["until"]))
    return f"{line}, for the {row['period']} until {until}"


def _line(row: JsonObject, currency: str | None) -> str:
    name = str(row["key"]) or "(none)"
    line = f"{name:<40} {cast(float, row['gpu_hours']):>10.3f} GPU-hours"
    if currency is None:
        return line
    return f"{line}  {cast(float, row['cost']):>10.2f} {currency}".rstrip()
