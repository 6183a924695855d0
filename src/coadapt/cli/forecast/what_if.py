"""`coadapt what-if`: what another policy, more nodes or another quota would change."""

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from coadapt.cli.state_dir import StateOption, find_state_dir
from coadapt.model import InputError

if TYPE_CHECKING:
    from coadapt.sim.ahead.scenario import Scenario

ROLLS_MAX = 500


def what_if(
    policy: Annotated[
        list[str] | None,
        typer.Option(
            "--policy", help="Use this policy; may be repeated.", show_default=False
        ),
    ] = None,
    nodes: Annotated[
        int, typer.Option("--nodes", help="Add (+4) or remove (-1) nodes.")
    ] = 0,
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
    runs: Annotated[
        int,
        typer.Option(
            "--runs",
            help="Number of simulated futures.",
            min=1,
            max=ROLLS_MAX,
        ),
    ] = 20,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Compare futures of the live jobs: as it is, and with a change.

    The scheduler is not asked and not changed: its files are read.
    """
    from coadapt.cli.forecast.kept import corrected
    from coadapt.cli.forecast.live_question import (
        named_job,
        read_live,
        spec_of_file,
    )
    from coadapt.cli.forecast.tables import as_plain, show_estimates
    from coadapt.sim.ahead.estimate import estimates
    from coadapt.sim.ahead.scenario import Scenario

    directory = find_state_dir(state)
    live = read_live(directory)
    question = live.question
    change = Scenario(
        nodes=nodes,
        quotas=dict(_quota(text) for text in quota or ()),
        submit=dict(spec_of_file(path, question.at) for path in submit or ()),
        without=tuple(named_job(question, job) for job in without or ()),
    )
    named = _name(change)
    if not (policy or named):
        allowed = "at least one of --policy, --nodes, --quota, --submit, --without"
        raise InputError("what-if", "no change", allowed)
    scenarios = [Scenario()]
    for each in policy or [""]:
        name = ", ".join(filter(None, (each, named)))
        scenarios.append(replace(change, name=name, policy=each))
    found = corrected(estimates(question, scenarios, runs), directory, live)
    if as_json:
        typer.echo(json.dumps(as_plain(found, question.at)))
        return
    show_estimates(found, question)


def _quota(text: str) -> tuple[str, int | None]:
    tenant, _, value = text.rpartition("=")
    if not tenant or not (value == "none" or value.isdecimal()):
        allowed = "TENANT=GPUS, or TENANT=none for no quota"
        raise InputError("--quota", text, allowed)
    return tenant, None if value == "none" else int(value)


def _name(change: "Scenario") -> str:
    """Return the change in a few words, "" for none."""
    parts = [f"{change.nodes:+d} nodes"] if change.nodes else []
    parts += [
        f"quota {tenant}={'none' if gpus is None else gpus}"
        for tenant, gpus in change.quotas.items()
    ]
    parts += list(change.submit)
    parts += [f"without {job}" for job in change.without]
    return ", ".join(parts)
