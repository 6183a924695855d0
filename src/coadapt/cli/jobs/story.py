"""`coadapt story`: the whole life of one job."""

import json
from datetime import datetime
from typing import Annotated, cast

import typer

from coadapt.cli.client import JsonObject, find_client
from coadapt.cli.completion import complete_job
from coadapt.cli.state_dir import StateOption


def story(
    job: Annotated[
        str,
        typer.Argument(
            help="Id of the job, or the beginning of it.", autocompletion=complete_job
        ),
    ],
    state: StateOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show a job's history: what happened, what was decided, and why."""
    client = find_client(state)
    answer = client.get(f"{client.job_path(job)}/story")
    if as_json:
        typer.echo(json.dumps(answer))
        return
    for line in cast("list[JsonObject]", answer["lines"]):
        at = datetime.fromtimestamp(cast(float, line["at"])).astimezone()
        first, *more = str(line["text"]).splitlines()
        typer.echo(f"{at:%Y-%m-%d %H:%M:%S}  {first}")
        for rest in more:
            typer.echo(f"{'':21}{rest}")
