"""From counts to a plan, for policies that know no adaptive jobs: place, and dictate the user's batch."""

from collections.abc import Mapping, Sequence

from coadapt.goodput.batch import split_total
from coadapt.model import (
    Allocation,
    BatchConfig,
    ClusterView,
    JobId,
    JobView,
    Plan,
    RescaleContract,
)
from coadapt.policies.giving.capacity import Capacity
from coadapt.policies.giving.pack import Pick, pack
from coadapt.policies.giving.reasons import gets

KEEPS_TOTAL = (RescaleContract.FIXED, RescaleContract.FROZEN)


def counted_plan(
    view: ClusterView,
    capacity: Capacity,
    notes: Mapping[JobId, str],
    *,
    order: Sequence[JobId] | None = None,
    picks: Mapping[JobId, Pick] | None = None,
) -> Plan:
    """Return the plan that places what `capacity` gave; each job trains with the batch its user requested.

    notes: why a job waits; what to add to the reason of a job that runs. order, picks: who is placed first
    and where, as in `pack`.
    """
    return placed_plan(view, pack(view, capacity.counts, capacity.gpu_types, order=order, picks=picks), notes)


def placed_plan(
    view: ClusterView, allocations: Mapping[JobId, Allocation], notes: Mapping[JobId, str]
) -> Plan:
    """Return the plan of a policy that chose the places too, with `notes` as in `counted_plan`."""
    batches: dict[JobId, BatchConfig] = {}
    reasons: dict[JobId, str] = {}
    for job in view.jobs:
        note = notes.get(job.id, "")
        allocation = allocations.get(job.id)
        if allocation is None:
            reasons[job.id] = note
            continue
        reasons[job.id] = gets(job, allocation) + (f"; {note}" if note else "")
        batch = requested_batch(job, allocation.num_replicas)
        if batch is not None:
            batches[job.id] = batch
    return Plan(allocations=allocations, batches=batches, reasons=reasons)


def requested_batch(job: JobView, num_replicas: int) -> BatchConfig | None:
    """Return the requested total batch of `job` cut over `num_replicas`.

    None where nobody may dictate it (contracts `self` and `schedule`), or where the job's limits allow no
    such cut (more replicas than samples, or accumulation needed but forbidden): the job then picks its own.
    """
    contract, limits = job.spec.contract, job.spec.batch
    if job.spec.batch_is_own:
        return None
    exact = contract in KEEPS_TOTAL
    batch = split_total(limits.requested, num_replicas, limits, accumulate_alone=True, exact=exact)
    forbidden = contract is RescaleContract.FROZEN and batch.accumulation > 0 and not limits.accumulation
    return None if forbidden or batch.total > limits.max_total else batch
