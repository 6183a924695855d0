"""`coadapt logs`: what one replica of a job printed, over all its generations."""

import json
import sys
from collections.abc import Iterable, Iterator
from typing import Annotated

import typer

from coadapt.cli.client import Client, find_client
from coadapt.cli.completion import complete_job
from coadapt.cli.state_dir import StateOption

# Reasons whose explanation names a replica and what it said last.
FAILED = frozenset({"script_failed", "replicas_lost", "too_many_failures"})


def logs(
    job: Annotated[
        str,
        typer.Argument(
            help="Id of the job, or the beginning of it.", autocompletion=complete_job
        ),
    ],
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Keep printing until the job ends.")
    ] = False,
    rank: Annotated[
        int, typer.Option(min=0, help="Rank of the replica whose log is shown.")
    ] = 0,
    offset: Annotated[int, typer.Option(min=0, help="Skip this many bytes.")] = 0,
    state: StateOption = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object per line of the log.")
    ] = False,
) -> None:
    """Show a job's log."""
    client = find_client(state)
    found = client.get(client.job_path(job))
    show_log(
        client,
        str(found["id"]),
        follow=follow,
        rank=rank,
        offset=offset,
        as_json=as_json,
    )


def show_log(
    client: Client,
    job: str,
    *,
    follow: bool,
    rank: int = 0,
    offset: int = 0,
    as_json: bool = False,
) -> None:
    """Copy the log to stdout; then say on stderr why the job failed, if it did."""
    follows = "&follow=true" if follow else ""
    chunks = client.stream(
        f"{client.job_path(job)}/logs?rank={rank}&offset={offset}{follows}"
    )
    try:
        if as_json:
            for line in _lines(chunks):
                typer.echo(json.dumps({"job": job, "rank": rank, "line": line}))
        else:
            for chunk in chunks:
                sys.stdout.buffer.write(chunk)
                sys.stdout.buffer.flush()
    except KeyboardInterrupt:
        raise typer.Exit from None
    found = client.get(client.job_path(job))
    if found["reason"] in FAILED:
        # The log of another replica may be the one to look at.
        typer.echo(
            f"{found['id']} {str(found['explanation']).splitlines()[0]}", err=True
        )


def _lines(chunks: Iterable[bytes]) -> Iterator[str]:
    """Yield whole lines as soon as they are whole, and what stands after the last."""
    rest = b""
    for chunk in chunks:
        *whole, rest = (rest + chunk).split(b"\n")
        for line in whole:
            yield line.decode(errors="replace")
    if rest:
        yield rest.decode(errors="replace")
