"""The observer that writes the index of jobs, row by row as things happen
(job_index.py).
"""

import logging
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from coadapt.core.accounting import may_train, num_gpus_held
from coadapt.core.commands import Command, JobCommand
from coadapt.core.config import SchedulerConfig
from coadapt.core.costs import held_by_type
from coadapt.core.events import (
    Event,
    NodeJoined,
    NodeLost,
    PlanFailed,
    PlanReady,
    TrainingReported,
    TrainingResumed,
)
from coadapt.core.lifecycle import ENDED
from coadapt.core.scheduler import Scheduler
from coadapt.core.state import JobRecord, Order, Running, SchedulerState, Status
from coadapt.model import BatchConfig, JobId
from coadapt.model.measured import NOT_FINITE
from coadapt.model.wire import Json, to_json
from coadapt.runtime import journaled_scheduler
from coadapt.runtime.job_index import (
    CAPACITY,
    CLUSTER,
    DECISION,
    LINE,
    PLANS,
    POINT,
    RESCALE,
    ROUND,
    SPAN,
    EndedJob,
    JobIndex,
    Row,
)
from coadapt.runtime.snapshot import (
    job_efficiency,
    job_snapshot,
    no_plan_text,
    noise_scale,
    own_metrics,
)
from coadapt.runtime.story import (
    NEW,
    StoryKey,
    change_text,
    event_texts,
    replicas_of_change,
    rescale_text,
    story_key,
    why_now,
)

# Points and sentences of a young job are at least this many seconds apart. Those of an
# old job are at least its age / ROWS_PER_AGE apart: some thousand rows for a job that
# runs for a month.
POINTS_APART_S = 10.0
SENTENCES_APART_S = 60.0
ROWS_PER_AGE = 500

logger = logging.getLogger(__name__)

_DIGITS = re.compile(r"[0-9.]+")


@dataclass(slots=True, kw_only=True)
class _Seen:
    """What was written of a live job: the values that it had then, and when the last
    rows were.
    """

    status: Status
    order: Order
    running: Running
    batch: BatchConfig | None
    not_finite_at: float | None
    key: StoryKey
    span: Json
    per_h: float
    reported_generation: int = 0
    reported_replicas: int = 0
    point_at: float = float("-inf")
    sentence_at: float = float("-inf")

    def same(self, job: JobRecord) -> bool:
        """Whether nothing that is written of has changed: a record's values are
        replaced, never changed.
        """
        return (
            self.status is job.status
            and self.order is job.order
            and self.running.generation == job.running.generation
            and self.running.grant is job.running.grant
            and self.per_h == job.bill.per_h
            and self.batch == job.measured.batch
            and self.not_finite_at == job.measured.metrics.get(NOT_FINITE)
        )


