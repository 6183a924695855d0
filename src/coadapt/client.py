"""`coadapt.Client`: jobs of a running scheduler from Python.

It speaks the HTTP API by the client that the verbs use, and finds the scheduler as they
do. It loads neither torch nor a web server.
"""

import secrets
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from coadapt.cli.client import (
    TIMEOUT_S,
    JsonObject,
    RefusedError,
    UnreachableError,
    find_client,
    is_remote,
)
from coadapt.cli.client import Client as HttpClient
from coadapt.cli.jobs.job_states import ENDED
from coadapt.cli.jobs.wait import StillWaitingError, as_they_end
from coadapt.model import InputError

LOOK_S = 0.5

__all__ = [
    "Client",
    "Event",
    "Figures",
    "InputError",
    "Job",
    "RefusedError",
    "StillWaitingError",
    "UnreachableError",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """What a job last reported of its training.

    samples: trained so far. progress: samples times statistical efficiency. metrics:
    the newest value of each name that the script logged, by `run.log` for instance.
    """

    progress: float
    samples: float
    metrics: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A job at one instant.

    state: pending, starting, running, rescaling, stopping, succeeded, failed or
    cancelled. explanation: why, in a sentence. num_gpus: held now. gpu_s: GPU-seconds
    held so far. picture: all that `GET /v1/jobs/JOB` answers.
    """

    id: str
    name: str
    state: str
    explanation: str
    num_gpus: int
    gpu_s: float
    figures: Figures
    picture: Mapping[str, Any] = field(repr=False, compare=False)

    @property
    def ended(self) -> bool:
        return self.state in ENDED


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Something that happened to a job at `at` (s since 1970), in words; why: the
    reason where it is a decision.
    """

    at: float
    text: str
    why: str


class Client:
    """Submits jobs to a scheduler, watches and cancels them.

    Every method raises UnreachableError if no scheduler answers and RefusedError if it
    refuses; its `status` is that of HTTP: 404 for an unknown job.
    """

    def __init__(
        self, state: str | Path | None = None, *, timeout_s: float = TIMEOUT_S
    ) -> None:
        """`state`: the scheduler's state directory; None: that of the environment, else
        the user's own, as for the verbs.

        Raises UnreachableError, InputError.
        """
        given = None if state is None else Path(state)
        self._on_disk = not is_remote(given)
        self._http: HttpClient = find_client(given, timeout_s)

    def submit(self, job: str | Path | Mapping[str, object], *, key: str = "") -> str:
        """Submit a job file, or the mapping that such a file holds; return the job's
        id.

        With the same `key` the same job is submitted once, however often this is
        called. Raises InputError, as `coadapt submit` does, before anything is sent.
        """
        from coadapt.cli.jobs.submit import body_of
        from coadapt.service.jobfile import job_file_of, read_job_file

        if isinstance(job, Mapping):
            read = job_file_of(dict(job), "job", Path.cwd())
        else:
            read = read_job_file(Path(job))
        body = body_of(read, on_disk=self._on_disk)
        # A request that is sent twice makes one job.
        headers = {"Idempotency-Key": key or secrets.token_hex(16)}
        return str(self._http.post("/v1/jobs", body, headers)["id"])

    def get(self, job: str) -> Job:
        """Return the job with this id, or the only one whose id begins so."""
        return _job(self._http.get(self._http.job_path(job)))

    def jobs(self, *, name: str = "", tenant: str = "") -> list[Job]:
        """Return jobs in the order of their submission, ended ones too.

        name: a part of the name or id, or a pattern with `*`. tenant: only of this one.
        """
        return [_job(each) for each in self._http.jobs(name=name, tenant=tenant)]

    def wait(self, *jobs: str, timeout_s: float | None = None) -> list[Job]:
        """Return the jobs, in the order given, once all have ended.

        A scheduler may be away for a minute meanwhile. Raises StillWaitingError, a
        TimeoutError that names the jobs, after `timeout_s`.
        """
        ids = [self.get(job).id for job in jobs]
        ended = {
            str(each["id"]): _job(each)
            for each in as_they_end(self._http, ids, timeout_s)
        }
        return [ended[job] for job in ids]

    def cancel(self, job: str) -> Job:
        """Ask for the end of a job; one that has ended stays as it is."""
        answer = self._http.post(f"{self._http.job_path(job)}/cancel")
        return self.get(str(answer["id"]))

    def figures(self, job: str) -> Iterator[Figures]:
        """Yield what the job reports, as it reports, until it has ended.

        A look every 0.5 s: of two reports that are closer together only the later may
        be seen.
        """
        last: Figures | None = None
        while True:
            now = self.get(job)
            if now.figures != last:
                last = now.figures
                yield last
            if now.ended:
                return
            time.sleep(LOOK_S)

    def events(self, job: str) -> Iterator[Event]:
        """Yield all that happened to the job from its submission, and what happens,
        until it has ended.
        """
        path = self._http.job_path(self.get(job).id)
        after = -1
        while True:
            # Looked at first: what led to the end is among the changes read then.
            ended = self.get(job).ended
            changes = self._changes(path, after)
            for change in changes:
                after = cast(int, change["seq"])
                yield Event(
                    at=cast(float, change["at"]),
                    text=str(change["text"]),
                    why=str(change["why"]),
                )
            if ended and not changes:
                return
            if not changes:
                time.sleep(LOOK_S)

    def _changes(self, path: str, after: int) -> list[JsonObject]:
        answer = self._http.get(f"{path}/changes?after={after}")
        return cast("list[JsonObject]", answer["changes"])


def _job(picture: JsonObject) -> Job:
    figures = Figures(
        progress=cast(float, picture["progress"]),
        samples=cast(float, picture["samples"]),
        metrics=cast("dict[str, float]", picture["metrics"]),
    )
    return Job(
        id=str(picture["id"]),
        name=str(picture["name"]),
        state=str(picture["state"]),
        explanation=str(picture["explanation"]),
        num_gpus=cast(int, picture["num_gpus"]),
        gpu_s=cast(float, picture["attained_service_gpu_s"]),
        figures=figures,
        picture=picture,
    )
