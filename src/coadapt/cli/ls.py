"""`coadapt ls`: the jobs, one line each."""

import json
import sys
from typing import Annotated

import typer

from coadapt.cli.client import find_client
from coadapt.cli.state_dir import StateOption

# Pipes and files have no width: enough for a sentence, and grep finds whole lines.
PIPE_WIDTH = 200


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
    from rich.console import Console

    console = Console(width=None if sys.stdout.isatty() else PIPE_WIDTH)
    if shown:
        console.print(job_view(shown, colours_of(jobs), console.width))
    num_ended = len(jobs) - len(shown)
    if num_ended:
        console.print(f"{num_ended} ended, see coadapt ls --all", style="bright_black", highlight=False)
    elif not shown:
        console.print("No jobs. Submit one with: coadapt submit job.yaml", highlight=False)
