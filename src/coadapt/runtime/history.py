"""What happened, per job and per cluster: a fold over (event, commands, state), for simulated and live runs
alike. Metrics and the report page read it; the core does not know it.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from coadapt.core.accounting import held_gpus, may_train
from coadapt.core.commands import Command, SetAlarm, Solve
from coadapt.core.events import (
    CancelRequested,
    Event,
    JobSubmitted,
    NodeJoined,
    NodeLost,
    PlanFailed,
    PlanReady,
    ReplicasExited,
    ReplicasKept,
    ReplicasRescaled,
    ReplicasStarted,
    TrainingReported,
)
from coadapt.core.lifecycle import ENDED, JobState
from coadapt.core.state import JobRecord, SchedulerState
from coadapt.model import JobId, RescaleContract
from coadapt.runtime.snapshot import job_efficiency
from coadapt.runtime.story import replicas_of_change, told_in_place

# Points kept per job: when full, every other one goes, so that a month of reports fits in memory and the
# curve still spans the job's whole life.
NUM_POINTS_MAX = 2000
# Sentences kept per job: the first says why it began as it did, the latest say why it is where it is.
NUM_REASONS_MAX = 500
# Sentences about changes in place kept per job: the latest.
NUM_CHANGES_MAX = 50
# Measured starts and changes kept per job: the latest.
NUM_RESCALES_MAX = 2000


@dataclass(slots=True, kw_only=True)
class Span:
    """A stretch of time (s) in which a job's state and what it held did not change.

    num_gpus: GPUs held, weighted by the share of each; during a rescale those of before and after. shape:
    replicas per node of the last order, in rank order.
    """

    start: float
    end: float
    num_gpus: float
    shape: tuple[int, ...]
    state: JobState


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One training report. efficiency: Pollux eq. 7 at the total batch; None before the noise is known."""

    at: float
    total_batch: int | None
    efficiency: float | None
    progress: float
    step_time_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Rescale:
    """A start or a change of replicas, measured: at `at` the first step of a generation was done.

    before, now: replicas. cost_s: of training time, up to that instant. pause: of a change in place, the
    seconds of each part; empty if replicas were started.
    """

    at: float
    generation: int
    before: int
    now: int
    cost_s: float
    pause: Mapping[str, float]


@dataclass(slots=True, kw_only=True)
class JobHistory:
    """The life of one job so far; `spans` are in order, without gaps, from submission to the end.

    reasons: why it is where it is; changes: how those in place went; each sentence with its instant.
    rescales: what starts and changes cost, one per generation that has told.
    """

    id: JobId
    name: str
    application: str
    tenant: str
    contract: RescaleContract
    submitted_at: float
    started_at: float | None = None
    ended_at: float | None = None
    state: JobState = JobState.PENDING
    spans: list[Span] = field(default_factory=list)
    points: list[Point] = field(default_factory=list)
    reasons: list[tuple[float, str]] = field(default_factory=list)
    changes: list[tuple[float, str]] = field(default_factory=list)
    rescales: list[Rescale] = field(default_factory=list)
    num_rescales: int = 0
    rescale_total_s: float = 0.0
    attained_service_gpu_s: float = 0.0
    samples: float = 0.0
    progress: float = 0.0
    progress_target: float | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """The answer to one round: the error of a plan that failed or was refused, "" for one that was taken."""

    at: float
    round: int
    error: str
    diagnostics: Mapping[str, float]


@dataclass(slots=True, kw_only=True)
class History:
    """A whole run up to `at`. capacity: (instant, GPUs of the live nodes from then on), in order."""

    at: float = 0.0
    jobs: dict[JobId, JobHistory] = field(default_factory=dict)
    capacity: list[tuple[float, int]] = field(default_factory=list)
    rounds: list[Round] = field(default_factory=list)


