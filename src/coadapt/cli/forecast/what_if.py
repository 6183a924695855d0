"""`coadapt what-if`: what another policy, more nodes or another quota would change."""

import json
from pathlib import Path
from typing import Annotated

import typer

from coadapt.cli.forecast.options import (
    SECONDS,
    ArrivalsOption,
    RunsOption,
    SecondsOption,
)
from coadapt.cli.state_dir import StateOption, find_state_dir
from coadapt.model import InputError


def what_if(
    policy: Annotated[
        list[str] | None,
        typer.Option(
            "--policy", help="Use this policy; may be repeated.", show_default=False
        ),
    ] = None,
    nodes: Annotated[
        str,
        typer.Option(
            "--nodes",
            metavar="COUNT",
            help="Add (+4) or remove (-1) nodes; +1,+2,+4: a future for each.",
            show_default=False,
        ),
    ] = "",
    quota: Annotated[
        list[str] | None,
        typer.Option(
            "--quota", metavar="TENANT=GPUS", help="Use this quota; `none`: no quota."
        ),
    ] = None,
    submit: Annotated[
        list[Path] | None,
        typer.Option("--submit", metavar="FILE", help="Also submit this job file now."),
    ] = None,
    without: Annotated[
        list[str] | None,
        typer.Option("--without", metavar="JOB", help="Cancel this job now."),
    ] = None,
    state: StateOption = None,
    runs: RunsOption = 20,
    arrivals: ArrivalsOption = True,
    seconds: SecondsOption = SECONDS,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    html: Annotated[
        Path | None,
        typer.Option("--html", metavar="FILE", help="Also write a page with pictures."),
    ] = None,
) -> None:
    """Estimate when the live jobs start and end, with and without a change.

    Reads the scheduler's files. The scheduler need not run, and is not changed.
    """
    from coadapt.cli.forecast.futures import Change, compare_futures
    from coadapt.cli.forecast.progress import shown_progress
    from coadapt.cli.forecast.tables import as_plain, show_estimates
    from coadapt.cli.forecast.what_if_page import write_report

    change = Change(
        policies=tuple(policy or ()),
        nodes=_counts(nodes),
        quotas=dict(_quota(text) for text in quota or ()),
        submit=tuple(submit or ()),
        without=tuple(without or ()),
    )
    with shown_progress() as show:
        found, question = compare_futures(
            find_state_dir(state),
            change,
            runs,
            arrivals=arrivals,
            budget_s=seconds,
            show=show,
        )
    if html is not None:
        write_report(html, found, question, runs)
    if as_json:
        typer.echo(json.dumps(as_plain(found, question)))
        return
    show_estimates(found, question, runs)


def _counts(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(each) for each in text.split(",")) if text else ()
    except ValueError:
        allowed = "numbers of nodes, such as +4, -1 or +1,+2,+4"
        raise InputError("--nodes", text, allowed) from None


def _quota(text: str) -> tuple[str, int | None]:
    tenant, _, value = text.rpartition("=")
    if not tenant or not (value == "none" or value.isdecimal()):
        allowed = "TENANT=GPUS, or TENANT=none for no quota"
        raise InputError("--quota", text, allowed)
    return tenant, None if value == "none" else int(value)
