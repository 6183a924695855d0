"""What is wrong at this moment: a list that is empty on a good day."""

from collections.abc import Iterator
from dataclasses import dataclass

from coadapt.core.growth import plural
from coadapt.core.lifecycle import JobState, Reason
from coadapt.core.state import JobRecord, SchedulerState
from coadapt.model.measured import not_finite, straggler
from coadapt.runtime.story import why_now

# A job reports every 30 s or so.
SILENT_S = 150.0
# Loading data and compiling take minutes; GPUs that wait for longer are worth a look.
STARTING_S = 600.0
MINUTE_S = 60.0

# A pending job with one of these reasons waits because something went wrong.
FAILED_REASONS = frozenset(
    {
        Reason.SCRIPT_FAILED,
        Reason.GROWTH_FAILED,
        Reason.HUNG,
        Reason.NODE_LOST,
        Reason.NODE_UNFIT,
        Reason.REPLICAS_LOST,
        Reason.IMPOSSIBLE,
        Reason.SET_ASIDE,
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trouble:
    """One thing that is wrong. job, node: what it is about, "" where it is about
    neither.
    """

    kind: str
    text: str
    job: str = ""
    node: str = ""


def troubles_of_jobs(state: SchedulerState, at: float) -> list[Trouble]:
    """Return what is wrong with live jobs at `at` (s), in the order of their
    submission.
    """
    return [trouble for job in state.active for trouble in _of_job(job, at)]


def _of_job(job: JobRecord, at: float) -> Iterator[Trouble]:
    status = job.status
    if status.state is JobState.PENDING:
        if status.reason in FAILED_REASONS:
            yield Trouble(kind=status.reason.value, text=why_now(status)[1], job=job.id)
        return
    if status.unseen:
        yield Trouble(kind=Reason.UNSEEN.value, text=status.unseen, job=job.id)
    if status.state is JobState.STARTING:
        yield from _slow_start(job, at)
        return
    yield from _of_training(job, at)


def _slow_start(job: JobRecord, at: float) -> Iterator[Trouble]:
    waited_s = at - job.running.since
    if waited_s < STARTING_S or job.running.is_plain:
        return
    held = plural(job.ordered.num_replicas, "GPU")
    text = f"holds {held} and has not taken a step for {waited_s / MINUTE_S:.0f} min"
    yield Trouble(kind="slow_start", text=text, job=job.id)


def _of_training(job: JobRecord, at: float) -> Iterator[Trouble]:
    reported_at = job.running.reported_at
    if reported_at is not None and at - reported_at > SILENT_S:
        minutes = (at - reported_at) / MINUTE_S
        text = f"has not reported for {minutes:.0f} min"
        yield Trouble(kind="silent", text=text, job=job.id)
    metrics = job.measured.metrics
    if not metrics:
        return
    broken = not_finite(metrics)
    if broken:
        yield Trouble(kind="not_finite", text=broken, job=job.id)
    slow = straggler(metrics, job.trains_on)
    if slow:
        yield Trouble(kind="straggler", text=slow, job=job.id)
