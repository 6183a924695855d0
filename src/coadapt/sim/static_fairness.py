"""Finish-time fairness as Shockwave measures it: against an equal time share under mean
contention.
"""

from collections.abc import Mapping

from coadapt.core.lifecycle import JobState
from coadapt.model import JobId
from coadapt.runtime.history import History


def static_fairness(
    history: History, alone_s: Mapping[JobId, float], num_gpus: int
) -> dict[JobId, float]:
    """Return ρ of each job that succeeded: completion time / (run time alone * max(1,
    jobs / GPUs)).

    alone_s: seconds that each job trains undisturbed on the GPUs that it requested.
    Jobs are all those of the trace, whenever they came (Shockwave, NSDI'23, artifact).
    For jobs that cannot use fewer GPUs than they ask for; elastic ones are measured by
    sim.metrics.finish_time_fairness.
    """
    contention = max(1.0, len(history.jobs) / num_gpus)
    return {
        job.id: (job.ended_at - job.submitted_at) / (alone_s[job.id] * contention)
        for job in history.jobs.values()
        if job.state is JobState.SUCCEEDED and job.ended_at is not None
    }
