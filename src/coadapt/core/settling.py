"""Which jobs plans leave in peace: those that were started and have not taken a step
yet.

Called by Scheduler.handle only.
"""

# The rule, and why it holds.
#
# A start costs a minute before it is worth anything: processes, imports, a checkpoint,
# a first batch. A policy sees the job hold GPUs that bring nothing yet, and others that
# wait, so it changes its mind at every arrival and every exit; obeyed each time, a job
# was stopped 22 times in 130 s before it took one step. So what a plan wants of a job
# waits until the replicas that were started have taken a step (TrainingResumed, or a
# report of progress), as a change of mind waits for an answer. It stays the target:
# nothing is asked twice, and the step brings it about at once.
#
# It does not wait where GPUs are taken away rather than wished for: its user cancels
# the job, its node is lost, or its tenant, or everybody together, holds more than the
# quota. Nor for a script that does not use coadapt.train, where that can be seen
# (TrainerSeen): it never tells of a first step. Nor for ever: a script may hang before
# its first step. After `settle_s` it is treated like any other.
#
# A rescale in place needs no such peace. The staying replicas train until they change,
# and it is answered after a first step of the new generation.

from collections.abc import Iterable

from coadapt.core.accounting import num_gpus_held
from coadapt.core.lifecycle import JobState, Reason
from coadapt.core.state import JobRecord, SchedulerState
from coadapt.model import JobId, TenantId
from coadapt.model.tenant import EVERYBODY, beyond_quota, quotas_of


def settling(
    state: SchedulerState, jobs: Iterable[JobRecord], settle_s: float
) -> frozenset[JobId]:
    """Return those of `jobs` (active ones) that plans leave in peace at this
    instant.
    """
    young = [
        job
        for job in jobs
        if not job.running.has_trained and _is_young(job, state.at, settle_s)
    ]
    beyond = _beyond_quota(state) if young else set()
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


def _beyond_quota(state: SchedulerState) -> set[TenantId]:
    if not (quotas := quotas_of(state.tenants.values())):
        return set()
    live = state.jobs.values()
    return beyond_quota(quotas, ((job.spec.tenant, num_gpus_held(job)) for job in live))
