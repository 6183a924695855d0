"""The history of jobs as the index on disk tells it: of one job, in words or as values,
or of a whole run.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import cast

from coadapt.core.accounting import num_gpus_held
from coadapt.core.lifecycle import ENDED, JobState, Reason
from coadapt.core.state import JobRecord, SchedulerState
from coadapt.model import JobId, JobSpec, Measured, Usage
from coadapt.model.wire import Json, from_json
from coadapt.runtime.history import (
    History,
    JobHistory,
    MeasuredRescale,
    Point,
    Round,
    Span,
)
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
    EndedOwner,
    EndedQuery,
    JobIndex,
    Row,
)
from coadapt.runtime.story import StoryLine

PAGE = 500
# Comes after every id.
LAST_ID = "\U0010ffff"
# As many as are read at a time: a job that changes each round for a month has some
# thousand.
CHANGES_MAX = 500


def story_of(index: JobIndex, job: JobId) -> list[StoryLine]:
    """Return a job's life in order, with the plans that failed while it waited; nothing
    if it is unknown.
    """
    rows = index.rows(job, LINE, DECISION)
    if plans := index.rows(PLANS, LINE):
        ended = index.ended(job)
        spans = _spans(
            index.rows(job, SPAN), math.inf if ended is None else ended.ended_at
        )
        waits = [
            (span.start, span.end) for span in spans if span.state is JobState.PENDING
        ]
        rows += [
            row for row in plans if any(start <= row.at < end for start, end in waits)
        ]
    return [
        StoryLine(at=row.at, text=_text(row))
        for row in sorted(rows, key=lambda row: (row.seq, row.n))
    ]


def latest_decisions(
    index: JobIndex, job: JobId, number: int
) -> list[tuple[float, str]]:
    """Return the latest sentences about why a job is where it is, and how its rescales
    in place went.
    """
    return [
        (row.at, _decision(row)) for row in index.rows(job, DECISION, latest=number)
    ]


def latest_spans(index: JobIndex, job: JobId, until: float, number: int) -> list[Span]:
    """Return the latest stretches in which a job's state and what it held did not
    change.

    The last one ends at `until` (s): now, or when the job ended.
    """
    return _spans(index.rows(job, SPAN, latest=number), until)


def spans_of(index: JobIndex, job: JobId, until: float) -> list[Span]:
    """Return all stretches in which a job's state and what it held did not change, up
    to `until` (s).
    """
    return _spans(index.rows(job, SPAN), until)


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldGpus:
    """A stretch of time (s) in which a job held the same GPUs at the same price.

    by_type: GPUs by type; None where a version that did not record types wrote it.
    per_h: their price per hour, 0 while no prices were named.
    """

    start: float
    end: float
    num_gpus: float
    by_type: Mapping[str, float] | None
    per_h: float


def held_gpus_of(index: JobIndex, job: JobId, until: float) -> list[HeldGpus]:
    """Return all stretches in which a job held GPUs, up to `until` (s)."""
    return _held_gpus(index.rows(job, SPAN), until)


def held_gpus_of_ended(
    index: JobIndex, since: float
) -> Iterator[tuple[EndedOwner, list[HeldGpus]]]:
    """Yield the jobs that ended after `since` (s), each with all stretches in which it
    held GPUs.
    """
    after = (since, LAST_ID)
    while owners := index.ended_owners(after, PAGE):
        rows = index.rows_of({owner.job for owner in owners}, SPAN)
        spans = {job: list(found) for job, found in groupby(rows, lambda row: row.job)}
        for owner in owners:
            yield owner, _held_gpus(spans.get(owner.job, []), owner.ended_at)
        after = (owners[-1].ended_at, owners[-1].job)


def _held_gpus(rows: list[Row], until: float) -> list[HeldGpus]:
    ends = [*(row.at for row in rows[1:]), until][: len(rows)]
    found = []
    for row, end in zip(rows, ends, strict=True):
        payload = cast("list[Json]", row.payload)
        num_gpus = cast(float, payload[0])
        if not num_gpus or end <= row.at:
            continue
        # Rows of earlier versions have neither types nor a price.
        by_type, per_h = cast(
            "tuple[dict[str, float] | None, float]", payload[3:] or (None, 0.0)
        )
        held = HeldGpus(
            start=row.at, end=end, num_gpus=num_gpus, by_type=by_type, per_h=per_h
        )
        found.append(held)
    return found


def points_of(index: JobIndex, job: JobId) -> list[Point]:
    """Return what a job reported, in order."""
    return [_point(row) for row in index.rows(job, POINT)]


def rescales_of(index: JobIndex, job: JobId) -> list[MeasuredRescale]:
    """Return what a job's starts and changes of replicas cost, in order."""
    return [rescale_of(row)[0] for row in index.rows(job, RESCALE)]


