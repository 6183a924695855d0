"""`coadapt priority`: give a job another priority among the jobs of its tenant."""

import json
from typing import Annotated

import typer

from coadapt.cli.client import find_client
from coadapt.cli.completion import complete_job
from coadapt.cli.state_dir import StateOption


def priority(
    job: Annotated[
        str,
        typer.Argument(
            help="Id of the job, or its beginning.", autocompletion=complete_job
        ),
    ],
    value: Annotated[
        int, typer.Argument(metavar="PRIORITY", help="Higher goes first; 0 at first.")
    ],
    state: StateOption = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the answer as JSON.")
    ] = False,
) -> None:
    """Change a job's priority among the jobs of its tenant, from the next decision on.

    Only some policies use priorities: see docs/policies.
    """
    client = find_client(state)
    answer = client.put(f"{client.job_path(job)}/priority", {"priority": value})
    if as_json:
        typer.echo(json.dumps(answer))
    elif answer["ended_before"]:
        typer.echo(f"{answer['id']} had ended before")
    else:
        typer.echo(f"{answer['id']} has priority {answer['priority']}")
