"""`coadapt cancel`: ask for a job's end."""

from typing import Annotated

import typer

from coadapt.cli.client import find_client
from coadapt.cli.state_dir import StateOption


def cancel(
    job: Annotated[str, typer.Argument(help="Id of the job, or its beginning.")], state: StateOption = None
) -> None:
    """Cancel a job: its replicas are stopped, its checkpoints and logs stay."""
    client = find_client(state)
    answer = client.post(f"{client.job_path(job)}/cancel")
    typer.echo(f"{answer['id']} is being cancelled")
