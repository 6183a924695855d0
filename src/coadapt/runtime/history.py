"""What happened, per job and per cluster: a fold over (event, commands, state), for
simulated and live runs alike. Metrics and the report page read it; the core does not
know it.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from coadapt.core.accounting import may_train, num_gpus_held
from coadapt.core.commands import Command, JobCommand
from coadapt.core.events import (
    CancelRequested,
    Event,
    JobSubmitted,
    NodeJoined,
    NodeLost,
    PlanFailed,
    PlanReady,
    PriorityChanged,
    ReplicasExited,
    ReplicasKept,
    ReplicasStarted,
    TimerFired,
    TrainingReported,
    TrainingResumed,
)
from coadapt.core.lifecycle import ENDED, JobState
from coadapt.core.state import JobRecord, Order, SchedulerState, Status
from coadapt.model import Grant, JobId, JobSpec, Measured, Usage
from coadapt.runtime.snapshot import job_efficiency, noise_scale, own_metrics
from coadapt.runtime.story import replicas_of_change, rescale_text, why_now

# Points kept per job: when full, every other one goes, so that a month of reports fits
# in memory and the curve still spans the job's whole life.
NUM_POINTS_MAX = 2000
# Sentences kept per job: the first says why it began as it did, the latest say why it
# is where it is.
NUM_REASONS_MAX = 500
# Sentences about changes in place kept per job: the latest.
NUM_CHANGES_MAX = 50
# Measured starts and changes kept per job: the latest.
NUM_RESCALES_MAX = 2000
ANY_ROUND = -1


@dataclass(slots=True, kw_only=True)
class Span:
    """A stretch of time (s) in which a job's state and what it held did not change.

    num_gpus: GPUs held, weighted by the share of each; during a rescale, both the
    previous and the ordered ones. shape: replicas per node of the last order, in rank
    order.
    """

    start: float
    end: float
    num_gpus: float
    shape: tuple[int, ...]
    state: JobState


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One training report. efficiency: Pollux eq. 7 at the total batch; None before the
    noise is known.

    noise_scale: in samples, None before it is known, or where it has no bound.
    metrics: the user's figures. Both are missing from a history that an earlier version
    wrote.
    """

    at: float
    total_batch: int | None
    efficiency: float | None
    progress: float
    step_time_s: float | None
    noise_scale: float | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredRescale:
    """A start or a change of replicas, measured: at `at` the first step of a generation
    was done.

    before, now: replicas. cost_s: of training time, up to that instant. pause: of a
    change in place, the seconds of each part; empty if replicas were started.
    """

    at: float
    generation: int
    before: int
    now: int
    cost_s: float
    pause: Mapping[str, float]


@dataclass(slots=True, kw_only=True)
class JobHistory:
    """The life of one job so far."""

    id: JobId
    spec: JobSpec
    submitted_at: float
    ended_at: float | None = None
    state: JobState = JobState.PENDING
    spans: list[Span] = field(default_factory=list)
    """In order, without gaps, from submission to the end."""
    points: list[Point] = field(default_factory=list)
    reasons: list[tuple[float, str]] = field(default_factory=list)
    """Why the job is in its state: sentences, each with its instant."""
    changes: list[tuple[float, str]] = field(default_factory=list)
    """The results of rescales in place: sentences, each with its instant."""
    rescales: list[MeasuredRescale] = field(default_factory=list)
    """What starts and rescales cost, one per generation that reported it."""
    measured: Measured = field(default_factory=Measured)
    usage: Usage = field(default_factory=Usage)


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """The answer to one round: the error of a plan that failed or was refused, "" for
    one that was taken.
    """

    at: float
    round: int
    error: str
    diagnostics: Mapping[str, float]


@dataclass(slots=True, kw_only=True)
class History:
    """A whole run up to `at`. capacity: (instant, GPUs of the live nodes from then on),
    in order.

    since: where it has only the jobs that ended last, the instant (s) from which on it
    has every job that lived; None: it has all jobs. num_left_out: the other ended jobs.
    """

    at: float = 0.0
    jobs: dict[JobId, JobHistory] = field(default_factory=dict)
    capacity: list[tuple[float, int]] = field(default_factory=list)
    rounds: list[Round] = field(default_factory=list)
    since: float | None = None
    num_left_out: int = 0


# What is written of a live job, and what decided which GPUs it held, and why, when it
# was last looked at.
_Followed = tuple["JobHistory", Order | None, Grant | None, Status | None]

# Events that change their own job alone, and those that the commands after them name.
_OF_ONE_JOB = (
    TrainingReported,  # first, because nearly all events are
    JobSubmitted,
    CancelRequested,
    PriorityChanged,
    ReplicasStarted,
    ReplicasKept,
    TrainingResumed,
    ReplicasExited,
)

# Events that change what jobs hold by the commands after them alone; of any other job
# they change sentences, and book its service, which its own next event tells as well.
_OF_ROUNDS = (TimerFired, PlanReady, PlanFailed)