class IndexWriter:
    """An observer of the runtime; `number` is that of the event it observes.

    events, config: the whole journal with its numbers, and the settings that it begins
    under, for an index that has to be rebuilt; None where its beginning was pruned.
    """

    number: Callable[[], int]

    def __init__(
        self,
        index: JobIndex,
        events: Callable[[], Iterable[tuple[int, Event]] | None],
        config: SchedulerConfig,
    ) -> None:
        self._index = index
        self._events = events
        self._config = config
        self._current = 0
        self._seen: dict[JobId, _Seen] = {}
        self._no_plan = ""
        self._rows: list[Row] = []
        self._ended: list[EndedJob] = []

    def restored(self, state: SchedulerState, number: int) -> None:
        """Go on from `state` after event `number`; an index that does not reach so far
        is rebuilt.
        """
        if self._index.upto < number:
            self._make_anew(state, number)
        self._seen = {
            job.id: _seen_of(job, state)
            for job in state.jobs.values()
            if job.state not in ENDED
        }
        self._no_plan = no_plan_text(state.plan_error) if state.plan_error else ""

    def _make_anew(self, state: SchedulerState, upto: int) -> None:
        logger.warning(
            "the history of jobs is older than the journal's snapshot and is rebuilt"
        )
        self._index.clear()
        self._seen = {}
        events = self._events()
        if events is None:
            logger.warning(
                "the journal was pruned: the history has no job that ended before "
                "event %d",
                upto,
            )
            self._begin_at(state, upto)
            return
        scheduler = Scheduler(self._config)
        for number, event in events:
            if number > upto:
                break
            self.observe(number, event, scheduler.handle(event), scheduler.state)
        self._index.flush()

    def _begin_at(self, state: SchedulerState, number: int) -> None:
        """Note where live jobs are; what was before is not known any more."""
        self._current = number
        for job in sorted(
            state.jobs.values(), key=lambda job: (job.submitted_at, job.id)
        ):
            if job.state not in ENDED:
                self._add(job.id, SPAN, state.at, _seen_of(job, state).span)
        self._index.add(number, self._rows, ())
        self._rows = []
        self._index.flush()

    def __call__(
        self, event: Event, commands: Sequence[Command], state: SchedulerState
    ) -> None:
        number = self.number()
        self.observe(number, event, commands, state)
        if number % journaled_scheduler.EVENTS_PER_SNAPSHOT == 0:
            # A snapshot comes next: a replay from it must find what was before it in
            # the index.
            self._index.flush()

    def observe(
        self,
        number: int,
        event: Event,
        commands: Sequence[Command],
        state: SchedulerState,
    ) -> None:
        """Write what the event brought, which has this number and led to `state`."""
        self._current = number
        for job in touched_jobs(event, commands, state):
            self._follow(event, job, state)
        match event:
            case NodeJoined() | NodeLost():
                num_gpus = sum(node.num_gpus for node in state.nodes.values())
                self._add(CLUSTER, CAPACITY, state.at, num_gpus)
            case PlanReady():
                payload: Json = [
                    event.round,
                    state.plan_error,
                    to_json(event.plan.diagnostics),
                ]
                self._add(CLUSTER, ROUND, state.at, payload)
                self._follow_plans(state)
            case PlanFailed():
                self._add(CLUSTER, ROUND, state.at, [event.round, event.error, {}])
                self._follow_plans(state)
            case _:
                pass
        self._index.add(number, self._rows, self._ended)
        if self._rows or self._ended:
            self._rows = []
            self._ended = []

    def _follow_plans(self, state: SchedulerState) -> None:
        """Write a row when plans begin to fail, and one when they succeed again."""
        text = no_plan_text(state.plan_error) if state.plan_error else ""
        if _DIGITS.sub("#", text) != _DIGITS.sub("#", self._no_plan):
            self._add(
                PLANS, LINE, state.at, {"text": text or "the policy gives plans again"}
            )
        self._no_plan = text

    def _follow(self, event: Event, job: JobRecord, state: SchedulerState) -> None:
        at = state.at
        seen = self._seen.get(job.id)
        if (
            isinstance(event, TrainingReported)
            and seen is not None
            and may_train(job, event.generation)
        ):
            self._add_point(event, job, seen, at)
        texts = event_texts(event, job)
        if seen is not None and seen.same(job) and not texts:
            return
        for text in texts:
            in_place = isinstance(event, TrainingResumed) and bool(event.pause)
            self._add(job.id, DECISION if in_place else LINE, at, {"text": text})
        if (
            isinstance(event, TrainingResumed)
            and seen is not None
            and may_train(job, event.generation)
        ):
            self._add_rescale(event, job, seen, at)
        now = _seen_of(job, state)
        if seen is None:
            now.key = NEW
            waits: Json = [0.0, [], "pending", {}, 0.0]
            self._add(job.id, SPAN, job.submitted_at, waits)
            seen = replace(now, span=waits)
            now = _seen_of(job, state)
        self._add_change(job, seen, now, at)
        if job.state in ENDED:
            self._seen.pop(job.id, None)
            self._ended.append(_ended(job))
            return
        if now.span != seen.span:
            self._add(job.id, SPAN, at, now.span)
        self._seen[job.id] = now

    def _add_change(self, job: JobRecord, seen: _Seen, now: _Seen, at: float) -> None:
        now.point_at = seen.point_at
        now.sentence_at = seen.sentence_at
        now.reported_generation = seen.reported_generation
        now.reported_replicas = seen.reported_replicas
        if now.key == seen.key:
            return
        # A sentence that differs only in its figures ("3 jobs are before it", "2 jobs
        # …") is not written each time.
        same_but_for_figures = now.key[:-1] == seen.key[:-1] and (
            _DIGITS.sub("#", now.key[-1]) == _DIGITS.sub("#", seen.key[-1])
        )
        if same_but_for_figures and not _due(
            at, seen.sentence_at, job.submitted_at, SENTENCES_APART_S
        ):
            now.key = seen.key
            return
        now.sentence_at = at
        payload: dict[str, Json] = {"text": change_text(job, seen.key, now.key)}
        payload |= {
            "was": None if seen.key == NEW else _status_of(seen),
            "is": _status_of(now),
        }
        if job.explanation and (seen.key == NEW or now.key[-2:] != seen.key[-2:]):
            self._add(job.id, DECISION, at, {**payload, "why": why_now(job.status)[1]})
        else:
            self._add(job.id, LINE, at, payload)

    def _add_point(
        self, event: TrainingReported, job: JobRecord, seen: _Seen, at: float
    ) -> None:
        batch = job.measured.batch
        if batch == seen.batch and not _due(
            at, seen.point_at, job.submitted_at, POINTS_APART_S
        ):
            return
        seen.point_at = at
        total = None if batch is None else batch.total
        figures: Json = [
            total,
            job_efficiency(job),
            job.measured.progress,
            event.report.step_time_s,
            noise_scale(job),
            to_json(own_metrics(job)),
        ]
        self._add(job.id, POINT, at, figures)

    def _add_rescale(
        self, event: TrainingResumed, job: JobRecord, seen: _Seen, at: float
    ) -> None:
        if event.generation <= seen.reported_generation:
            return
        before, now = replicas_of_change(job, event.generation)
        counts: list[Json] = [event.generation, before or seen.reported_replicas, now]
        costs: list[Json] = [
            event.rescale_s,
            to_json(event.pause),
            _pause_text(job, event),
        ]
        self._add(job.id, RESCALE, at, [*counts, *costs])
        seen.reported_generation = event.generation
        seen.reported_replicas = now

    def _add(self, job: JobId, kind: str, at: float, payload: Json) -> None:
        place = len(self._rows)
        self._rows.append(
            Row(job=job, seq=self._current, n=place, kind=kind, at=at, payload=payload)
        )