def whole_history(
    index: JobIndex, state: SchedulerState, num_ended: int | None = None
) -> History:
    """Return all that the index knows; live jobs have the figures of `state`, which is
    of the same event.

    num_ended: of the ended jobs, only so many are read: those that ended last.
    """
    history = History(at=state.at)
    if num_ended is None:
        ended: Iterable[EndedJob] = _all_ended(index)
    else:
        ended = _latest_ended(index, num_ended, history)
    for row in index.rows(CLUSTER, CAPACITY, ROUND):
        if row.kind == ROUND:
            if history.since is not None and row.at < history.since:
                continue
            number, error, diagnostics = cast(
                "tuple[int, str, dict[str, float]]", row.payload
            )
            history.rounds.append(
                Round(at=row.at, round=number, error=error, diagnostics=diagnostics)
            )
        else:
            _add_capacity(history, row.at, cast(int, row.payload))
    live = [job for job in state.jobs.values() if job.state not in ENDED]
    histories = [_ended_job(index, job) for job in ended]
    histories += [_live_job(index, job, state.at) for job in live]
    for job in sorted(histories, key=lambda job: (job.submitted_at, job.id)):
        history.jobs[job.id] = job
    return history


@dataclass(frozen=True, slots=True, kw_only=True)
class JobStatus:
    """A job's status: its state, the reason for it, and the replicas that were last
    ordered.
    """

    state: JobState
    reason: Reason
    replicas: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One change, which event number `seq` of the journal brought at `at` (s).

    It is either a new status (`now`; `was` None: the job was submitted), or the first
    step of replicas that were started or changed (`rescale`). text: the line of the
    job's story. why: the sentence for its user, if it is new.
    """

    seq: int
    at: float
    text: str
    why: str = ""
    was: JobStatus | None = None
    now: JobStatus | None = None
    rescale: MeasuredRescale | None = None


def changes_of(index: JobIndex, job: JobId, after: int) -> list[Change]:
    """Return what happened to a job after event number `after`, in order: at most
    CHANGES_MAX changes, and all that the last one's event brought.
    """
    found = [
        _change(row) for row in index.rows(job, LINE, DECISION, RESCALE, after=after)
    ]
    changes = [change for change in found if change is not None]
    if len(changes) <= CHANGES_MAX:
        return changes
    last = changes[CHANGES_MAX - 1].seq
    return [change for change in changes if change.seq <= last]


def _all_ended(index: JobIndex) -> Iterable[EndedJob]:
    after = None
    while page := index.ended_page(EndedQuery(limit=PAGE, after=after)):
        yield from page
        after = (page[-1].submitted_at, page[-1].id)


def _latest_ended(index: JobIndex, number: int, history: History) -> list[EndedJob]:
    """Return the jobs that ended last; note in the history what it leaves out."""
    jobs = index.ended_latest(number + 1)
    if len(jobs) > number:
        counts = index.counts()
        history.since = jobs.pop().ended_at
        history.num_left_out = sum(counts.values()) - number
    return jobs


def _ended_job(index: JobIndex, job: EndedJob) -> JobHistory:
    history = JobHistory(
        id=job.id,
        spec=from_json(JobSpec, job.spec, "spec"),
        submitted_at=job.submitted_at,
        ended_at=job.ended_at,
        state=job.state,
        measured=from_json(Measured, job.measured, "measured"),
        usage=from_json(Usage, job.usage, "usage"),
    )
    return _with_rows(history, index.rows(job.id), job.ended_at)


def _live_job(index: JobIndex, job: JobRecord, at: float) -> JobHistory:
    history = JobHistory(
        id=job.id,
        spec=job.spec,
        submitted_at=job.submitted_at,
        state=job.state,
        measured=job.measured,
        usage=job.usage.upto(max(at, job.usage.accounted_at), num_gpus_held(job)),
    )
    return _with_rows(history, index.rows(job.id), at)


def _with_rows(job: JobHistory, rows: list[Row], until: float) -> JobHistory:
    job.spans = _spans([row for row in rows if row.kind == SPAN], until)
    for row in rows:
        if row.kind == POINT:
            job.points.append(_point(row))
        elif row.kind == RESCALE:
            rescale, text = rescale_of(row)
            job.rescales.append(rescale)
            job.changes += [(row.at, text)] * bool(text)
        elif row.kind == DECISION and "why" in cast("dict[str, Json]", row.payload):
            job.reasons.append((row.at, _decision(row)))
    return job


def _spans(rows: list[Row], until: float) -> list[Span]:
    if not rows:
        return []
    rows = _without_prices(rows)
    ends = [*(row.at for row in rows[1:]), until]
    spans = []
    for row, end in zip(rows, ends, strict=True):
        num_gpus, shape, state = cast(
            "tuple[float, list[int], str]", cast("list[Json]", row.payload)[:3]
        )
        if end > row.at or row is rows[-1]:
            spans.append(
                Span(
                    start=row.at,
                    end=end,
                    num_gpus=num_gpus,
                    shape=tuple(shape),
                    state=JobState(state),
                )
            )
    return spans


def _without_prices(rows: list[Row]) -> list[Row]:
    """Return the rows without those that differ from the one before only in price or
    GPU types.
    """
    kept = rows[:1]
    for row in rows[1:]:
        before = cast("list[Json]", kept[-1].payload)[:3]
        if cast("list[Json]", row.payload)[:3] != before:
            kept.append(row)
    return kept


def _point(row: Row) -> Point:
    payload = cast("list[Json]", row.payload)
    total, efficiency, progress, step_time_s = cast(
        "tuple[int | None, float | None, float, float | None]", payload[:4]
    )
    # Rows of earlier versions end here.
    noise_scale, metrics = cast(
        "tuple[float | None, dict[str, float]]", payload[4:] or (None, {})
    )
    return Point(
        at=row.at,
        total_batch=total,
        efficiency=efficiency,
        progress=progress,
        step_time_s=step_time_s,
        noise_scale=noise_scale,
        metrics=metrics,
    )


def rescale_of(row: Row) -> tuple[MeasuredRescale, str]:
    """Return the change of replicas in a row of RESCALE, and what it is in words; ""
    for a restart.
    """
    generation, before, now, cost_s, pause, text = cast(
        "tuple[int, int, int, float, dict[str, float], str]", row.payload
    )
    rescale = MeasuredRescale(
        at=row.at,
        generation=generation,
        before=before,
        now=now,
        cost_s=cost_s,
        pause=pause,
    )
    return rescale, text


def _add_capacity(history: History, at: float, num_gpus: int) -> None:
    if history.capacity and history.capacity[-1][0] == at:
        history.capacity.pop()
    if not history.capacity or history.capacity[-1][1] != num_gpus:
        history.capacity.append((at, num_gpus))


def _text(row: Row) -> str:
    return str(cast("dict[str, Json]", row.payload)["text"])


def _decision(row: Row) -> str:
    payload = cast("dict[str, Json]", row.payload)
    return str(payload.get("why", payload["text"]))


def _change(row: Row) -> Change | None:
    """Return the change in a row; None if it holds none, for instance if the status is
    the same as before.
    """
    if row.kind == RESCALE:
        rescale, text = rescale_of(row)
        return Change(seq=row.seq, at=row.at, text=text, rescale=rescale)
    payload = cast("dict[str, Json]", row.payload)
    if "is" not in payload or payload["is"] == payload["was"]:
        return None
    was = None if payload["was"] is None else _status_of(payload["was"])
    why = str(payload.get("why", ""))
    return Change(
        seq=row.seq,
        at=row.at,
        text=str(payload["text"]),
        why=why,
        was=was,
        now=_status_of(payload["is"]),
    )


def _status_of(stored: Json) -> JobStatus:
    state, reason, replicas = cast("tuple[str, str, int]", stored)
    return JobStatus(state=JobState(state), reason=Reason(reason), replicas=replicas)
