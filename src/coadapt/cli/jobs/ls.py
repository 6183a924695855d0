"""`coadapt ls`: the jobs, one line each."""

import json
from typing import Annotated, cast

import typer

from coadapt.cli.client import find_client
from coadapt.cli.completion import complete_states
from coadapt.cli.jobs.job_states import ENDED, LIVE
from coadapt.cli.state_dir import StateOption

# More rows than anybody reads; `-n 0` shows all.
DEFAULT_ROWS = 200


def ls(
    state: StateOption = None,
    everything: Annotated[
        bool, typer.Option("--all", "-a", help="Also show ended jobs.")
    ] = False,
    in_states: Annotated[
        str,
        typer.Option(
            "--in",
            "-s",
            metavar="STATES",
            help="Only jobs in these states, separated by commas: running,pending.",
            autocompletion=complete_states,
        ),
    ] = "",
    tenant: Annotated[
        str, typer.Option("--tenant", "-t", help="Only jobs of this tenant.")
    ] = "",
    name: Annotated[
        str,
        typer.Option(
            "--name",
            help="Only jobs with this text in their name or id; * and ? are wildcards.",
        ),
    ] = "",
    rows: Annotated[
        int,
        typer.Option(
            "--rows",
            "-n",
            min=0,
            metavar="N",
            help="Show at most N jobs, the newest; 0: all.",
        ),
    ] = DEFAULT_ROWS,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List the jobs that have not ended."""
    client = find_client(state)
    states = in_states or ("" if everything else ",".join(LIVE))
    filters = {"state": states, "tenant": tenant, "name": name}
    given: dict[str, str | bool] = {
        key: value for key, value in filters.items() if value
    }
    latest = client.jobs(most=rows or None, newest=True, **given)
    jobs = latest[::-1]
    if as_json:
        typer.echo(json.dumps({"jobs": jobs}))
        return
    from coadapt.cli.console import make_console
    from coadapt.cli.jobs.job_table import colours_of, job_view

    console = make_console()
    if jobs:
        console.print(job_view(jobs, colours_of(jobs), console.width))
    if rows and len(jobs) == rows:
        console.print(
            f"the latest {rows}; coadapt ls -n 0 shows all", style="bright_black"
        )
    numbers = cast("dict[str, int]", client.get("/v1/cluster?limit=0")["num_jobs"])
    num_ended = sum(number for name, number in numbers.items() if name in ENDED)
    filtered = bool(in_states or tenant or name)
    if num_ended and not everything and not filtered:
        console.print(f"{num_ended} ended, see coadapt ls --all", style="bright_black")
    elif not jobs:
        text = (
            "No such job."
            if filtered
            else "No jobs. Submit one with: coadapt submit job.yaml"
        )
        console.print(text)
