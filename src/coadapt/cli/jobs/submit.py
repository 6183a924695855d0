"""`coadapt submit`: check a job file here, then hand it to the scheduler."""

import json
import secrets
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from coadapt.cli.client import find_client, is_remote
from coadapt.cli.state_dir import StateOption, find_state_dir
from coadapt.model import InputError
from coadapt.model.wire import Json

if TYPE_CHECKING:
    from coadapt.service.jobfile import JobFile


def submit(
    job_files: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE",
            help="Job files (YAML); - reads stdin. The keys: docs/job-file.md.",
            show_default=False,
        ),
    ],
    state: StateOption = None,
    wait: Annotated[
        bool,
        typer.Option(
            "--wait",
            help="Return when the job has ended; exit code 3 if it failed.",
        ),
    ] = False,
    follow: Annotated[
        bool,
        typer.Option(
            "--follow",
            "-f",
            help="Show the job's log until it ends; otherwise like --wait.",
        ),
    ] = False,
    elsewhere: Annotated[
        bool,
        typer.Option(
            "--elsewhere",
            help="The workdir and the script are on the scheduler's machine, not "
            "on this one.",
        ),
    ] = False,
    sbatch: Annotated[
        bool,
        typer.Option(
            "--sbatch",
            help="Submit the job to Slurm, in an allocation of its own, without a"
            " scheduler.",
        ),
    ] = False,
    sbatch_option: Annotated[
        list[str] | None,
        typer.Option(
            metavar="OPTION",
            help="Option for sbatch, for example --gpus-per-node=4; may be repeated.",
        ),
    ] = None,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run",
            help="Submit nothing: say when each job would start and end, and on what.",
        ),
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the answers as JSON.")
    ] = False,
) -> None:
    """Submit jobs and print their ids. If one file has an error, none is submitted."""
    if follow and len(job_files) > 1:
        raise InputError(
            "--follow", f"{len(job_files)} files", "one file, whose log is shown"
        )
    on_disk = not (elsewhere or is_remote(state))
    bodies = [checked(path, on_disk=on_disk) for path in job_files]
    if sbatch:
        _by_sbatch(bodies, state, sbatch_option or [], as_json=as_json)
        return
    if dry_run:
        from coadapt.cli.forecast.dry_run import tell_estimates

        tell_estimates(job_files, state, as_json=as_json)
        return
    client = find_client(state)
    ids: list[str] = []
    for body in bodies:
        # With a key of its own a request that is sent twice makes one job.
        answer = client.post(
            "/v1/jobs", body, {"Idempotency-Key": secrets.token_hex(16)}
        )
        # Beside a log that is followed, or a last line of JSON, the id is for a person
        # at the terminal.
        typer.echo(
            json.dumps(answer) if as_json else answer["id"],
            err=follow or (wait and as_json),
        )
        ids.append(str(answer["id"]))
    if not (wait or follow):
        return
    from coadapt.cli.jobs.logs import show_log
    from coadapt.cli.jobs.wait import wait_for

    if follow:
        show_log(client, ids[0], follow=True, as_json=as_json)
    raise typer.Exit(wait_for(client, ids, None, as_json=as_json))


def _by_sbatch(
    bodies: list[Json], state: Path | None, options: list[str], *, as_json: bool
) -> None:
    from coadapt.cli.jobs.sbatch import submit_by_sbatch

    if len(bodies) > 1:
        raise InputError(
            "--sbatch",
            f"{len(bodies)} files",
            "one file; each job gets its own Slurm allocation",
        )
    job, folder = submit_by_sbatch(bodies[0], find_state_dir(state), options)
    typer.echo(json.dumps({"slurm_job": job, "state": str(folder)}) if as_json else job)
    if not as_json:
        typer.echo(
            f"its verbs, as it runs: coadapt describe … --state {folder}", err=True
        )


def checked(path: Path, *, on_disk: bool) -> Json:
    """Return the body of the request for a job file. Raises InputError (field, value,
    allowed).
    """
    from coadapt.service.jobfile import parse_job_file, read_job_file
    from coadapt.service.limits import JOB_FILE_BYTES_MAX

    if str(path) != "-":
        return body_of(read_job_file(path), on_disk=on_disk)
    text = sys.stdin.read(JOB_FILE_BYTES_MAX + 1)
    if len(text) > JOB_FILE_BYTES_MAX:
        raise InputError(
            "stdin", f"more than {JOB_FILE_BYTES_MAX} characters", "a job file"
        )
    return body_of(parse_job_file(text, "stdin", Path.cwd()), on_disk=on_disk)


def body_of(job: "JobFile", *, on_disk: bool) -> Json:
    """Return the body of the request for a job, once its values fit each other.

    on_disk: whether workdir and script must be on this machine. Raises InputError.
    """
    from coadapt.service.jobfile import check_disk, job_spec

    launch = job_spec(job, time.time()).launch
    assert launch is not None
    if on_disk:
        check_disk(launch)
    body: Json = job.model_dump(mode="json", exclude_unset=True)
    return body
