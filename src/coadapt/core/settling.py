"""Settling: jobs that were started are not changed by plans before their first step.

Called by Scheduler.handle only.
"""

# The rule, and why it holds.
#
# A start takes a minute before the first step: processes, imports, a checkpoint, a
# first batch. A policy sees a job with GPUs and without progress beside jobs that wait,
# so it changes its plan at every arrival and exit. When each of these plans was carried
# out, a job was stopped 22 times in 130 s before it took one step. Therefore a new
# target for the job is kept, but no order is sent until the started replicas have taken
# a step (TrainingResumed, or a report of progress). Then the order is sent at once.
#
# The order is sent without waiting if GPUs must be given up: the user cancels the job,
# a node is lost, or the tenant, or all jobs together, hold more than the quota. The
# same holds for a script that is known not to use coadapt.train (TrainerSeen), because
# it never reports a first step. A script may also hang before its first step, so the
# job is treated like any other after `settle_s`.
#
# A rescale in place does not need this rule. The replicas that stay train until the
# change, and the rescale is answered after the first step of the new generation.

from collections.abc import Iterable

from coadapt.core.accounting import num_gpus_held
from coadapt.core.lifecycle import JobState, Reason
from coadapt.core.state import JobRecord, SchedulerState
from coadapt.model import JobId, TenantId
from coadapt.model.tenant import EVERYBODY, beyond_quota, quotas_of


def settling(
    state: SchedulerState, jobs: Iterable[JobRecord], settle_s: float
) -> frozenset[JobId]:
    """Return those of `jobs` (active ones) that plans may not change at this
    instant.
    """
    young = [
        job
        for job in jobs
        if not job.running.has_trained and _is_young(job, state.at, settle_s)
    ]
    beyond = tenants_beyond_quota(state) if young else set()
    return frozenset(
        job.id for job in young if beyond.isdisjoint((job.spec.tenant, EVERYBODY))
    )


def _is_young(job: JobRecord, at: float, settle_s: float) -> bool:
    if job.running.is_plain:
        return False
    if at - job.running.since >= settle_s:
        return False
    taken = job.status.cancel_requested or job.reason is Reason.NODE_LOST
    return not taken and job.state in (JobState.STARTING, JobState.RUNNING)


def tenants_beyond_quota(state: SchedulerState) -> set[TenantId]:
    """Return the tenants whose jobs hold more than the quota; with EVERYBODY if all
    jobs together do. Their jobs are changed without waiting.
    """
    if not (quotas := quotas_of(state.tenants.values())):
        return set()
    live = state.jobs.values()
    return beyond_quota(quotas, ((job.spec.tenant, num_gpus_held(job)) for job in live))
