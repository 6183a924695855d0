"""`coadapt cancel`: ask for the end of jobs."""

import json
from typing import Annotated

import typer

from coadapt.cli.client import JsonObject, RefusedError, find_client
from coadapt.cli.completion import complete_job
from coadapt.cli.exit_codes import EXIT_INPUT
from coadapt.cli.state_dir import StateOption


def cancel(
    jobs: Annotated[
        list[str],
        typer.Argument(
            metavar="JOB",
            help="Ids of jobs, or the beginnings of them.",
            autocompletion=complete_job,
        ),
    ],
    state: StateOption = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the answers as JSON.")
    ] = False,
) -> None:
    """Cancel jobs. Their replicas are stopped; their checkpoints and logs are kept."""
    client = find_client(state)
    paths = [client.job_path(job) for job in jobs]
    answers: list[JsonObject] = []
    refused = False
    for path in paths:
        try:
            answer = client.post(f"{path}/cancel")
        except RefusedError as error:
            if len(paths) == 1 or error.status != 404:
                raise
            # The others are cancelled all the same.
            typer.echo(f"error: {error}", err=True)
            refused = True
            continue
        answers.append(answer)
        if not as_json:
            typer.echo(_outcome_text(answer))
    if as_json:
        typer.echo(json.dumps({"jobs": answers}))
    if refused:
        raise typer.Exit(EXIT_INPUT)


def _outcome_text(answer: JsonObject) -> str:
    if answer["ended_before"]:
        return f"{answer['id']} had ended before: {answer['state']}"
    return f"{answer['id']} is " + (
        "cancelled" if answer["state"] == "cancelled" else "being cancelled"
    )
