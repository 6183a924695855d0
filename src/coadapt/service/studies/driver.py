"""Drives the studies: asks Optuna for trials, submits them as jobs, and reports their
values and ends to Optuna.
"""

# Why nothing is lost or run twice
#
# The journal knows that a study is there, and whether it goes on. Optuna's storage
# knows its trials. The scheduler knows the jobs. The driver keeps nothing of its own:
# each look compares the three and does what is missing, so a scheduler that was killed
# at any point goes on from there.
#
#   trial in the storage        its job               what is done
#   running, parameters short   -                     the others are sampled
#   running                     none                  it is submitted
#   running                     lives                 its values are reported; pruned?
#   running, study cancelled    lives                 it is cancelled
#   running                     has ended             its end is reported to Optuna
#   ended                       -                     nothing
#
# The job's id is made of the study's name and key and the trial's number. So a trial
# that was submitted just before a kill is found by its id, and submitted again it is
# the same job. That a trial is pruned is written into the storage before its job is
# cancelled: after a kill in between it is cancelled again.

import json
import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, cast

from coadapt.core.events import (
    CancelRequested,
    Event,
    JobSubmitted,
    StudyRemoved,
    StudyStopped,
)
from coadapt.core.lifecycle import ENDED, JobState
from coadapt.core.state import SchedulerState, Study
from coadapt.model import InputError, JobId, JobSpec, Measured
from coadapt.model.contract_env import ENV_PARAMS
from coadapt.model.report import Logged
from coadapt.model.wire import Json, from_json
from coadapt.runtime.job_index import JobIndex
from coadapt.runtime.snapshot import job_snapshot
from coadapt.service.jobfile import check_disk, job_spec
from coadapt.service.live_loop import LiveLoop
from coadapt.service.studies.figures import TrialFigures
from coadapt.service.studies.search_file import SearchFile, search_file_of
from coadapt.service.submission import (
    NO_PRICES,
    check_possible,
    check_prices,
    check_quota,
    job_id,
)

if TYPE_CHECKING:
    import optuna

    from coadapt.service.studies.optuna_study import Asked, OptunaStudy
    from coadapt.service.studies.sole_writer import SoleWriter

LOOK_S = 0.5
COMMIT_S = 60.0
CANCELLED_WITH = "its study was stopped"

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialJob:
    """A trial's job as the scheduler knows it."""

    id: JobId
    state: JobState
    explanation: str
    samples: float
    metrics: dict[str, float]
    logged: tuple[Logged, ...]
    params: str
    """As its environment has them, in JSON."""
    cancelled: bool
    """Whether its end was asked for."""
    cost: float
    """Of its GPUs so far, in the scheduler's currency; 0 where it has no prices."""
    checkpoints: str
    """URL of the object store below which they are, "" for the state directory."""


