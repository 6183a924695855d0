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
    "Sweep",
    "Trial",
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One trial of a search over hyper-parameters.

    state: running, complete, pruned or fail, as Optuna names them. value: its final
    value, None unless it is complete. job: the id of its job. why: the reason of its
    end, where it was pruned or failed. cost: so far, as that of a sweep. values:
    intermediate values as (step, value).
    """

    number: int
    state: str
    value: float | None
    params: Mapping[str, bool | int | float | str]
    job: str
    why: str
    cost: float
    values: tuple[tuple[int, float], ...] = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """A search over hyper-parameters at one instant.

    state: running, stopped or done; why: the reason, "" while it is running. best: the
    completed trial with the best value, None before one is completed. cost: of all
    trials so far, in the currency of the scheduler's prices; 0 without prices.
    deadline_at: s since 1970. budget: the most that trials may cost.
    """

    name: str
    state: str
    metric: str
    direction: str
    n_trials: int
    trials: tuple[Trial, ...] = field(repr=False)
    best: Trial | None
    why: str
    cost: float
    deadline_at: float | None
    budget: float | None


class Client:
    """Submits jobs and searches to a scheduler, watches and cancels them.

    Every method raises UnreachableError if no scheduler answers, and RefusedError if
    the scheduler refuses the request. RefusedError's `status` is the HTTP status: 404
    for an unknown job.
    """

    def __init__(
        self, state: str | Path | None = None, *, timeout_s: float = TIMEOUT_S
    ) -> None:
        """Find the scheduler of `state`, its state directory.

        None: $COADAPT_STATE, else the user's default directory, as for the commands.
        Raises UnreachableError, and InputError for a directory that cannot be used.
        """
        given = None if state is None else Path(state)
        self._on_disk = not is_remote(given)
        self._http: HttpClient = find_client(given, timeout_s)

    def submit(self, job: str | Path | Mapping[str, object], *, key: str = "") -> str:
        """Submit a job file, or a mapping with its keys. Return the job's id.

        However often this is called with the same `key`, the job is submitted once.
        Raises InputError for an invalid job file, before it sends anything.
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
        """Return the job with this id, or with this unique beginning of an id."""
        return _job(self._http.get(self._http.job_path(job)))

    def jobs(self, *, name: str = "", tenant: str = "") -> list[Job]:
        """Return jobs in the order of their submission, ended jobs included.

        name: a part of the name or id, or a pattern with `*`. tenant: only jobs of this
        tenant.
        """
        return [_job(each) for each in self._http.jobs(name=name, tenant=tenant)]

    def wait(self, *jobs: str, timeout_s: float | None = None) -> list[Job]:
        """Wait until all these jobs have ended, and return them in the order given.

        The scheduler may be unreachable for a minute meanwhile. timeout_s: raises
        StillWaitingError, a TimeoutError that names the jobs, after this time.
        """
        ids = [self.get(job).id for job in jobs]
        ended = {
            str(each["id"]): _job(each)
            for each in as_they_end(self._http, ids, timeout_s)
        }
        return [ended[job] for job in ids]

    def cancel(self, job: str) -> Job:
        """Cancel the job. A job that has ended is not changed."""
        answer = self._http.post(f"{self._http.job_path(job)}/cancel")
        return self.get(str(answer["id"]))

    def submit_sweep(self, search: str | Path | Mapping[str, object]) -> str:
        """Submit a search file, or a mapping with its keys. Return the study's name.

        The same search submitted again is the same study. Raises InputError for an
        invalid search file, before it sends anything.
        """
        from coadapt.service.jobfile import check_disk, job_spec
        from coadapt.service.studies.search_file import (
            read_search_file,
            search_file_of,
        )

        if isinstance(search, Mapping):
            file = search_file_of(dict(search), "search", Path.cwd())
        else:
            file = read_search_file(Path(search))
        params = dict.fromkeys(file.search.space, 0)
        launch = job_spec(file.trial(0, params), 0.0).launch
        if self._on_disk and launch is not None:
            check_disk(launch)
        return str(self._http.post("/v1/studies", file.document())["study"])

    def sweep(self, study: str) -> Sweep:
        """Return a study and all its trials."""
        return _sweep(self._http.get(self._http.study_path(study)))

    def stop_sweep(self, study: str, *, cancel: bool = False) -> Sweep:
        """Start no further trial of the study. With `cancel`, also cancel its running
        trials.
        """
        query = "?cancel=true" if cancel else ""
        self._http.post(f"{self._http.study_path(study)}/stop{query}")
        return self.sweep(study)

    def resume_sweep(self, study: str) -> Sweep:
        """Continue a stopped study."""
        self._http.post(f"{self._http.study_path(study)}/resume")
        return self.sweep(study)

    def remove_sweep(self, study: str) -> None:
        """Delete a study that has ended, or that is stopped and has no running
        trial.
        """
        self._http.delete(self._http.study_path(study))

    def figures(self, job: str) -> Iterator[Figures]:
        """Yield the job's reported figures as they arrive, until the job has ended.

        The client asks every 0.5 s. If two reports arrive within this time, it may miss
        the first.
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
        """Yield the job's events, those since its submission first, until the job has
        ended.
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


def _sweep(picture: JsonObject) -> Sweep:
    trials = tuple(_trial(each) for each in cast("list[JsonObject]", picture["trials"]))
    best = cast("JsonObject | None", picture["best"])
    return Sweep(
        name=str(picture["study"]),
        state=str(picture["state"]),
        metric=str(picture["metric"]),
        direction=str(picture["direction"]),
        n_trials=cast(int, picture["n_trials"]),
        trials=trials,
        best=None if best is None else _trial(best),
        why=str(picture["why"]),
        cost=cast(float, picture["cost"]),
        deadline_at=cast("float | None", picture["deadline_at"]),
        budget=cast("float | None", picture["budget"]),
    )


def _trial(row: JsonObject) -> Trial:
    values = cast("list[tuple[int, float]]", row["values"])
    return Trial(
        number=cast(int, row["number"]),
        state=str(row["state"]),
        value=cast("float | None", row["value"]),
        params=cast("dict[str, bool | int | float | str]", row["params"]),
        job=str(row["job"]),
        why=str(row["why"]),
        cost=cast(float, row["cost"]),
        values=tuple((step, value) for step, value in values),
    )


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
