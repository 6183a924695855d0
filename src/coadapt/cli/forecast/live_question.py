"""The state of a live scheduler as a question to a forecast, read from its files."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from coadapt.cli.cluster.read_back import read_back_into
from coadapt.cli.state_dir import StateDir
from coadapt.core.lifecycle import JobState
from coadapt.core.state import SchedulerState
from coadapt.model import InputError, JobId, JobSpec, Measured
from coadapt.model.wire import from_json
from coadapt.runtime.job_index import EndedJob, EndedQuery, JobIndex
from coadapt.sim.ahead.arrivals import Arrivals, Submission
from coadapt.sim.ahead.past_rounds import PastRounds
from coadapt.sim.ahead.remainder import EndedWork, Work
from coadapt.sim.ahead.roll import JOBS_FEW, Question

# Ended jobs, those that were submitted last, from which a forecast learns how long jobs
# are, how often they come, and how true estimates were.
ENDED_LOOKED_AT = 2_000
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


def read_live(
    directory: StateDir, at: float | None = None, *, arrivals: bool = True
) -> Live:
    """Return the state at `at` (s since 1970), else of now. Raises InputError.

    arrivals: whether jobs come later, as they came before.
    """
    if not directory.journal.exists():
        allowed = "a directory that `coadapt up` has run on"
        raise InputError("--state", str(directory.path), allowed)
    index = JobIndex(":memory:")
    past = PastRounds()
    scheduler, _ = read_back_into(
        index,
        directory.journal,
        directory.index,
        directory.first_config(),
        past.observe,
        earlier_up_to=JOBS_FEW,
    )
    running = directory.is_listened_on()
    now = time.time() if running else scheduler.state.at
    state = scheduler.state
    # The settings in force, also where no event has changed them.
    state.config = scheduler.config
    ended = index.ended_page(EndedQuery(limit=ENDED_LOOKED_AT, newest=True))
    submissions = [submission_of(job) for job in ended]
    started_at = {
        job.id: job.usage.started_at
        for job in state.active
        if job.usage.started_at is not None
    }
    ended_at: dict[JobId, float] = {}
    for job in ended:
        if isinstance(began := job.picture.get("started_at"), int | float):
            started_at[job.id] = float(began)
        if job.state is JobState.SUCCEEDED:
            ended_at[job.id] = job.ended_at
    question = Question(
        state=state,
        at=max(now if at is None else at, state.at),
        policy=(directory.last_run() or {}).get("policy", DEFAULT_POLICY),
        ended=_ended_work(ended, submissions),
        arrivals=past_arrivals(submissions, state) if arrivals else Arrivals(),
        past=past.views if len(state.active) <= JOBS_FEW else (),
    )
    return Live(question=question, started_at=started_at, ended_at=ended_at)


def _ended_work(
    ended: Sequence[EndedJob], submissions: Sequence[Submission]
) -> EndedWork:
    """Return what the jobs needed that succeeded."""
    return EndedWork(
        jobs=[
            Work(
                each.spec.application,
                each.spec.replicas.requested,
                each.gpu_s,
                each.measured,
            )
            for job, each in zip(ended, submissions, strict=True)
            if job.state is JobState.SUCCEEDED and each.gpu_s
        ]
    )


def past_arrivals(ended: Sequence[Submission], state: SchedulerState) -> Arrivals:
    """Return, in order, the jobs that were submitted since the oldest of `ended`."""
    known = [*ended]
    known += [Submission(at=job.submitted_at, spec=job.spec) for job in state.active]
    since = min((job.at for job in known), default=0.0)
    if len(ended) == ENDED_LOOKED_AT:
        # Not all jobs of the time before the oldest of them are known.
        since = min(job.at for job in ended)
    known = [job for job in known if job.at >= since]
    return Arrivals(since=since, submissions=sorted(known, key=lambda job: job.at))


def submission_of(job: EndedJob) -> Submission:
    """Return the submission of a job that has ended."""
    spec = from_json(JobSpec, job.spec)
    measured = Measured()
    # A job that failed is played for as long as it ran, not to its end.
    if job.state is JobState.SUCCEEDED and isinstance(job.measured, dict):
        # Long lists of what came when, of no use here.
        short = {**job.measured, "batch_history": [], "logged": []}
        measured = from_json(Measured, short)
    return Submission(
        at=job.submitted_at, spec=spec, gpu_s=_gpu_s(job), measured=measured
    )


def _gpu_s(job: EndedJob) -> float:
    gpu_s = job.picture.get("attained_service_gpu_s")
    return float(gpu_s) if isinstance(gpu_s, int | float) else 0.0


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