class Studies:
    """Drives all studies, in a thread of its own; `run` until `close`.

    `remove_checkpoints(job, url)` removes those of a job that has ended, below the URL
    of an object store or, where it is empty, in the state directory.
    """

    def __init__(
        self,
        loop: LiveLoop,
        index: JobIndex,
        figures: TrialFigures,
        storage: Path,
        remove_checkpoints: Callable[[JobId, str], None],
    ) -> None:
        self._loop = loop
        self._index = index
        self._figures = figures
        self._path = storage
        self._remove_checkpoints = remove_checkpoints
        self._open: dict[str, OptunaStudy] = {}
        self._storage: SoleWriter | None = None
        self._making = threading.Lock()
        self._looking = threading.Lock()
        self._troubles: dict[str, str] = {}
        self._importance: dict[str, tuple[int, dict[str, float]]] = {}
        self._closed = threading.Event()

    @property
    def storage_url(self) -> str:
        """Where Optuna's own tools find the trials."""
        return f"sqlite:///{self._path}"

    def run(self) -> None:
        """Look after all studies, until `close`."""
        while not self._closed.wait(LOOK_S):
            self.look()

    def close(self) -> None:
        self._closed.set()

    def look(self) -> None:
        """Do for each study what is missing. An error of one is reported once, and the
        study is tried again at the next look.
        """
        with self._looking:
            self._look()

    def _look(self) -> None:
        studies = self._loop.read(lambda state: list(state.studies.values()))
        watched: set[JobId] = set()
        complete = True
        for study in studies:
            if study.done:
                self._open.pop(study.name, None)
                continue
            try:
                watched |= self._drive(study)
                self._troubles.pop(study.name, None)
            except Exception as error:  # noqa: BLE001 - one study must not end all
                self._tell_trouble(study.name, error)
                complete = False
        if complete:
            self._figures.forget_all_but(watched)

    def trials(self, name: str) -> list[dict[str, Json]]:
        """Return the trials of a study as plain data, for any thread; none before its
        first trial was asked for. The cost of a trial that runs is that of now.
        """
        from coadapt.service.studies.optuna_study import trial_row

        study = self._stored(name)
        if study is None:
            return []
        rows = [trial_row(trial) for trial in study.get_trials(deepcopy=False)]
        for row in rows:
            if row["state"] == "running":
                job = self._job(str(row["job"]))
                row["cost"] = 0.0 if job is None else job.cost
        return rows

    def importance(self, name: str) -> dict[str, float]:
        """Return how much each parameter of a study decides over its value, for any
        thread; see `importance_of`. It is computed again when more trials have ended.
        """
        from coadapt.service.studies.optuna_study import importance_of

        study = self._stored(name)
        if study is None:
            return {}
        ended = sum(
            trial.state.is_finished() for trial in study.get_trials(deepcopy=False)
        )
        known = self._importance.get(name)
        if known is None or known[0] != ended:
            known = (ended, importance_of(study))
            self._importance[name] = known
        return known[1]

    def remove(self, name: str) -> bool:
        """Delete a study and its trials from the storage, for any thread; return
        whether it could be: not while it goes on, or trials of it run.

        Jobs of trials, and checkpoints of completed ones, stay.
        """
        import optuna

        with self._looking:
            study = self._loop.read(lambda state: state.studies.get(name))
            if study is None or not study.stopped:
                return False
            rows = self.trials(name)
            if any(row["state"] == "running" for row in rows):
                return False
            self._open.pop(name, None)
            self._troubles.pop(name, None)
            self._importance.pop(name, None)
            # First the storage: after a kill in between the study can be removed again.
            if rows:
                optuna.delete_study(study_name=name, storage=self._opened())
            self._commit(StudyRemoved(at=self._loop.now(), study=name))
        return True

    def check(self, file: SearchFile, at: float) -> None:
        """Raise InputError for a search, submitted at `at`, whose trials could never
        run here.
        """
        from coadapt.service.studies.optuna_study import OptunaStudy

        study = OptunaStudy(file, None)
        params = study.asked(study.ask()).params
        file.deadline_at(at)
        spec = job_spec(file.trial(0, params), at)
        nodes, away, tenants, prices = self._loop.read(
            lambda state: (
                list(state.nodes.values()),
                [each.node for each in state.away.values()],
                dict(state.tenants),
                state.prices,
            )
        )
        assert spec.launch is not None
        check_disk(spec.launch)
        check_prices(spec, prices)
        if file.search.budget is not None and prices is None:
            raise InputError("search.budget", file.search.budget, NO_PRICES)
        check_possible(spec, nodes, away)
        check_quota(spec, tenants)

    def _drive(self, study: Study) -> set[JobId]:
        """Bring one study a step further; return the jobs of the trials that run."""
        opened = self._study(study)
        running: set[JobId] = set()
        for number in opened.running():
            if job := self._follow(opened, study, number):
                running.add(job)
        search = opened.file.search
        limit = self._limit_reached(opened, study)
        if limit and not study.stopped:
            self._stop(study, limit, cancel=True)
            return running
        while not study.stopped and len(running) < opened.file.at_once:
            if len(opened.trials()) >= search.n_trials or self._closed.is_set():
                break
            number = opened.ask()
            running.add(self._submit(opened, study, opened.asked(number)))
        if not running and len(opened.trials()) >= search.n_trials:
            limit = f"all {search.n_trials} trials have ended"
        if not running and limit:
            self._stop(study, limit, done=True)
        return running

    def _limit_reached(self, study: "OptunaStudy", record: Study) -> str:
        """Return which limit of its own the study has reached, "" for none."""
        file = study.file
        deadline = file.deadline_at(record.submitted_at)
        if deadline is not None and self._loop.now() >= deadline:
            return f"its deadline, {file.search.deadline}, has passed"
        budget = file.search.budget
        if budget is None:
            return ""
        cost = study.cost_of_ended()
        for number in study.running():
            job = self._job(_id_of(record, number))
            cost += 0.0 if job is None else job.cost
        if cost < budget:
            return ""
        return f"its trials have cost {cost:.2f}, and its budget is {budget:.2f}"

    def _stop(
        self, study: Study, why: str, *, done: bool = False, cancel: bool = False
    ) -> None:
        self._commit(
            StudyStopped(
                at=self._loop.now(),
                study=study.name,
                why=why,
                done=done,
                cancel=cancel,
            )
        )

    def _follow(self, study: "OptunaStudy", record: Study, number: int) -> JobId | None:
        """See to a trial that runs; return its job, None if it has ended."""
        asked = study.asked(number)
        job = self._job(_id_of(record, number))
        if job is None:
            if asked.job:
                study.tell_failed(number, f"job {asked.job} is not known any more")
                return None
            if record.cancel:
                study.tell_failed(number, CANCELLED_WITH)
                return None
            return self._submit(study, record, asked)
        if json.loads(job.params or "{}") != {
            **study.file.job.params,
            **asked.params,
        }:
            study.tell_failed(number, f"job {job.id} has other parameters")
            return None
        if not asked.job:
            study.note(number, "job", job.id)
        why = asked.pruned
        if job.state is JobState.SUCCEEDED or not why:
            why = self._report(study, number, job)
        if job.state in ENDED:
            self._tell_end(study, number, job, why)
            return None
        if why and not job.cancelled:
            self._cancel(study, number, job, why)
        elif record.cancel and not job.cancelled:
            self._commit(
                CancelRequested(at=self._loop.now(), job=job.id, why=CANCELLED_WITH)
            )
        return job.id

    def _report(self, study: "OptunaStudy", number: int, job: TrialJob) -> str:
        """Report a trial's values to Optuna; return why it is pruned, "" if it is
        not.
        """
        logged = [(row.samples, row.values) for row in job.logged]
        newest = (job.samples, job.metrics)
        reports = [*logged, *self._figures.take(job.id), newest]
        search = study.file.search
        values = []
        for samples, metrics in reports:
            value = metrics.get(search.metric)
            step = metrics.get(search.step) if search.step else samples
            if value is not None and step is not None:
                values.append((int(step), value))
        succeeded = job.state is JobState.SUCCEEDED
        return study.report_all(number, values, succeeded=succeeded)

    def _tell_end(
        self, study: "OptunaStudy", number: int, job: TrialJob, why: str
    ) -> None:
        if job.cost:
            study.note(number, "cost", job.cost)
        metric = study.file.search.metric
        value = job.metrics.get(metric)
        if job.state is JobState.SUCCEEDED and value is not None:
            study.tell_complete(number, value)
            return
        # First: after a kill in between it is done again.
        self._remove_checkpoints(job.id, job.checkpoints)
        if job.state is JobState.SUCCEEDED:
            study.tell_failed(number, f"it never logged {metric}")
        elif job.state is JobState.CANCELLED and why:
            study.tell_pruned(number)
        else:
            study.tell_failed(number, job.explanation.split("\n", 1)[0])

    def _cancel(
        self, study: "OptunaStudy", number: int, job: TrialJob, why: str
    ) -> None:
        # First into the storage: after a kill in between it is cancelled again.
        study.note(number, "why", why)
        self._commit(CancelRequested(at=self._loop.now(), job=job.id, why=why))

    def _submit(self, study: "OptunaStudy", record: Study, asked: "Asked") -> JobId:
        at = self._loop.now()
        spec = job_spec(study.file.trial(asked.number, asked.params), at)
        job = _id_of(record, asked.number)
        self._commit(JobSubmitted(at=at, job=job, spec=spec))
        study.note(asked.number, "job", job)
        return job

    def _job(self, job: JobId) -> TrialJob | None:
        at = self._loop.now()

        def live(state: SchedulerState) -> TrialJob | None:
            record = state.jobs.get(job)
            if record is None:
                return None
            cancelled = record.status.cancel_requested
            picture = job_snapshot(record, at)
            logged = record.measured.logged
            return _trial_job(record.spec, picture, logged, cancelled=cancelled)

        found = self._loop.read(live)
        if found is not None:
            return found
        ended = self._index.ended(job)
        if ended is None:
            return None
        spec = from_json(JobSpec, ended.spec, "spec")
        measured = from_json(Measured, ended.measured, "measured")
        cancelled = ended.state is JobState.CANCELLED
        return _trial_job(spec, ended.picture, measured.logged, cancelled=cancelled)

    def _study(self, study: Study) -> "OptunaStudy":
        from coadapt.service.studies.optuna_study import OptunaStudy

        if study.name not in self._open:
            file = search_file_of(json.loads(study.file), study.name, Path("/"))
            self._open[study.name] = OptunaStudy(file, self._opened())
        return self._open[study.name]

    def _stored(self, name: str) -> "optuna.Study | None":
        """Return a study as it is stored; None before its first trial was asked for."""
        import optuna

        if not self._path.exists():
            return None
        try:
            return optuna.load_study(study_name=name, storage=self._opened())
        except KeyError:
            return None

    def _opened(self) -> "SoleWriter":
        import optuna

        from coadapt.service.studies.sole_writer import SoleWriter

        with self._making:
            if self._storage is None:
                self._path.touch(mode=0o600, exist_ok=True)
                database = optuna.storages.RDBStorage(self.storage_url)
                self._storage = SoleWriter(database)
            return self._storage

    def _commit(self, event: Event) -> None:
        self._loop.commit(event).result(COMMIT_S)

    def _tell_trouble(self, name: str, error: Exception) -> None:
        """Report an error of a study once, not at each look."""
        text = f"study {name} does not go on: {type(error).__name__}: {error}"
        self._open.pop(name, None)
        if self._storage is not None:
            self._storage.forget()  # another tool may have changed the trials
        if self._troubles.get(name) != text and not self._closed.is_set():
            self._troubles[name] = text
            self._loop.notice(text)
            logger.error("%s", text, exc_info=error)


def _id_of(study: Study, number: int) -> JobId:
    """Return the id of a trial's job: the same whenever it is submitted."""
    key = f"{study.name}/{number}" + (f"/{study.key}" if study.key else "")
    return job_id(f"{study.name}-{number}", key)


def _trial_job(
    spec: JobSpec,
    picture: dict[str, Json],
    logged: tuple[Logged, ...],
    *,
    cancelled: bool,
) -> TrialJob:
    assert spec.launch is not None
    return TrialJob(
        id=str(picture["id"]),
        state=JobState(str(picture["state"])),
        explanation=str(picture["explanation"]),
        samples=cast(float, picture["samples"]),
        metrics=cast("dict[str, float]", picture["metrics"]),
        logged=logged,
        params=dict(spec.launch.envs).get(ENV_PARAMS, ""),
        cancelled=cancelled,
        cost=cast(float, picture["cost"]),
        checkpoints=spec.launch.checkpoints,
    )
