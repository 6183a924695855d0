"""From counts to a plan, for policies that know no adaptive jobs: place, and dictate
the user's batch.
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache

from coadapt.goodput.batch import NUM_SPLITS_KEPT, split_total
from coadapt.model import (
    Allocation,
    BatchConfig,
    BatchLimits,
    ClusterView,
    JobId,
    JobView,
    Plan,
    RescaleContract,
)
from coadapt.model.job import OWNS_BATCH
from coadapt.policies.allocation.capacity import Capacity
from coadapt.policies.allocation.pack import Pick, pack
from coadapt.policies.allocation.reasons import gets, keeps

KEEPS_TOTAL = (RescaleContract.FIXED, RescaleContract.FROZEN)


def counted_plan(
    view: ClusterView,
    capacity: Capacity,
    notes: Mapping[JobId, str],
    *,
    order: Sequence[JobId] | None = None,
    picks: Mapping[JobId, Pick] | None = None,
) -> Plan:
    """Return the plan that places what `capacity` gave; each job trains with the batch
    its user requested.

    notes: why a job waits; what to add to the reason of a job that runs. order, picks:
    which job is placed first and where, as in `pack`.
    """
    return placed_plan(
        view,
        pack(view, capacity.counts, capacity.gpu_types, order=order, picks=picks),
        notes,
    )


def placed_plan(
    view: ClusterView,
    allocations: Mapping[JobId, Allocation],
    notes: Mapping[JobId, str],
) -> Plan:
    """Return the plan of a policy that chose the places too, with `notes` as in
    `counted_plan`.
    """
    batches: dict[JobId, BatchConfig] = {}
    reasons: dict[JobId, str] = {}
    cuts: dict[tuple[int, RescaleContract, int], BatchConfig | None] = {}
    for job in view.jobs:
        job_id = job.id
        spec = job.spec
        allocation = allocations.get(job_id)
        if allocation is None:
            reasons[job_id] = notes.get(job_id, "")
            continue
        held = job.grant
        what = (
            keeps(allocation.num_replicas)
            if allocation is held.allocation
            else gets(job, allocation)
        )
        reasons[job_id] = (
            f"{what}; {note}" if notes and (note := notes.get(job_id)) else what
        )
        cut = (
            id(spec.batch),
            spec.contract,
            allocation.num_replicas,
        )  # equal limits are one object
        if cut not in cuts:
            cuts[cut] = _requested(spec.batch, spec.contract, allocation.num_replicas)
        if (batch := cuts[cut]) is not None:
            # If equal, the same object as the job holds, so that it compares fast.
            batches[job_id] = (
                held.batch if held.batch is not batch and held.batch == batch else batch
            )
    return Plan(allocations=allocations, batches=batches, reasons=reasons)


def requested_batch(job: JobView, num_replicas: int) -> BatchConfig | None:
    """Return the requested total batch of `job` cut over `num_replicas`.

    None if the job chooses its own batch: under the contracts `self` and `schedule`, or
    if its limits allow no such cut (more replicas than samples, or accumulation needed
    but forbidden).
    """
    spec = job.spec
    return _requested(spec.batch, spec.contract, num_replicas)


@lru_cache(maxsize=NUM_SPLITS_KEPT)
def _requested(
    limits: BatchLimits, contract: RescaleContract, num_replicas: int
) -> BatchConfig | None:
    if contract in OWNS_BATCH:
        return None
    exact = contract in KEEPS_TOTAL
    batch = split_total(
        limits.requested, num_replicas, limits, accumulate_alone=True, exact=exact
    )
    forbidden = (
        contract is RescaleContract.FROZEN
        and batch.accumulation > 0
        and not limits.accumulation
    )
    return None if forbidden or batch.total > limits.max_total else batch