def touched_jobs(
    event: Event, commands: Sequence[Command], state: SchedulerState
) -> Iterable[JobRecord]:
    """Return the jobs that `event` may have changed, by id. Few events concern more
    than one.
    """
    if isinstance(event, TrainingReported) and not commands:
        job_of_report = state.jobs.get(
            event.job
        )  # at once, because nearly all events are this
        return () if job_of_report is None else (job_of_report,)
    names = {command.job for command in commands if isinstance(command, JobCommand)}
    names |= state.changed
    if (job := getattr(event, "job", None)) is not None:
        names.add(job)
    return [state.jobs[name] for name in sorted(names) if name in state.jobs]


def _seen_of(job: JobRecord, state: SchedulerState) -> _Seen:
    gpus: Json = dict(held_by_type(job, state))
    return _Seen(
        status=job.status,
        order=job.order,
        running=job.running,
        batch=job.measured.batch,
        not_finite_at=job.measured.metrics.get(NOT_FINITE),
        key=story_key(job),
        span=[
            num_gpus_held(job),
            list(job.ordered.shape),
            job.state.value,
            gpus,
            job.bill.per_h,
        ],
        per_h=job.bill.per_h,
        reported_generation=job.usage.costs.generation,
        reported_replicas=job.trains_on.num_replicas,
    )


def _status_of(seen: _Seen) -> Json:
    """Return a job's status for programs: its state, the reason for it, and the
    replicas that were last ordered.
    """
    status = seen.status
    replicas = seen.order.grant.allocation.num_replicas
    return [status.state.value, why_now(status)[0].value, replicas]


def _ended(job: JobRecord) -> EndedJob:
    assert job.ended_at is not None, f"{job.id} has not ended"
    # Readers of ended jobs need neither the batch history nor the forecast.
    measured = replace(job.measured, batch_history=(), forecast=None)
    return EndedJob(
        id=job.id,
        name=job.spec.name,
        tenant=job.spec.tenant,
        state=job.state,
        submitted_at=job.submitted_at,
        ended_at=job.ended_at,
        picture=job_snapshot(job, job.ended_at),
        spec=to_json(job.spec),
        measured=to_json(measured),
        usage=to_json(job.usage),
    )


def _pause_text(job: JobRecord, event: TrainingResumed) -> str:
    return rescale_text(job, event) if event.pause else ""


def _due(at: float, last_at: float, since: float, least_s: float) -> bool:
    return at - last_at >= max(least_s, (at - since) / ROWS_PER_AGE)
