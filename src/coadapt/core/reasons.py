"""Why a job is in its state: the reason for programs, and the sentence for its user."""

from coadapt.core.events import Outcome, ReplicasExited
from coadapt.core.lifecycle import JobState, Reason
from coadapt.core.state import JobRecord, SchedulerState
from coadapt.model import Plan


def failure(job: JobRecord, detail: str) -> str:
    """Return how often the job has failed, and how the last time."""
    times = "once" if job.num_failures == 1 else f"{job.num_failures} times"
    return f"failed {times}" + (f": {detail}" if detail else "")


def release_reason(job: JobRecord, event: ReplicasExited) -> tuple[Reason, str]:
    """Return why a job that is to run again has no replicas."""
    match event.outcome:
        case Outcome.FAILED:
            return Reason.SCRIPT_FAILED, f"restarts: {failure(job, event.detail)}"
        case Outcome.LOST:
            detail = f": {event.detail}" if event.detail else ""
            return Reason.REPLICAS_LOST, f"restarts from its last checkpoint: replicas were lost{detail}"
        case _:
            return Reason.RESCALED if job.target else Reason.PREEMPTED, job.explanation


def resize_failure(job: JobRecord, detail: str, *, restarts: bool) -> str:
    """Return why the job trains on as before, while the order that failed still stands in the books."""
    held, wanted = job.allocation.num_replicas, job.ordered.num_replicas
    gpus = f"{held} GPU{'s' if held > 1 else ''}"
    change = f"the change to {wanted}" if wanted != held else "a change of its replicas"
    later = "a later round may restart it for that" if restarts else "a later round may try again"
    return f"trains on with {gpus}, {later}: {change} failed: {detail}"


def waiting_reason(job: JobRecord, plan: Plan, state: SchedulerState) -> tuple[Reason, str]:
    """Return why `plan` gives the job nothing."""
    largest = _largest_pool(state)
    if (least := job.spec.replicas.min) > largest:
        return (
            Reason.IMPOSSIBLE,
            f"waits: needs at least {least} GPUs, the cluster has {largest} of one type",
        )
    reason = Reason.NO_CAPACITY if job.state is JobState.PENDING else Reason.PREEMPTED
    return reason, plan.reasons.get(job.id, "waits: the policy gave it no GPU this round")


def _largest_pool(state: SchedulerState) -> int:
    pools: dict[str, int] = {}
    for node in state.nodes.values():
        pools[node.gpu_type] = pools.get(node.gpu_type, 0) + node.num_gpus
    return max(pools.values(), default=0)
