"""The whole life of one job, told from the journal: replay it, and note each change that concerns the job."""

from collections.abc import Iterable
from dataclasses import dataclass

from coadapt.core.config import SchedulerConfig
from coadapt.core.events import CancelRequested, Event, ReplicasExited, ReplicasKept, ReplicasRescaled
from coadapt.core.scheduler import Scheduler
from coadapt.core.state import JobRecord
from coadapt.model import Allocation, JobId


@dataclass(frozen=True, slots=True, kw_only=True)
class StoryLine:
    """What happened at instant `at` (s), in words."""

    at: float
    text: str


def story(events: Iterable[Event], job_id: JobId, config: SchedulerConfig) -> list[StoryLine]:
    """Return the job's life in order. Raises KeyError if the journal knows no such job.

    `events` is a whole journal, `config` the one that it begins under.
    """
    scheduler = Scheduler(config)
    lines: list[StoryLine] = []
    before: tuple[str, ...] = ()
    for event in events:
        scheduler.handle(event)
        job = scheduler.state.jobs.get(job_id)
        if job is None:
            continue
        lines.extend(StoryLine(at=event.at, text=text) for text in _told_by(event, job))
        now = _changes(job)
        if now != before:
            lines.append(StoryLine(at=event.at, text=_told_by_change(job, before, now)))
            before = now
    if not before:
        raise KeyError(job_id)
    return lines


def shown_allocation(allocation: Allocation) -> str:
    """Return an allocation in words: `4 GPUs (node-0: 4)`, or `no GPU`."""
    if not allocation:
        return "no GPU"
    nodes = ", ".join(f"{node}: {count}" for node, count in allocation.slots)
    return f"{allocation.num_replicas} GPU{'s' if allocation.num_replicas > 1 else ''} ({nodes})"


def replicas_of_change(job: JobRecord, generation: int) -> tuple[int, int]:
    """Return how many replicas trained before `generation`, and in it; it may train, as far as is known."""
    if generation == job.trained:
        return job.num_replicas_before, job.allocation.num_replicas
    # It took its first step before all who left were gone.
    return job.allocation.num_replicas, job.ordered.num_replicas


def told_in_place(job: JobRecord, event: ReplicasRescaled) -> str:
    """Return what a change in place of `job` was, and where the time went that training stood still."""
    before, now = replicas_of_change(job, event.generation)
    what = f"resized {before} -> {now}" if before != now else f"changed on {now}"
    parts = ", ".join(f"{name} {1e3 * seconds:.0f}" for name, seconds in event.pause.items())
    return f"{what} in place, pause {event.rescale_s:.2f} s ({parts} ms)"


def _told_by(event: Event, job: JobRecord) -> list[str]:
    job_id = job.id
    match event:
        case CancelRequested() if event.job == job_id:
            return ["its user asked to cancel it"]
        case ReplicasRescaled() if event.job == job_id:
            if event.pause:
                return [told_in_place(job, event)]
            what = "the start" if event.generation == 1 else "the restart"
            return [f"generation {event.generation} took its first step; {what} cost {event.rescale_s:.1f} s"]
        case ReplicasKept() if event.job == job_id:
            if event.detail:
                return [f"the change of generation {event.generation} failed ({event.detail}); it trains on"]
            return [f"the change of generation {event.generation} was taken back in time; it trains on"]
        case ReplicasExited() if event.job == job_id:
            detail = f" ({event.detail})" if event.detail else ""
            return [f"replicas of generation {event.generation} ended: {event.outcome.value}{detail}"]
        case _:
            return []


def _changes(job: JobRecord) -> tuple[str, ...]:
    batch = f"batch {job.batch.total}" if job.batch else ""
    return (job.state.value, str(job.generation), shown_allocation(job.ordered), batch, job.explanation)


def _told_by_change(job: JobRecord, before: tuple[str, ...], now: tuple[str, ...]) -> str:
    if not before:
        limits = job.spec.replicas
        return (
            f"submitted: {limits.min}..{limits.max} GPUs, batch {job.spec.batch.initial}.."
            f"{job.spec.batch.max_total}, contract {job.spec.contract.value}"
        )
    state, _, allocation, batch, explanation = now
    parts = [state]
    if now[1:3] != before[1:3]:
        parts.append(f"generation {job.generation} on {allocation}" if job.ordered else allocation)
    if batch and batch != before[3]:
        parts.append(batch)
    if explanation != before[4]:
        parts.append(explanation)
    return "; ".join(parts)
