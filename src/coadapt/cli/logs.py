"""`coadapt logs`: what one replica of a job printed, over all its generations."""

import sys
from typing import Annotated

import typer

from coadapt.cli.client import find_client
from coadapt.cli.state_dir import StateOption

# Reasons whose explanation names a replica and what it said last.
FAILED = frozenset({"script_failed", "replicas_lost", "too_many_failures"})


def logs(
    job: Annotated[str, typer.Argument(help="Id of the job, or its beginning.")],
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until the job ends.")] = False,
    rank: Annotated[int, typer.Option(min=0, help="Replica whose log to show.")] = 0,
    offset: Annotated[int, typer.Option(min=0, help="Bytes to leave out.")] = 0,
    state: StateOption = None,
) -> None:
    """Show a job's log."""
    client = find_client(state)
    follows = "&follow=true" if follow else ""
    try:
        for chunk in client.stream(f"{client.job_path(job)}/logs?rank={rank}&offset={offset}{follows}"):
            sys.stdout.buffer.write(chunk)
            sys.stdout.buffer.flush()
    except KeyboardInterrupt:
        raise typer.Exit from None
    found = client.get(client.job_path(job))
    if found["reason"] in FAILED:
        # The log of another replica may be the one to look at.
        typer.echo(f"{found['id']} {str(found['explanation']).splitlines()[0]}", err=True)
