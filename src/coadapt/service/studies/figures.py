"""What trials reported, until the driver of their studies has read it."""

from collections import deque
from collections.abc import Iterable, Mapping, Sequence

from coadapt.core.commands import Command
from coadapt.core.events import Event, TrainingReported
from coadapt.core.state import SchedulerState
from coadapt.model import JobId

# A driver that is slower loses the oldest.
KEPT = 1_000

Reported = tuple[float, Mapping[str, float]]
"""Samples trained, and metrics."""


class TrialFigures:
    """An observer of the loop that keeps what trials report. `__call__` is for the
    loop's thread, the rest for the driver's.
    """

    def __init__(self) -> None:
        self._reported: dict[JobId, deque[Reported]] = {}

    def __call__(
        self,
        event: Event,
        commands: Sequence[Command],  # noqa: ARG002 - an observer's
        state: SchedulerState,
    ) -> None:
        if not isinstance(event, TrainingReported) or not state.studies:
            return
        job = state.jobs.get(event.job)
        if job is None or not event.report.metrics:
            return
        study = job.spec.name.rpartition("-")[0]
        if study in state.studies:
            reported = self._reported.setdefault(event.job, deque(maxlen=KEPT))
            reported.append((event.report.samples, dict(event.report.metrics)))

    def take(self, job: JobId) -> list[Reported]:
        """Return what a job has reported since the last call."""
        reported = self._reported.get(job)
        return [reported.popleft() for _ in range(len(reported))] if reported else []

    def forget_all_but(self, jobs: Iterable[JobId]) -> None:
        """Drop the reports of all other jobs."""
        kept = set(jobs)
        for job in list(self._reported):  # a copy: the loop's thread adds jobs
            if job not in kept:
                self._reported.pop(job, None)
