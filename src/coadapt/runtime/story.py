"""The story of a job: a line for each change that concerns it, found by a replay of the
journal.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from coadapt.core.config import SchedulerConfig
from coadapt.core.events import (
    CancelRequested,
    Event,
    PriorityChanged,
    ReplicasExited,
    ReplicasKept,
    TrainingResumed,
)
from coadapt.core.lifecycle import Reason
from coadapt.core.scheduler import Scheduler
from coadapt.core.state import JobRecord, SchedulerState, Status
from coadapt.model import Allocation, JobId
from coadapt.model.measured import not_finite, straggler

StoryKey = tuple[str, ...]
"""State, generation, allocation, batch, slow replica, whether losses are finite, why it
is unseen and, last, explanation of a job."""

NEW: StoryKey = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class StoryLine:
    """What happened at instant `at` (s), in words."""

    at: float
    text: str


def story(
    events: Iterable[Event],
    job_id: JobId,
    config: SchedulerConfig,
    state: SchedulerState | None = None,
) -> list[StoryLine]:
    """Return the job's life in order. Raises KeyError if the journal knows no such job.

    `events` is a whole journal, `config` the one that it begins under; or the events
    after `state`, which they change.
    """
    scheduler = Scheduler(config, state)
    lines: list[StoryLine] = []
    before = NEW
    for event in events:
        scheduler.handle(event)
        job = scheduler.state.jobs.get(job_id)
        if job is None:
            continue
        lines.extend(
            StoryLine(at=event.at, text=text) for text in event_texts(event, job)
        )
        now = story_key(job)
        if now != before:
            lines.append(StoryLine(at=event.at, text=change_text(job, before, now)))
            before = now
    if before == NEW:
        raise KeyError(job_id)
    return lines


def shown_allocation(allocation: Allocation) -> str:
    """Return an allocation in words: `4 GPUs (node-0: 4)`, or `no GPU`."""
    if not allocation:
        return "no GPU"
    nodes = ", ".join(f"{node}: {count}" for node, count in allocation.slots)
    return (
        f"{allocation.num_replicas} GPU{'s' if allocation.num_replicas > 1 else ''} "
        f"({nodes})"
    )


def replicas_of_change(job: JobRecord, generation: int) -> tuple[int, int]:
    """Return how many replicas trained before `generation`, and in it; it may train, as
    far as is known.
    """
    running = job.trains_on.num_replicas
    if generation == job.running.generation:
        return job.running.num_replicas_before, running
    # It took its first step before all leaving replicas were gone.
    return running, job.ordered.num_replicas


def rescale_text(job: JobRecord, event: TrainingResumed) -> str:
    """Return the line of a rescale in place: replicas before and after, the pause, and
    the parts of the pause.
    """
    before, now = replicas_of_change(job, event.generation)
    what = f"rescaled {before} -> {now}" if before != now else f"changed on {now}"
    parts = ", ".join(
        f"{name} {1e3 * seconds:.0f}" for name, seconds in event.pause.items()
    )
    return f"{what} in place, pause {event.rescale_s:.2f} s ({parts} ms)"


def event_texts(event: Event, job: JobRecord) -> list[str]:
    """Return the lines of the job's story that `event` itself adds; none if it is about
    another job.
    """
    job_id = job.id
    match event:
        case CancelRequested() if event.job == job_id:
            return ["its cancellation was requested"]
        case PriorityChanged() if event.job == job_id:
            return [f"its priority was set to {event.priority}"]
        case TrainingResumed() if event.job == job_id:
            if event.pause:
                return [rescale_text(job, event)]
            what = "the start" if event.generation == 1 else "the restart"
            return [
                (
                    f"generation {event.generation} took its first step; {what} cost "
                    f"{event.rescale_s:.1f} s"
                )
            ]
        case ReplicasKept() if event.job == job_id:
            if event.detail:
                return [
                    (
                        f"the change of generation {event.generation} failed "
                        f"({event.detail}); it trains on"
                    )
                ]
            return [
                (
                    f"the change of generation {event.generation} was taken back in "
                    f"time; it trains on"
                )
            ]
        case ReplicasExited() if event.job == job_id:
            detail = f" ({event.detail})" if event.detail else ""
            return [
                (
                    f"replicas of generation {event.generation} ended: "
                    f"{event.outcome.value}{detail}"
                )
            ]
        case _:
            return []


def story_key(job: JobRecord) -> StoryKey:
    """Return what the story tells of when it changes."""
    batch = f"batch {job.measured.batch.total}" if job.measured.batch else ""
    return (
        job.state.value,
        str(job.generation),
        shown_allocation(job.ordered),
        batch,
        straggler_of(job).partition(" computes")[0],
        not_finite(job.measured.metrics),
        job.status.unseen,
        "; ".join(
            filter(None, (job.status.preparing, job.status.blocked or job.explanation))
        ),
    )


def why_now(status: Status) -> tuple[Reason, str]:
    """Return why a job is in its state, as a reason for programs and a sentence for
    people. That its replicas are unseen comes first.
    """
    if status.blocked:
        return status.reason, status.blocked
    if not status.unseen:
        parts = (status.preparing, status.explanation)
        return status.reason, "; ".join(filter(None, parts))
    return Reason.UNSEEN, "; ".join(filter(None, (status.unseen, status.explanation)))


def straggler_of(job: JobRecord) -> str:
    """Return which replica of the job is consistently slower than its peers, in words;
    "" where none is.
    """
    return straggler(job.measured.metrics, job.trains_on)


def change_text(job: JobRecord, before: StoryKey, now: StoryKey) -> str:
    """Return the line of a change of the job. before: NEW if it was just submitted."""
    if before == NEW:
        limits = job.spec.replicas
        return (
            f"submitted: {limits.in_words} {'GPU' if limits.max == 1 else 'GPUs'}, batch "
            f"{job.spec.batch.initial}.."
            f"{job.spec.batch.max_total}, contract {job.spec.contract.value}"
        )
    state, _, allocation, batch, slow, trouble, unseen, explanation = now
    parts = [state]
    if now[1:3] != before[1:3]:
        parts.append(
            f"generation {job.generation} on {allocation}"
            if job.ordered
            else allocation
        )
    if batch and batch != before[3]:
        parts.append(batch)
    if slow != before[4] and job.trains_on:
        parts.append(
            straggler_of(job) or "no replica is slower than its peers any more"
        )
    if trouble and trouble != before[5]:
        parts.append(trouble)
    if unseen != before[6] and job.trains_on:
        parts.append(unseen or "its replicas are seen again")
    if explanation != before[7]:
        parts.append(explanation)
    return "; ".join(parts)
