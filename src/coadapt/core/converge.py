"""Convergence: the orders that bring jobs from what they hold to their targets, such
that no GPU is ever given to two jobs.

Called by Scheduler.handle only.
"""

# The rules, and why they hold.
#
# No queue. After each event the same question is asked again: given what jobs hold and
# their targets, which orders can be sent now? An order that cannot be sent yet is found
# again after the next event. A queue of pending moves would have to be repaired after
# every event in between: a lost node, a cancel, another plan.
#
# Shrinking goes first, growing waits. A stop and a shrink need no GPU that the job does
# not hold, so they are sent at once. A start and a growth are sent when their GPUs are
# free. A GPU is free only after the executor has reported that the replicas on it are
# gone: neither an order to stop nor a timeout frees it. While an order is open, a job
# holds the larger of its old and its new allocation (state.py), and each order of a
# pass reduces the free GPUs for the next ones. So jobs never hold more than a node has,
# whichever messages are lost, late or repeated. sim/faults checks this after every
# event, against the simulated cluster's own record.
#
# A new target waits for the answer to an open order. Half-started replicas have no
# state to save, so a start without an answer is never changed, only stopped. A rescale
# without an answer is first taken back, because only the answer says which replicas
# train, and the next order starts from those. If the new target is no GPUs, the job is
# stopped instead. (To wait until the rescale is done was tried: mean completion times
# were between 2.6 % shorter and 2.5 % longer, by workload and policy.)
#
# A job that has not trained since its last change is not changed (settling.py), unless
# its GPUs are gone. Meanwhile no ring is broken.
#
# A rescale that failed before it began is not repeated at once, because it would fail
# again. The next plan decides. After RESCALES_FAILED_MAX such failures in a row the job
# is stopped and started instead, which may work where a rescale does not.
#
# Rings are broken by a stop. Running jobs that are to swap nodes wait for each other's
# GPUs for ever: each is blocked, no order was sent, and no open order can free a GPU.
# Then the first of the blocked jobs (least growth, then submission) is stopped, and
# starts again when its new GPUs are free. A job whose failed rescale waits for a plan
# counts as an open order, because the next plan decides about the GPUs that it kept. A
# search for the ring itself would only choose another job.

from dataclasses import replace

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
from coadapt.core.settling import settling, tenants_beyond_quota
from coadapt.core.state import JobRecord, Order, OrderKind, Running, SchedulerState
from coadapt.core.worklist import Worklist
from coadapt.model import RescaleContract, holding

# After this number of failed rescales in a row, a job is stopped and started instead.
RESCALES_FAILED_MAX = 3


def converge(
    state: SchedulerState, work: Worklist, config: SchedulerConfig
) -> list[Command]:
    """Return the orders that bring jobs closer to their targets; the jobs hold what
    is ordered from now on.
    """
    if work.resting:
        work.wake(state.at)
        if beyond := tenants_beyond_quota(state):
            work.wake_tenants(beyond)
    jobs = work.jobs
    in_place = config.rescale_in_place
    if not jobs:  # after most events
        return []
    in_peace = settling(state, jobs, config.settle_s)
    for job in jobs:
        if job.id in in_peace:
            work.rest(job, job.running.since + config.settle_s)
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
    if blocked and not commands and not work.resting and not work.moving:
        # Running jobs wait for each other's GPUs in a ring: one of them must stop.
        commands.append(stop(blocked[0], state.at))
        work.note(blocked[0])
    return commands


def stop(job: JobRecord, at: float) -> JobCommand:
    """Order the job's replicas to save and end."""
    order = replace(job.order, kind=OrderKind.STOP, sent_at=at, num_attempts=1)
    hold(job, at, status=job.status.after(Trigger.STOP_ORDERED), order=order)
    return order_of(job)


def answered(order: Order) -> Order:
    """Return `order` as one that needs no answer. It becomes a start, which asks the
    executor whether the replicas are alive if it is repeated.
    """
    return replace(order, kind=OrderKind.START, sent_at=None)


def repeat_order(job: JobRecord, at: float) -> JobCommand:
    """Return the job's present order again. An executor answers a repeated order with
    the state that the job is in.
    """
    sent_at = None if job.order.sent_at is None else at
    job.order = replace(
        job.order, sent_at=sent_at, num_attempts=job.order.num_attempts + 1
    )
    job.heard_at = at
    return order_of(job)


def order_of(job: JobRecord) -> JobCommand:
    """Return the command for the job's last order, new or repeated."""
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
    """Return the replicas after the last order was carried out. The job's batch is set
    to that of the order.
    """
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
    """Order the job's target: a rescale if the job runs, else a start."""
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
        # No other replicas of the job train, so the order counts without an answer.
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
