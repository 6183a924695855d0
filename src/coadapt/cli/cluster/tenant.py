"""`coadapt tenant`: what each user or team may have."""

import json
from typing import Annotated, cast
from urllib.parse import quote as quoted

import typer

from coadapt.cli.client import JsonObject, find_client
from coadapt.cli.state_dir import StateOption
from coadapt.model import InputError
from coadapt.model.budget_period import BudgetPeriod

tenant = typer.Typer(
    help="Show and change tenants' quotas, weights and priorities.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
NO_QUOTA = "none"
KEPT = (
    "quota_gpus",
    "weight",
    "priority",
    "budget",
    "budget_period",
    "value_of_time",
)
BUDGET_ALLOWED = (
    "a number, a number with a period such as 500/month "
    f"(periods: {', '.join(BudgetPeriod)}), or {NO_QUOTA}"
)


@tenant.command("set")
def set_tenant(
    name: Annotated[str, typer.Argument(help="The tenant, as in job files.")],
    quota: Annotated[
        str | None,
        typer.Option(
            "--quota", help=f"Most GPUs its jobs may hold; {NO_QUOTA}: no limit."
        ),
    ] = None,
    weight: Annotated[
        float | None,
        typer.Option("--weight", help="The tenant's weight in fair shares."),
    ] = None,
    priority: Annotated[
        int | None,
        typer.Option("--priority", help="Tenants with a higher priority go first."),
    ] = None,
    budget: Annotated[
        str | None,
        typer.Option(
            "--budget",
            help="What its jobs may cost in all, or in each day, week or month (UTC), "
            "such as 500/month; new jobs wait once it is spent. "
            f"{NO_QUOTA}: no limit.",
        ),
    ] = None,
    value_of_time: Annotated[
        str | None,
        typer.Option(
            "--value-of-time",
            help="What an hour of a job's completion time is worth to the sizer castor. "
            f"{NO_QUOTA}: the sizer's own.",
        ),
    ] = None,
    state: StateOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Change a tenant's limits from the next decision on. Limits without an option stay
    unchanged.
    """
    if not name.strip():
        raise InputError("tenant", name, "a name")
    client = find_client(state)
    known = cast("list[JsonObject]", client.get("/v1/tenants")["tenants"])
    granted = next((each for each in known if each["id"] == name), {})
    body: JsonObject = {key: granted[key] for key in KEPT if key in granted}
    if quota is not None:
        body["quota_gpus"] = _quota(quota)
    if weight is not None:
        body["weight"] = weight
    if priority is not None:
        body["priority"] = priority
    if budget is not None:
        body["budget"], body["budget_period"] = _budget(budget)
    if value_of_time is not None:
        body["value_of_time"] = _number("--value-of-time", value_of_time)
    answer = client.put(f"/v1/tenants/{quoted(name, safe='')}", body)
    typer.echo(json.dumps(answer) if as_json else _line(answer))


@tenant.command("ls")
def list_tenants(
    state: StateOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List tenants that have limits, or jobs that have not ended."""
    answer = find_client(state).get("/v1/tenants")
    if as_json:
        typer.echo(json.dumps(answer))
        return
    for each in cast("list[JsonObject]", answer["tenants"]):
        typer.echo(_line(each))


def _quota(text: str) -> int | None:
    if text == NO_QUOTA:
        return None
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise InputError("--quota", text, f"a number of GPUs >= 0, or {NO_QUOTA}")
    return int(text)


def _budget(text: str) -> tuple[float | None, str | None]:
    """Return the budget, and how often it is granted again."""
    if text == NO_QUOTA:
        return None, None
    amount, slash, period = text.partition("/")
    try:
        return float(amount), BudgetPeriod(period).value if slash else None
    except ValueError:
        raise InputError("--budget", text, BUDGET_ALLOWED) from None


def _number(option: str, text: str) -> float | None:
    if text == NO_QUOTA:
        return None
    try:
        return float(text)
    except ValueError:
        raise InputError(option, text, f"a number, or {NO_QUOTA}") from None


def _line(tenant: JsonObject) -> str:
    of = (
        "without a quota"
        if tenant["quota_gpus"] is None
        else f"of {tenant['quota_gpus']}"
    )
    num_barred = cast(int, tenant["num_jobs_beyond_quota"])
    line = (
        f"{tenant['id']}: {cast(float, tenant['num_gpus']):g} GPUs {of}, "
        f"weight {tenant['weight']:g}, priority {tenant['priority']}, "
        f"{_jobs(cast(int, tenant['num_jobs']))}"
    )
    budget = cast("float | None", tenant.get("budget"))
    if budget is not None:
        line += f", spent {cast(float, tenant['budget_spent']):.2f} of {budget:.2f}"
        period = tenant.get("budget_period")
        line += "" if period is None else f" this {period}"
    value = cast("float | None", tenant.get("value_of_time"))
    if value is not None:
        line += f", an hour of a job is worth {value:g}"
    if num_barred:
        need = "needs" if num_barred == 1 else "need"
        line += (
            f"; {_jobs(num_barred)} {need} more GPUs than the quota "
            "and cannot start until it is raised"
        )
    return line


def _jobs(count: int) -> str:
    return "1 job" if count == 1 else f"{count} jobs"
