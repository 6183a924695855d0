"""Log lines about changes of jobs, which an operator sees if the scheduler runs in the
foreground.
"""

import logging
from collections.abc import Sequence

from coadapt.core.accounting import may_train
from coadapt.core.commands import Command
from coadapt.core.events import Event, PlanFailed, PlanReady, TrainingResumed
from coadapt.core.lifecycle import ENDED
from coadapt.core.state import JobRecord, SchedulerState
from coadapt.model import JobId
from coadapt.runtime.story import rescale_text, why_now

# Two verbs whose first letters are equal, such as "starts" and "starting", count as the
# same. This is the number of these letters.
STEM_LENGTH = 3

logger = logging.getLogger(__name__)


class ChangeLog:
    """An observer of the runtime. It logs nothing before `speak` is called, so that a
    replay stays silent.
    """

    def __init__(self) -> None:
        self._seen: dict[JobId, tuple[object, ...]] = {}
        self._last_reason: dict[JobId, str] = {}
        self._plan_error = ""
        self._speaking = False

    def speak(self) -> None:
        self._speaking = True

    def __call__(
        self, event: Event, _: Sequence[Command], state: SchedulerState
    ) -> None:
        self._tell_pause(event, state)
        job_id = getattr(event, "job", None)
        touched = state.jobs.keys() if job_id is None else {job_id} & state.jobs.keys()
        for job in [state.jobs[name] for name in sorted(touched)]:
            now = (job.state, job.generation, job.ordered, job.status.unseen)
            if self._seen.get(job.id) != now and self._speaking:
                logger.info("%s", _line(job, self._last_reason.get(job.id, "")))
                self._last_reason[job.id] = why_now(job.status)[1]
            self._seen[job.id] = now
            if job.state in ENDED:
                self._last_reason.pop(job.id, None)
        if isinstance(event, PlanReady | PlanFailed):
            if state.plan_error and state.plan_error != self._plan_error:
                logger.warning(
                    "round %d kept the old allocations: %s",
                    state.round,
                    state.plan_error,
                )
            self._plan_error = state.plan_error

    def _tell_pause(self, event: Event, state: SchedulerState) -> None:
        if self._speaking and isinstance(event, TrainingResumed) and event.pause:
            job = state.jobs.get(event.job)
            if job is not None and may_train(job, event.generation):
                logger.info(
                    "job %s generation %d: %s",
                    job.id,
                    event.generation,
                    rescale_text(job, event),
                )


def _line(job: JobRecord, last_reason: str) -> str:
    """Return the line of a change, without a reason that was logged last, and without
    the state if the reason begins with the same verb.
    """
    why = why_now(job.status)[1].split("\n", 1)[0]
    num_gpus = job.ordered.num_replicas
    held = f" on {num_gpus} GPU{'s' if num_gpus > 1 else ''}" * bool(
        num_gpus and job.state not in ENDED
    )
    says_state = why[:STEM_LENGTH] == job.state.value[:STEM_LENGTH]
    new = why != last_reason.split("\n", 1)[0]
    parts = [job.state.value + held] * (not (new and says_state)) + [why] * (
        new and bool(why)
    )
    return f"job {job.id} generation {job.generation}: {': '.join(parts)}"
