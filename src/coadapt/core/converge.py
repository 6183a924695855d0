"""From targets to orders: what to stop, rescale and start now, so that no GPU is ever
promised twice.

Called by Scheduler.handle only.
"""

# The rules, and why they hold.
#
# Nothing is queued. After each event the same question is asked anew: given what jobs
# hold and what they should have, which orders can go out now? What cannot go out yet is
# found again the next time. A queue of pending moves would have to be mended by every
# event that comes in between: a lost node, a cancel, another plan.
#
# Shrinking goes first, growing waits. A stop and a shrink need no GPU that the job does
# not hold, so they go out at once. A start and a growth go out when their GPUs are
# free, and a GPU is free only once the executor has said that the replicas on it are
# gone: an order to stop frees nothing, nor does time. Since a job holds the larger of
# old and new while its order is open (state.py), and the free GPUs go down with each
# order of the same pass, what jobs hold never exceeds a node, whatever is lost, late or
# repeated.
# sim/faults checks that after every event, against the world's own ledger.
#
# A change of mind waits for an answer. Half-started replicas have no state to save, so
# a start that was not answered is never changed, only stopped whole. A rescale that was
# not answered is taken back first, unless the job is to have nothing, which stops it
# whole: only the answer tells which replicas train, and the next order goes on from
# those. (Waiting for the rescale to come about was tried too: mean completion times
# were between 2.6 % shorter and 2.5 % longer, by workload and policy.)
#
# A job that has not yet trained since its last change is left in peace (settling.py): a
# new wish for it waits, unless its GPUs are gone, and no ring is broken meanwhile.
#
# A rescale that failed before it began is not repeated at once, for it would fail
# again: the target is let be until the next plan asks. After RESCALES_FAILED_MAX in a
# row the next change is a stop and a start, because what fails in a change only may
# work in a start.
#
# Rings are broken by force. Running jobs that are to swap nodes wait for each other's
# GPUs for ever: each is blocked, nothing went out, and nothing under way could free a
# GPU. Then the first of the blocked ones (least growth, then submission) is stopped
# whole, and starts again once its new GPUs are free. A job whose failed rescale waits
# for a plan counts as under way: the next plan decides about the GPUs that it kept. To
# look for the ring itself would only choose another victim.

from coadapt.core.accounting import held, hold
from coadapt.core.commands import (
    Command,
    JobCommand,
    Rescale,
    RetractRescale,
    Start,
    Stop,
)
from coadapt.core.config import SchedulerConfig
from coadapt.core.lifecycle import JobState, Reason, Trigger
from coadapt.core.settling import settling
from coadapt.core.state import JobRecord, Order, OrderKind, Running, SchedulerState
from coadapt.core.worklist import Worklist
from coadapt.model import RescaleContract, holding
from coadapt.model.quick_init import replace

# After so many rescales in a row that failed, what fails only in a change may still do
# in a start.
RESCALES_FAILED_MAX = 3


def converge(
    state: SchedulerState, work: Worklist, config: SchedulerConfig
) -> list[Command]:
    """Return the orders that bring jobs closer to their targets."""
    jobs = work.jobs
    in_place = config.rescale_in_place
    if not jobs:  # after most events
        return []
    in_peace = settling(state, jobs, config.settle_s)
    movable = [job for job in jobs if job.id not in in_peace]
    commands: list[Command] = []
    for job in (job for job in movable if _must_stop(job, in_place)):
        commands.append(stop(job, state.at))
        work.note(job)
    rescaling = [
        job for job in jobs if job.state is JobState.RESCALING and _differs(job)
    ]
    commands += [
        _retract(job, state.at)
        for job in rescaling
        if job.order.kind is not OrderKind.RETRACT
    ]
    blocked: list[JobRecord] = []
    changing = [job for job in movable if _must_change(job)]
    waiting = [job for job in jobs if job.state is JobState.PENDING and job.target]
    for job in (*sorted(changing, key=_growth), *waiting):  # those that shrink first
        if work.holdings.free.fits(holding(job.target.allocation), held(job)):
            commands.append(_send(job, state.at))
            work.note(job)
        elif job.state is JobState.RUNNING:
            blocked.append(job)
    if blocked and not commands and not in_peace and not work.moving:
        # Running jobs wait for each other's GPUs in a ring: one of them has to let go
        # first.
        commands.append(stop(blocked[0], state.at))
        work.note(blocked[0])
    return commands


