"""Why a job is in its state: the reason for programs, and the sentence for its user."""

import math
from collections.abc import Sequence

from coadapt.core.events import Outcome, ReplicasExited
from coadapt.core.growth import plural
from coadapt.core.hindrances import Hindrances, with_own_words
from coadapt.core.lifecycle import JobState, Reason
from coadapt.core.state import JobRecord
from coadapt.model import JobView, Plan

HOLDERS_NAMED = 3  # jobs that a sentence names
# The longest rest after a failure without progress, in seconds. A job that ran for as
# long as that before it failed is started again at once.
RETRY_MOST_S = 300.0
DAY_S = 86_400
AGAIN = "restarts, from a checkpoint if it saved one"


def failure(job: JobRecord, detail: str) -> str:
    """Return how often the job has failed, and how the last time."""
    times = "once" if job.usage.num_failures == 1 else f"{job.usage.num_failures} times"
    return f"failed {times}" + (f": {detail}" if detail else "")


def release_reason(
    job: JobRecord, event: ReplicasExited, rest_s: float = 0.0
) -> tuple[Reason, str]:
    """Return why a job that is to run again, after it rested for so long, has no
    replicas.
    """
    pause = f" after a pause of {rest_s:g} s" if rest_s else ""
    match event.outcome:
        case Outcome.FAILED:
            why = f"restarts{pause}: {failure(job, event.detail)}"
            return Reason.SCRIPT_FAILED, why
        case Outcome.LOST:
            detail = f": {event.detail}" if event.detail else ""
            again = AGAIN.replace("restarts", f"restarts{pause}")
            return Reason.REPLICAS_LOST, f"{again}: replicas were lost{detail}"
        case Outcome.STOPPED if job.state is not JobState.STOPPING and event.detail:
            return Reason.REPLICAS_LOST, f"starts again: {event.detail}"
        case Outcome.STOPPED if job.reason is Reason.HUNG:
            return Reason.HUNG, f"{AGAIN}: it had not reported for too long"
        case _:
            return Reason.RESCALED if job.target else Reason.PREEMPTED, job.explanation


def setup_runs(since: float, limit_s: float | None) -> str:
    """Return what a job waits for whose `setup` runs since an instant (s since
    1970).
    """
    minutes, seconds = divmod(int(since) % DAY_S, 60)
    at = f"{minutes // 60:02d}:{minutes % 60:02d}:{seconds:02d} UTC"
    most = "" if limit_s is None else f", for at most {limit_s / 60:g} min"
    return f"its setup runs since {at}{most}"


def retry_delay_s(num_failures: int, first_s: float) -> float:
    """Return how long a job rests after this number of failures without progress, s."""
    return min(first_s * 2.0 ** (num_failures - 1), RETRY_MOST_S)


def hang(silent_s: float, allowed_s: float) -> str:
    """Return why a job that did not report within its hang_timeout is stopped."""
    return (
        f"is being stopped, to start again: it has not reported for "
        f"{silent_s / 60:.0f} min, "
        f"its hang_timeout is {allowed_s / 60:g} min"
    )


def rescale_failure(job: JobRecord, detail: str, *, restarts: bool) -> str:
    """Return why the job trains on as before after its rescale failed, until the next
    plan.
    """
    held = job.trains_on.num_replicas
    wanted = job.ordered.num_replicas
    gpus = f"{held} GPU{'s' if held > 1 else ''}"
    change = f"the change to {wanted}" if wanted != held else "a change of its replicas"
    later = (
        "a later round may restart it for that"
        if restarts
        else "a later round may try again"
    )
    return f"trains on with {gpus}, {later}: {change} failed: {detail}"


def blocked_reason(
    job: JobRecord, holders: Sequence[JobRecord], at: float, settle_s: float
) -> str:
    """Return which jobs hold the GPUs that the plan gives to a pending job, and until
    when.

    holders: jobs that hold GPUs on its nodes and are to hold other ones. at: now, s.
    """
    gpus = job.target.allocation.num_replicas
    names = ", ".join(holder.id for holder in holders[:HOLDERS_NAMED])
    if len(holders) > HOLDERS_NAMED:
        names += f" and {len(holders) - HOLDERS_NAMED} more"
    waits = f"waits for {plural(gpus, 'GPU')}"
    if not holders:
        return f"{waits} that are being freed"
    starting = [
        holder
        for holder in holders
        if settle_s
        and holder.state is not JobState.STOPPING
        and not holder.running.has_trained
    ]
    if not starting:
        return f"{waits} of {names}; they are free once its replicas have stopped"
    until = max(holder.running.since for holder in starting) + settle_s
    minutes = max(math.ceil((until - at) / 60.0), 1)
    give = "which gives them up" if len(holders) == 1 else "which give them up"
    return (
        f"{waits} of {names}, {give} after a first step, or in {minutes} min at the "
        f"latest"
    )


def waiting_reason(
    job: JobRecord, view: JobView, plan: Plan, hindrances: Hindrances
) -> tuple[Reason, str]:
    """Return why `plan` gives the job nothing: what is proven, and then the policy's
    own words.

    view: the job as the policy saw it.
    """
    own = plan.reasons.get(job.id, "")
    if job.id in plan.set_aside:
        reason = Reason.SET_ASIDE
        text = own or "waits: set aside, the policy fails with it"
    else:
        found = hindrances.of_waiting(view, job.unfit_nodes)
        reason = Reason.IMPOSSIBLE if found.impossible else Reason.NO_CAPACITY
        text = with_own_words(found.text, own)
    if job.state is not JobState.PENDING and reason is not Reason.IMPOSSIBLE:
        reason = Reason.PREEMPTED
    return reason, text
