"""`coadapt story`: the whole life of one job, from the journal."""

from datetime import datetime
from typing import Annotated, cast

import typer

from coadapt.cli.client import JsonObject, find_client
from coadapt.cli.state_dir import StateOption


def story(
    job: Annotated[str, typer.Argument(help="Id of the job, or its beginning.")], state: StateOption = None
) -> None:
    """Tell a job's life: what happened, what was decided, and why."""
    client = find_client(state)
    for line in cast("list[JsonObject]", client.get(f"{client.job_path(job)}/story")["lines"]):
        at = datetime.fromtimestamp(cast(float, line["at"])).astimezone()
        first, *more = str(line["text"]).splitlines()
        typer.echo(f"{at:%Y-%m-%d %H:%M:%S}  {first}")
        for rest in more:
            typer.echo(f"{'':21}{rest}")
