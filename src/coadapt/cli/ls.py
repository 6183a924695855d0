"""`coadapt ls`: the jobs, one line each."""

import json
from typing import Annotated

import typer

from coadapt.cli.client import find_client
from coadapt.cli.state_dir import StateOption


def ls(
    state: StateOption = None,
    everything: Annotated[bool, typer.Option("--all", "-a", help="Ended jobs too.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List the jobs that have not ended."""
    from coadapt.cli.job_table import ENDED, colours_of, job_view

    jobs = find_client(state).jobs()
    shown = [job for job in jobs if everything or job["state"] not in ENDED]
    if as_json:
        typer.echo(json.dumps({"jobs": shown}))
        return
    from coadapt.cli.console import make_console

    console = make_console()
    if shown:
        console.print(job_view(shown, colours_of(jobs), console.width))
    num_ended = len(jobs) - len(shown)
    if num_ended:
        console.print(f"{num_ended} ended, see coadapt ls --all", style="bright_black")
    elif not shown:
        console.print("No jobs. Submit one with: coadapt submit job.yaml")
