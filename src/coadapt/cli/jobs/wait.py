"""`coadapt wait`: come back once jobs have ended."""

import json
import time
from collections.abc import Iterable, Iterator
from typing import Annotated

import typer

from coadapt.cli.client import (
    TIMEOUT_S,
    Client,
    JsonObject,
    UnreachableError,
    find_client,
)
from coadapt.cli.completion import complete_job
from coadapt.cli.exit_codes import EXIT_JOB_FAILED, EXIT_TIMEOUT
from coadapt.cli.jobs.job_states import ENDED
from coadapt.cli.state_dir import StateOption

# The first looks are close together, since short jobs end soon; later ones cost a busy
# scheduler little.
FIRST_LOOK_S = 0.2
LOOKS_APART_MAX_S = 2.0
# How long a scheduler may be away, say while it is started again, before that is an
# error.
PATIENCE_S = 60.0
# The least time that it gets to answer, whatever --timeout says.
ANSWER_S = 5.0


def wait(
    jobs: Annotated[
        list[str],
        typer.Argument(
            metavar="JOB",
            help="Ids of jobs, or the beginnings of them.",
            autocompletion=complete_job,
        ),
    ],
    timeout_s: Annotated[
        float | None,
        typer.Option(
            "--timeout",
            min=0.0,
            help="Stop waiting after this many seconds, with exit code 124.",
        ),
    ] = None,
    state: StateOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Wait until jobs have ended. The exit code is 0 if all succeeded, 3 if one did
    not.
    """
    answer_s = (
        TIMEOUT_S if timeout_s is None else min(max(timeout_s, ANSWER_S), TIMEOUT_S)
    )
    raise typer.Exit(
        wait_for(find_client(state, answer_s), jobs, timeout_s, as_json=as_json)
    )


class StillWaitingError(TimeoutError):
    """Jobs have not ended within the time that was given for them: `waiting`, ids."""

    def __init__(self, waiting: list[str]) -> None:
        self.waiting = waiting
        super().__init__(f"still waiting for {', '.join(waiting)}")


def wait_for(
    client: Client, jobs: Iterable[str], timeout_s: float | None, *, as_json: bool
) -> int:
    """Print each job as it ends, or all as JSON in the end; return the exit code.

    Raises RefusedError for an unknown job, UnreachableError if the scheduler stays
    away.
    """
    ended: list[JsonObject] = []
    waiting: list[str] = []
    try:
        for job in as_they_end(client, jobs, timeout_s):
            ended.append(job)
            if not as_json:
                _tell(job)
    except StillWaitingError as error:
        waiting = error.waiting
    if as_json:
        typer.echo(json.dumps({"ended": ended, "waiting": [*waiting]}))
    if waiting:
        typer.echo(str(StillWaitingError(waiting)), err=True)
        return EXIT_TIMEOUT
    return 0 if all(job["state"] == "succeeded" for job in ended) else EXIT_JOB_FAILED


def as_they_end(
    client: Client, jobs: Iterable[str], timeout_s: float | None
) -> Iterator[JsonObject]:
    """Yield each job once it has ended.

    Raises StillWaitingError when the time is over, RefusedError for an unknown job,
    UnreachableError if the scheduler stays away.
    """
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    # Once found by its beginning a job keeps its id, whatever is submitted meanwhile.
    waiting = list(
        dict.fromkeys(str(client.get(client.job_path(job))["id"]) for job in jobs)
    )
    look_s = FIRST_LOOK_S
    away_since = None
    while True:
        try:
            looks = [client.get(client.job_path(job)) for job in waiting]
            away_since = None
        except UnreachableError:
            looks = []
            away_since = away_since or time.monotonic()
            if time.monotonic() - away_since > PATIENCE_S:
                raise
        for job in (job for job in looks if job["state"] in ENDED):
            waiting.remove(str(job["id"]))
            yield job
        if not waiting:
            return
        if deadline is not None and time.monotonic() >= deadline:
            raise StillWaitingError(waiting)
        left_s = (
            look_s
            if deadline is None
            else max(min(look_s, deadline - time.monotonic()), 0.0)
        )
        time.sleep(left_s)
        look_s = min(look_s * 1.5, LOOKS_APART_MAX_S)


def _tell(job: JsonObject) -> None:
    why = str(job["explanation"]).split("\n", 1)[0]
    typer.echo(
        f"{job['id']} {job['state']}" + (f": {why}" * (job["state"] != "succeeded"))
    )