class Recorder:
    """An observer of the runtime that keeps a History. Attach it before the first
    event.

    figures_only: without the points and sentences of jobs, which a page shows and no
    figure needs.
    """

    def __init__(self, *, figures_only: bool = False) -> None:
        self._history = History()
        self._figures_only = figures_only
        self._open: dict[JobId, _Followed] = {}
        # The round whose answer is waited for, None: of none; unknown before the first
        # event.
        self._asked: int | None = ANY_ROUND

    @property
    def history(self) -> History:
        """The history so far; the spans of jobs that have not ended reach to the last
        event.
        """
        for job, *_ in self._open.values():
            job.spans[-1].end = self._history.at
        return self._history

    def __call__(
        self, event: Event, commands: Sequence[Command], state: SchedulerState
    ) -> None:
        history = self._history
        history.at = max(history.at, event.at)
        if isinstance(event, TrainingReported) and not commands:  # nearly all events
            if (record := state.jobs.get(event.job)) is not None:
                self._follow(record)
                if not self._figures_only:
                    self._add_point(event, state)
            self._asked = None if state.solve_at is None else state.round
            return
        for record in self._touched(event, commands, state):
            self._follow(record)
        match event:
            case TrainingReported() if not self._figures_only:
                self._add_point(event, state)
            case TrainingResumed():
                self._add_change(event, state)
            case NodeJoined() | NodeLost():
                self._add_capacity(state)
            case PlanReady():
                self._add_round(event, state.plan_error, event.plan.diagnostics)
            case PlanFailed():
                self._add_round(event, event.error, {})
            case _:
                pass
        self._asked = None if state.solve_at is None else state.round

    def _touched(
        self, event: Event, commands: Sequence[Command], state: SchedulerState
    ) -> Iterable[JobRecord]:
        # Reports are most of all events: they and the other events of one job must not
        # cost a scan of all.
        named = (
            {c.job for c in commands if isinstance(c, JobCommand)}
            if commands
            else set()
        )
        if isinstance(event, _OF_ONE_JOB):
            named.add(event.job)
        elif not (self._figures_only and isinstance(event, _OF_ROUNDS)):
            return list(state.jobs.values())
        return [state.jobs[job_id] for job_id in sorted(named) if job_id in state.jobs]

    def _follow(self, record: JobRecord) -> None:
        followed = self._open.get(record.id)
        if followed is None:
            if record.id in self._history.jobs:
                return  # it has ended
            followed = (_begin(record), None, None, None)
            self._history.jobs[record.id] = followed[0]
        job = followed[0]
        job.measured = record.measured
        job.usage = record.usage
        # A record's values are replaced, never changed: while these are the same ones,
        # so is what it holds.
        order = record.order
        grant = record.running.grant
        status = record.status
        if followed[1] is order and followed[2] is grant and followed[3] is status:
            return
        self._open[record.id] = (job, order, grant, status)
        job.ended_at = record.ended_at
        job.state = record.state
        _extend(job, record, self._history.at)
        if self._figures_only:
            pass
        elif (why := why_now(status)[1]) and (
            not job.reasons or job.reasons[-1][1] != why
        ):
            if len(job.reasons) == NUM_REASONS_MAX:
                del job.reasons[1]
            job.reasons.append((self._history.at, why))
        if record.state in ENDED:
            del self._open[record.id]

    def _add_change(self, event: TrainingResumed, state: SchedulerState) -> None:
        record = state.jobs.get(event.job)
        if record is None or not may_train(record, event.generation):
            return
        job = self._history.jobs[record.id]
        last = job.rescales[-1] if job.rescales else None
        if last is not None and last.generation >= event.generation:
            return
        before, now = replicas_of_change(record, event.generation)
        job.rescales.append(
            MeasuredRescale(
                at=self._history.at,
                generation=event.generation,
                before=before or (0 if last is None else last.now),
                now=now,
                cost_s=event.rescale_s,
                pause=event.pause,
            )
        )
        del job.rescales[:-NUM_RESCALES_MAX]
        if event.pause and not self._figures_only:
            job.changes.append((self._history.at, rescale_text(record, event)))
            del job.changes[:-NUM_CHANGES_MAX]

    def _add_point(self, event: TrainingReported, state: SchedulerState) -> None:
        record = state.jobs.get(event.job)
        if (
            record is None
            or not may_train(record, event.generation)
            or record.id not in self._open
        ):
            return
        job = self._history.jobs[record.id]
        batch = record.measured.batch
        job.points.append(
            Point(
                at=self._history.at,
                total_batch=None if batch is None else batch.total,
                efficiency=job_efficiency(record),
                progress=record.measured.progress,
                step_time_s=event.report.step_time_s,
                noise_scale=noise_scale(record),
                metrics=own_metrics(record),
            )
        )
        if len(job.points) > NUM_POINTS_MAX:
            del job.points[1:-1:2]

    def _add_round(
        self,
        event: PlanReady | PlanFailed,
        error: str,
        diagnostics: Mapping[str, float],
    ) -> None:
        if self._asked not in (event.round, ANY_ROUND):
            # the round was void, or another one: nothing was done with the answer
            return
        rounds = self._history.rounds
        if not rounds or rounds[-1].round < event.round:
            rounds.append(
                Round(
                    at=event.at, round=event.round, error=error, diagnostics=diagnostics
                )
            )

    def _add_capacity(self, state: SchedulerState) -> None:
        history = self._history
        num_gpus = sum(node.num_gpus for node in state.nodes.values())
        if history.capacity and history.capacity[-1][0] == history.at:
            history.capacity.pop()
        if not history.capacity or history.capacity[-1][1] != num_gpus:
            history.capacity.append((history.at, num_gpus))


def _begin(record: JobRecord) -> JobHistory:
    at = record.submitted_at
    waits = Span(start=at, end=at, num_gpus=0.0, shape=(), state=JobState.PENDING)
    return JobHistory(id=record.id, spec=record.spec, submitted_at=at, spans=[waits])


def _extend(job: JobHistory, record: JobRecord, at: float) -> None:
    last = job.spans[-1]
    last.end = at
    # nothing is written 0, not 0.0
    num_gpus = num_gpus_held(record) or 0
    shape = record.ordered.shape
    if (last.num_gpus, last.shape, last.state) == (num_gpus, shape, record.state):
        return
    if last.start == at:
        job.spans.pop()
    if record.state not in ENDED:
        job.spans.append(
            Span(start=at, end=at, num_gpus=num_gpus, shape=shape, state=record.state)
        )
