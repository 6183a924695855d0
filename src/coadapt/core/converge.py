"""From targets to orders: what to stop, resize and start now, so that no GPU is ever promised twice.

Stops and shrinks go out at once; growth and starts wait until the GPUs are really free, that is, until the
replicas that held them were reported gone. Called by Scheduler.handle only.
"""

from collections.abc import Iterable

from coadapt.core.accounting import accrue, held_gpus, note_change
from coadapt.core.commands import Command, Resize, Retract, Start, Stop
from coadapt.core.lifecycle import JobState, Reason, Trigger, advance
from coadapt.core.state import JobRecord, SchedulerState
from coadapt.model import Allocation, NodeId, RescaleContract

# Sums of fractional GPU shares round; this slack in GPUs absorbs it.
SLACK_GPUS = 1e-9
# After so many resizes in a row that failed, what fails only in a change may still do in a start.
RESIZES_FAILED_MAX = 3

_IN_FLIGHT = frozenset({JobState.STARTING, JobState.RESCALING, JobState.STOPPING})


def converge(state: SchedulerState, jobs: list[JobRecord], in_place: bool) -> list[Command]:
    """Return the orders that bring `jobs` (active, in submission order) closer to their targets."""
    commands: list[Command] = [stop(job, state.at) for job in jobs if _must_stop(job, in_place)]
    rescaling = [job for job in jobs if job.state is JobState.RESCALING]
    commands += [_retract(job, state.at) for job in rescaling if not job.retracting and _differs(job)]
    free = free_gpus(state, jobs)
    blocked: list[JobRecord] = []
    changing = [job for job in jobs if _must_change(job)]
    # Those that shrink first.
    for job in sorted(changing, key=lambda job: job.target.num_replicas - job.ordered.num_replicas):
        if _fits(job, job.target, free):
            commands.append(_resize(job, state.at, free))
        else:
            blocked.append(job)
    for job in (job for job in jobs if job.state is JobState.PENDING and job.target):
        if _fits(job, job.target, free):
            commands.append(_start(job, state.at, free))
    if blocked and not commands and not any(_moves_soon(job) for job in jobs):
        # Running jobs wait for each other's GPUs in a ring: one of them has to let go first.
        commands.append(stop(blocked[0], state.at))
    return commands


def free_gpus(state: SchedulerState, jobs: Iterable[JobRecord]) -> dict[NodeId, float]:
    """Return GPUs per live node that no job holds."""
    free = {node.id: float(node.num_gpus) for node in state.nodes.values()}
    for job in jobs:
        for node, gpus in held_gpus(job).items():
            if node in free:
                free[node] -= gpus
    return free


def stop(job: JobRecord, at: float) -> Stop:
    """Order the job's replicas to save and end."""
    job.state = advance(job.state, Trigger.STOP_ORDERED)
    job.retracting = False
    job.order_at = at
    job.num_attempts = 1
    return Stop(job=job.id, generation=job.generation)


def note_answer(job: JobRecord) -> None:
    """Book that the last order needs no answer any more."""
    job.order_at = None
    job.retracting = False


def repeat_order(job: JobRecord, at: float) -> Command:
    """Return the job's present order once more; executors answer a repeat with the job's present fate."""
    job.num_attempts += 1
    if job.order_at is not None:
        job.order_at = at
    job.heard_at = at
    if job.state is JobState.STOPPING:
        return Stop(job=job.id, generation=job.generation)
    if job.retracting:
        return Retract(job=job.id, generation=job.generation)
    kind = Resize if job.state is JobState.RESCALING else Start
    return kind(
        job=job.id,
        generation=job.generation,
        spec=job.spec,
        allocation=job.ordered,
        batch=job.ordered_batch,
    )


def _must_stop(job: JobRecord, in_place: bool) -> bool:
    if job.state not in (JobState.STARTING, JobState.RUNNING, JobState.RESCALING):
        return False
    if job.cancel_requested or not job.target:
        return True
    # A change of mind waits until the order before it was answered: half-started replicas have no state, and
    # of a resize it is not known which replicas train.
    resizable = in_place and job.spec.contract is not RescaleContract.FROZEN
    return not (resizable and job.num_resizes_failed < RESIZES_FAILED_MAX) and _must_change(job)


def _must_change(job: JobRecord) -> bool:
    return job.state is JobState.RUNNING and not job.waits_for_plan and _differs(job)


def _moves_soon(job: JobRecord) -> bool:
    return job.state in _IN_FLIGHT or job.waits_for_plan


def _differs(job: JobRecord) -> bool:
    return job.target != job.ordered or job.target_batch not in (None, job.ordered_batch)


def _fits(job: JobRecord, target: Allocation, free: dict[NodeId, float]) -> bool:
    held = held_gpus(job)
    return all(
        node in free and count * target.gpu_share - held.get(node, 0.0) <= free[node] + SLACK_GPUS
        for node, count in target.slots
    )


def _start(job: JobRecord, at: float, free: dict[NodeId, float]) -> Start:
    job.state = advance(job.state, Trigger.ALLOCATED)
    job.reason = Reason.ALLOCATED
    accrue(job, at)
    if job.num_starts:
        job.num_rescales += 1
    job.num_starts += 1
    job.started_at = at if job.started_at is None else job.started_at
    job.progress_at_start = job.progress
    _order(job, at, free)
    note_change(job, at)
    return Start(
        job=job.id,
        generation=job.generation,
        spec=job.spec,
        allocation=job.ordered,
        batch=job.ordered_batch,
    )


def _resize(job: JobRecord, at: float, free: dict[NodeId, float]) -> Resize:
    job.state = advance(job.state, Trigger.RESIZE_ORDERED)
    job.reason = Reason.RESCALED
    accrue(job, at)
    _order(job, at, free)
    return Resize(
        job=job.id,
        generation=job.generation,
        spec=job.spec,
        allocation=job.ordered,
        batch=job.ordered_batch,
    )


def _retract(job: JobRecord, at: float) -> Retract:
    job.retracting = True
    job.order_at = at
    job.num_attempts = 1
    return Retract(job=job.id, generation=job.generation)


def _order(job: JobRecord, at: float, free: dict[NodeId, float]) -> None:
    held_before = held_gpus(job) if job.state is JobState.RESCALING else {}
    job.generation += 1
    job.ordered = job.target
    job.order_at = at
    job.num_attempts = 1
    job.heard_at = at
    job.ordered_batch = job.target_batch
    for node, count in job.ordered.slots:
        extra = count * job.ordered.gpu_share - held_before.get(node, 0.0)
        free[node] -= max(extra, 0.0)