class Recorder:
    """An observer of the runtime that keeps a History. Attach it before the first event."""

    def __init__(self) -> None:
        self._history = History()
        self._open: set[JobId] = set()

    @property
    def history(self) -> History:
        """The history so far; the spans of jobs that have not ended reach to the last event."""
        for job_id in self._open:
            self._history.jobs[job_id].spans[-1].end = self._history.at
        return self._history

    def __call__(self, event: Event, commands: Sequence[Command], state: SchedulerState) -> None:
        history = self._history
        history.at = max(history.at, event.at)
        for job_id in self._touched(event, commands, state):
            self._follow(state.jobs[job_id])
        match event:
            case TrainingReported():
                self._add_point(event, state)
            case ReplicasRescaled():
                self._add_change(event, state)
            case NodeJoined() | NodeLost():
                self._add_capacity(state)
            case PlanReady():
                self._add_round(event, state.plan_error, event.plan.diagnostics)
            case PlanFailed():
                self._add_round(event, event.error, {})
            case _:
                pass

    def _touched(self, event: Event, commands: Sequence[Command], state: SchedulerState) -> Iterable[JobId]:
        # Reports are most of all events: they and the other events of one job must not cost a scan of all.
        match event:
            case (
                JobSubmitted()
                | CancelRequested()
                | TrainingReported()
                | ReplicasStarted()
                | ReplicasKept()
                | ReplicasRescaled()
                | ReplicasExited()
            ):
                named = {event.job}
                named.update(c.job for c in commands if not isinstance(c, Solve | SetAlarm))
                return sorted(named & state.jobs.keys())
            case _:
                fresh = state.jobs.keys() - self._history.jobs.keys()
                return sorted((self._open | fresh) & state.jobs.keys())

    def _follow(self, record: JobRecord) -> None:
        job = self._history.jobs.get(record.id)
        if job is None:
            job = self._history.jobs[record.id] = _begin(record)
            self._open.add(record.id)
        if record.id not in self._open:
            return
        _copy_figures(job, record)
        _extend(job, record, self._history.at)
        if record.explanation and (not job.reasons or job.reasons[-1][1] != record.explanation):
            if len(job.reasons) == NUM_REASONS_MAX:
                del job.reasons[1]
            job.reasons.append((self._history.at, record.explanation))
        if record.state in ENDED:
            self._open.discard(record.id)

    def _add_change(self, event: ReplicasRescaled, state: SchedulerState) -> None:
        record = state.jobs.get(event.job)
        if record is None or not may_train(record, event.generation):
            return
        job = self._history.jobs[record.id]
        last = job.rescales[-1] if job.rescales else None
        if last is not None and last.generation >= event.generation:
            return
        before, now = replicas_of_change(record, event.generation)
        job.rescales.append(
            Rescale(
                at=self._history.at,
                generation=event.generation,
                before=before or (0 if last is None else last.now),
                now=now,
                cost_s=event.rescale_s,
                pause=event.pause,
            )
        )
        del job.rescales[:-NUM_RESCALES_MAX]
        if event.pause:
            job.changes.append((self._history.at, told_in_place(record, event)))
            del job.changes[:-NUM_CHANGES_MAX]

    def _add_point(self, event: TrainingReported, state: SchedulerState) -> None:
        record = state.jobs.get(event.job)
        if record is None or not may_train(record, event.generation) or record.id not in self._open:
            return
        job = self._history.jobs[record.id]
        job.points.append(
            Point(
                at=self._history.at,
                total_batch=None if record.batch is None else record.batch.total,
                efficiency=job_efficiency(record),
                progress=record.progress,
                step_time_s=event.report.step_time_s,
            )
        )
        if len(job.points) > NUM_POINTS_MAX:
            del job.points[1:-1:2]

    def _add_round(self, event: PlanReady | PlanFailed, error: str, diagnostics: Mapping[str, float]) -> None:
        rounds = self._history.rounds
        if not rounds or rounds[-1].round < event.round:
            rounds.append(Round(at=event.at, round=event.round, error=error, diagnostics=diagnostics))

    def _add_capacity(self, state: SchedulerState) -> None:
        history = self._history
        num_gpus = sum(node.num_gpus for node in state.nodes.values())
        if history.capacity and history.capacity[-1][0] == history.at:
            history.capacity.pop()
        if not history.capacity or history.capacity[-1][1] != num_gpus:
            history.capacity.append((history.at, num_gpus))


def _begin(record: JobRecord) -> JobHistory:
    return JobHistory(
        id=record.id,
        name=record.spec.name,
        application=record.spec.application,
        tenant=record.spec.tenant.id,
        contract=record.spec.contract,
        submitted_at=record.submitted_at,
        spans=[
            Span(
                start=record.submitted_at,
                end=record.submitted_at,
                num_gpus=0.0,
                shape=(),
                state=JobState.PENDING,
            )
        ],
    )


def _copy_figures(job: JobHistory, record: JobRecord) -> None:
    job.started_at = record.started_at
    job.ended_at = record.ended_at
    job.state = record.state
    job.num_rescales = record.num_rescales
    job.rescale_total_s = record.rescale_total_s
    job.attained_service_gpu_s = record.attained_service_gpu_s
    job.samples = record.samples
    job.progress = record.progress
    job.progress_target = record.progress_target
    job.metrics = record.metrics


def _extend(job: JobHistory, record: JobRecord, at: float) -> None:
    last = job.spans[-1]
    last.end = at
    num_gpus, shape = sum(held_gpus(record).values()), record.ordered.shape
    if (last.num_gpus, last.shape, last.state) == (num_gpus, shape, record.state):
        return
    if last.start == at:
        job.spans.pop()
    if record.state not in ENDED:
        job.spans.append(Span(start=at, end=at, num_gpus=num_gpus, shape=shape, state=record.state))
