"""`coadapt submit`: check a job file here, then hand it to the scheduler."""

import json
from pathlib import Path
from typing import Annotated

import typer

from coadapt.cli.client import find_client
from coadapt.cli.state_dir import StateOption


def submit(
    job_file: Annotated[Path, typer.Argument(help="YAML file; see docs/job-file.md.", show_default=False)],
    state: StateOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the answer as JSON.")] = False,
) -> None:
    """Submit the job that a file describes; print its id."""
    import secrets

    from coadapt.service.jobfile import job_spec, read_job_file

    job = read_job_file(job_file)
    job_spec(job)
    # With a key of its own a request that is sent twice makes one job.
    headers = {"Idempotency-Key": secrets.token_hex(16)}
    answer = find_client(state).post("/v1/jobs", job.model_dump(mode="json", exclude_unset=True), headers)
    typer.echo(json.dumps(answer) if as_json else answer["id"])
