"""`coadapt incident`: what a developer needs to replay what happened to a job."""

import json
import platform
from pathlib import Path
from typing import Annotated

import typer

from coadapt import __version__
from coadapt.cli.completion import complete_job
from coadapt.cli.exit_codes import EXIT_FAILED
from coadapt.cli.state_dir import PRIVATE_FILE, StateOption, find_state_dir
from coadapt.model import InputError


def incident(
    job: Annotated[
        str,
        typer.Argument(
            help="Id of the job; with --replay, the file.",
            autocompletion=complete_job,
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option("--out", help="File to write; else JOB.incident.json here."),
    ] = None,
    replay: Annotated[
        bool,
        typer.Option("--replay", help="Replay a file, and show the job's history."),
    ] = False,
    state: StateOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Write a file that replays what happened to a job.

    The file contains the events that led to the job's state, settings, job specs and
    versions. It contains commands and paths, but no values of environment variables.
    """
    if replay:
        _replay(Path(job), as_json=as_json)
        return
    from coadapt.durable import write_whole
    from coadapt.runtime.incident import incident_of
    from coadapt.runtime.journal import Journal

    directory = find_state_dir(state)
    if not directory.journal.exists():
        allowed = "a directory that `coadapt up` has run on"
        raise InputError("--state", str(directory.path), allowed)
    last_run = directory.last_run() or {}
    journal = Journal.at_path(directory.journal)
    try:
        found = incident_of(
            journal,
            job,
            directory.first_config(),
            {
                "coadapt": __version__,
                "python": platform.python_version(),
                "system": platform.platform(),
                "policy": last_run.get("policy", ""),
            },
        )
    finally:
        journal.close()
    path = out or Path(f"{job}.incident.json")
    write_whole(path, found.text(), mode=PRIVATE_FILE)
    facts = {"file": str(path), "num_events": len(found.events), "job": job}
    text = f"{path}: {len(found.events)} events"
    typer.echo(json.dumps(facts) if as_json else text)


def _replay(path: Path, *, as_json: bool) -> None:
    from coadapt.runtime.incident import read_incident

    if not path.is_file():
        raise InputError("JOB", str(path), "a file that `coadapt incident` wrote")
    found = read_incident(path.read_text(encoding="utf-8"))
    lines = found.story()
    replayed = found.replayed()
    same = replayed == found.ends_as
    if as_json:
        rows = [{"at": line.at, "text": line.text} for line in lines]
        typer.echo(json.dumps({"job": found.job, "same": same, "lines": rows}))
    else:
        for line in lines:
            typer.echo(f"{line.at:.3f}  {line.text}")
        end = "as it was recorded" if same else "not as it was recorded"
        typer.echo(f"{found.job} ends {end}: {': '.join(replayed)}")
    if not same:
        raise typer.Exit(EXIT_FAILED)