def stop(job: JobRecord, at: float) -> JobCommand:
    """Order the job's replicas to save and end."""
    order = replace(job.order, kind=OrderKind.STOP, sent_at=at, num_attempts=1)
    hold(job, at, status=job.status.after(Trigger.STOP_ORDERED), order=order)
    return order_of(job)


def answered(order: Order) -> Order:
    """Return `order` when it needs no answer any more: repeated, as a start, it asks if
    replicas live.
    """
    return replace(order, kind=OrderKind.START, sent_at=None)


def repeat_order(job: JobRecord, at: float) -> JobCommand:
    """Return the job's present order once more; executors answer a repeat with the
    job's present fate.
    """
    sent_at = None if job.order.sent_at is None else at
    job.order = replace(
        job.order, sent_at=sent_at, num_attempts=job.order.num_attempts + 1
    )
    job.heard_at = at
    return order_of(job)


def order_of(job: JobRecord) -> JobCommand:
    """Return the command that carries the job's last order, or asks after what came of
    it.
    """
    order = job.order
    grant = job.order.grant
    match order.kind:
        case OrderKind.STOP:
            return Stop(job=job.id, generation=order.generation)
        case OrderKind.RETRACT:
            return RetractRescale(job=job.id, generation=order.generation)
        case OrderKind.RESCALE | OrderKind.START:
            kind = Rescale if order.kind is OrderKind.RESCALE else Start
            return kind(
                job=job.id,
                generation=order.generation,
                spec=job.spec,
                allocation=grant.allocation,
                batch=grant.batch,
            )


def come_about(job: JobRecord, at: float) -> Running:
    """Return the replicas as the last order has them; the job's batch is booked."""
    job.measured = job.measured.with_batch(job.order.grant.batch, at)
    before = job.running
    return replace(
        before,
        generation=job.order.generation,
        grant=job.order.grant,
        num_replicas_before=before.grant.allocation.num_replicas,
        reported_at=None if before.reported_at is None else at,
    )


def _must_stop(job: JobRecord, in_place: bool) -> bool:
    if job.state not in (JobState.STARTING, JobState.RUNNING, JobState.RESCALING):
        return False
    if job.status.cancel_requested or not job.target:
        return True
    rescalable = in_place and job.spec.contract is not RescaleContract.FROZEN
    return not (
        rescalable and job.failed_rescales.num_in_row < RESCALES_FAILED_MAX
    ) and _must_change(job)


def _must_change(job: JobRecord) -> bool:
    return (
        job.state is JobState.RUNNING
        and not job.failed_rescales.waits_for_plan
        and _differs(job)
    )


def _differs(job: JobRecord) -> bool:
    return not job.order.grant.satisfies(job.target)


def _growth(job: JobRecord) -> int:
    return job.target.allocation.num_replicas - job.ordered.num_replicas


def _send(job: JobRecord, at: float) -> JobCommand:
    """Order the job to have its target, by a start or, if it runs, by a rescale."""
    kind = OrderKind.RESCALE if job.state is JobState.RUNNING else OrderKind.START
    number = job.order.generation + 1
    order = Order(
        generation=number, grant=job.target, kind=kind, sent_at=at, num_attempts=1
    )
    job.heard_at = at
    if kind is OrderKind.RESCALE:
        hold(
            job,
            at,
            status=job.status.after(Trigger.RESCALE_ORDERED, Reason.RESCALED),
            order=order,
        )
    else:
        hold(
            job,
            at,
            status=job.status.after(Trigger.ALLOCATED, Reason.ALLOCATED),
            order=order,
        )
        job.usage = job.usage.after_start(at)
        # Nothing else trains, so there is no need to wait for the answer.
        running = come_about(job, at)
        progress = job.measured.progress
        job.running = replace(
            running,
            progress_at_start=progress,
            since=at,
            has_trained=False,
            is_plain=False,
            reported_at=None,
        )
    return order_of(job)


def _retract(job: JobRecord, at: float) -> JobCommand:
    job.order = replace(job.order, kind=OrderKind.RETRACT, sent_at=at, num_attempts=1)
    return order_of(job)
