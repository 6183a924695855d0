"""What ONES tells users: the batch that goes with a job's GPUs, or what it waits
for.
"""

from collections.abc import Mapping

from coadapt.model import Allocation, BatchConfig, ClusterView, JobId
from coadapt.policies.allocation.capacity import Capacity, span
from coadapt.policies.allocation.reasons import gets, waits


def explained(
    view: ClusterView,
    capacity: Capacity,
    allocations: Mapping[JobId, Allocation],
    batches: Mapping[JobId, BatchConfig],
) -> dict[JobId, str]:
    """Return a sentence for each job."""
    reasons = {}
    for job in view.jobs:
        held = allocations.get(job.id)
        if held is None:
            why = waits(
                job, span(job)[0], capacity, "jobs with less GPU time left go first"
            )
            reasons[job.id] = why
        else:
            batch = batches.get(job.id)
            reasons[job.id] = gets(job, held) + (
                f"; trains with a batch of {batch.total}" if batch else ""
            )
    return reasons
