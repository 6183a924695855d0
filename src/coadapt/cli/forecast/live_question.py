"""The state of a live scheduler as a question to a forecast, read from its files."""

import time
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from coadapt.cli.cluster.read_back import read_back_into
from coadapt.cli.state_dir import StateDir
from coadapt.core.lifecycle import JobState
from coadapt.model import InputError, JobId, JobSpec
from coadapt.runtime.job_index import EndedQuery, JobIndex
from coadapt.sim.ahead.remainder import EndedWork
from coadapt.sim.ahead.roll import Question

# So many jobs that ended last say how long jobs are, and how true estimates were.
ENDED_LOOKED_AT = 500
DEFAULT_POLICY = "castor"
NAMED_MAX = 5  # jobs in an error's line


@dataclass(frozen=True, slots=True, kw_only=True)
class Live:
    """The question, and when jobs came to start and end, s since 1970: live ones and
    those that ended lately.
    """

    question: Question
    started_at: Mapping[JobId, float]
    ended_at: Mapping[JobId, float]


def read_live(directory: StateDir, at: float | None = None) -> Live:
    """Return the state at `at` (s since 1970), else of now. Raises InputError."""
    if not directory.journal.exists():
        allowed = "a directory that `coadapt up` has run on"
        raise InputError("--state", str(directory.path), allowed)
    index = JobIndex(":memory:")
    scheduler, _ = read_back_into(
        index, directory.journal, directory.index, directory.first_config()
    )
    running = directory.is_listened_on()
    now = time.time() if running else scheduler.state.at
    state = scheduler.state
    # The settings in force, also where no event has changed them.
    state.config = scheduler.config
    started_at = {
        job.id: job.usage.started_at
        for job in state.active
        if job.usage.started_at is not None
    }
    ended_at: dict[JobId, float] = {}
    for job in index.ended_page(EndedQuery(limit=ENDED_LOOKED_AT, newest=True)):
        if isinstance(began := job.picture.get("started_at"), int | float):
            started_at[job.id] = float(began)
        if job.state is JobState.SUCCEEDED:
            ended_at[job.id] = job.ended_at
    question = Question(
        state=state,
        at=max(now if at is None else at, state.at),
        policy=(directory.last_run() or {}).get("policy", DEFAULT_POLICY),
        ended=ended_work(index),
    )
    return Live(question=question, started_at=started_at, ended_at=ended_at)


def ended_work(index: JobIndex) -> EndedWork:
    """Return the GPU-seconds of the jobs that succeeded lately."""
    query = EndedQuery(
        states=frozenset({JobState.SUCCEEDED}), limit=ENDED_LOOKED_AT, newest=True
    )
    found: defaultdict[str, list[float]] = defaultdict(list)
    for job in index.ended_page(query):
        gpu_s = job.picture.get("attained_service_gpu_s")
        if not isinstance(gpu_s, int | float) or not gpu_s:
            continue
        found[""].append(float(gpu_s))
        spec = job.spec
        application = spec.get("application") if isinstance(spec, dict) else None
        if isinstance(application, str) and application:
            found[application].append(float(gpu_s))
    return EndedWork(gpu_s=dict(found))


def named_job(question: Question, given: str) -> JobId:
    """Return the id of the live job with this id, or the only one that begins so.

    Raises InputError.
    """
    ids = [job.id for job in question.state.active]
    found = (
        [given] if given in ids else [each for each in ids if each.startswith(given)]
    )
    if len(found) != 1 or not given:
        allowed = "the id of a live job, or its beginning"
        if found and given:
            allowed += f": {', '.join(sorted(found)[:NAMED_MAX])}"
        raise InputError("job", given, allowed)
    return found[0]


def spec_of_file(path: Path, at: float) -> tuple[JobId, JobSpec]:
    """Return an id and the spec of the job of a job file. Raises InputError."""
    from coadapt.service.jobfile import job_spec, read_job_file

    job = read_job_file(path)
    return f"new: {job.name}", job_spec(job, at)
