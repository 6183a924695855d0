"""A log line per change of a job: what an operator sees of a scheduler in the foreground."""

import logging
from collections.abc import Sequence

from coadapt.core.accounting import may_train
from coadapt.core.commands import Command
from coadapt.core.events import Event, PlanFailed, PlanReady, ReplicasRescaled
from coadapt.core.lifecycle import ENDED
from coadapt.core.state import JobRecord, SchedulerState
from coadapt.model import JobId
from coadapt.runtime.story import told_in_place

logger = logging.getLogger(__name__)


class ChangeLog:
    """An observer of the runtime; it speaks once `speak` was called, so that a replay stays silent."""

    def __init__(self) -> None:
        self._seen: dict[JobId, tuple[object, ...]] = {}
        self._plan_error = ""
        self._speaking = False

    def speak(self) -> None:
        self._speaking = True

    def __call__(self, event: Event, _: Sequence[Command], state: SchedulerState) -> None:
        self._tell_pause(event, state)
        job_id = getattr(event, "job", None)
        touched = state.jobs.keys() if job_id is None else {job_id} & state.jobs.keys()
        for job in [state.jobs[name] for name in sorted(touched)]:
            now = (job.state, job.generation, job.ordered)
            if self._seen.get(job.id) != now and self._speaking:
                logger.info("%s", _line(job))
            self._seen[job.id] = now
        if isinstance(event, PlanReady | PlanFailed):
            if state.plan_error and state.plan_error != self._plan_error:
                logger.warning("round %d kept the old allocations: %s", state.round, state.plan_error)
            self._plan_error = state.plan_error

    def _tell_pause(self, event: Event, state: SchedulerState) -> None:
        if self._speaking and isinstance(event, ReplicasRescaled) and event.pause:
            job = state.jobs.get(event.job)
            if job is not None and may_train(job, event.generation):
                logger.info("job %s generation %d: %s", job.id, event.generation, told_in_place(job, event))


def _line(job: JobRecord) -> str:
    holds = f" on {job.ordered.num_replicas} GPU{'s' if job.ordered.num_replicas > 1 else ''}"
    where = holds if job.ordered and job.state not in ENDED else ""
    why = job.explanation.splitlines()[0] if job.explanation else ""
    return f"job {job.id} generation {job.generation}: {job.state.value}{where}: {why}"
