"""What starts and changes of replicas cost a job's training, for the report page."""

from collections.abc import Iterable, Sequence
from statistics import median

from coadapt.core.lifecycle import JobState
from coadapt.runtime.history import History, JobHistory, MeasuredRescale, Span

# States in which a job holds GPUs but does not train. RESCALING is not among them:
# while joining replicas prepare, the others train. The job itself measures what a start
# or a change costs.
_UNPRODUCTIVE = frozenset({JobState.STARTING, JobState.STOPPING})


def in_place(job: JobHistory) -> list[MeasuredRescale]:
    """Return the job's changes without a restart."""
    return [rescale for rescale in job.rescales if rescale.pause]


def idle_times(job: JobHistory) -> list[tuple[float, float]]:
    """Return the periods, in order, in which the job held GPUs but did not train."""
    stretches = [
        (span.start, span.end) for span in job.spans if span.state in _UNPRODUCTIVE
    ]
    stretches += [(rescale.at - rescale.cost_s, rescale.at) for rescale in job.rescales]
    merged: list[tuple[float, float]] = []
    for start, end in sorted(stretches):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged


def overlap_s(
    stretches: Iterable[tuple[float, float]], start: float, end: float
) -> float:
    """Return how many seconds between `start` and `end` are in `stretches`, which do
    not overlap each other.
    """
    return sum(
        max(min(last, end) - max(first, start), 0.0) for first, last in stretches
    )


def live_figures(history: History) -> dict[str, float]:
    """Return the figures of a run of which only its history is known, by name; {}
    without jobs.
    """
    jobs = history.jobs.values()
    total_s = sum(_length_s(job.spans) for job in jobs)
    if not total_s:
        return {}
    wait_s = sum(
        _length_s([span for span in job.spans if not span.num_gpus]) for job in jobs
    )
    held = [(job, span) for job in jobs for span in job.spans if span.num_gpus]
    idle = {job.id: idle_times(job) for job in jobs}
    idle_s = sum(overlap_s(idle[job.id], span.start, span.end) for job, span in held)
    done = [
        job
        for job in jobs
        if job.state is JobState.SUCCEEDED and job.ended_at is not None
    ]
    figures = {"num_rescales": float(sum(job.usage.num_rescales for job in jobs))}
    if done:
        figures["jct_mean_s"] = sum(
            (job.ended_at or 0.0) - job.submitted_at for job in done
        ) / len(done)
    pauses_s = [rescale.cost_s for job in jobs for rescale in in_place(job)]
    if pauses_s:
        figures["num_in_place"] = float(len(pauses_s))
        figures["pause_ms_p50"] = 1e3 * median(pauses_s)
        figures["pause_ms_max"] = 1e3 * max(pauses_s)
    shares = {
        "time_goodput": total_s - wait_s - idle_s,
        "time_wait": wait_s,
        "time_idle": idle_s,
    }
    return figures | {name: seconds / total_s for name, seconds in shares.items()}


def _length_s(spans: Sequence[Span]) -> float:
    return sum(span.end - span.start for span in spans)
