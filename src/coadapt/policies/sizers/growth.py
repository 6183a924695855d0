"""What the sizers have in common that look at one job at a time: GPUs per
job, summed.
"""

from collections.abc import Callable, Mapping

from coadapt.model import JobId, JobView, RescaleContract
from coadapt.model.offer import Offer, Pool, SizingView
from coadapt.policies.sizers.curves import FloatArray, is_timed, usable_gpus
from coadapt.policies.sizers.offers import cheapest_first, on_one_type, types_allowed

# Pollux lets a job grow to twice the GPUs that it was timed on (OSDI'21, §4.1).
EXPLORE = 2.0

Curve = Callable[[JobView, Offer, int], FloatArray]


def least_gpus(job: JobView) -> int:
    """Return the fewest GPUs that the job runs on; a frozen job has what it
    requested.
    """
    limits = job.spec.replicas
    frozen = job.spec.contract is RescaleContract.FROZEN
    return limits.requested if frozen else limits.min


def offer_for(job: JobView, pools: tuple[Pool, ...]) -> Offer | None:
    """Return the cheapest offer that the job may run on: one on whose GPUs it was
    timed.

    None: no offer has a GPU type that it allows.
    """
    allowed = [
        pool.offer
        for pool in cheapest_first(pools)
        if job.spec.replicas.allows_type(pool.offer.gpu_type) and pool.offer.most
    ]
    timed = [offer for offer in allowed if is_timed(job, offer.gpu_type)]
    return next(iter([*timed, *allowed]), None)


def most_for(job: JobView, offer: Offer) -> int:
    """Return the GPUs up to which the job's curve is looked at: whole nodes, explored
    ones.
    """
    capped = usable_gpus(job, EXPLORE)
    return max(min(capped, offer.most * offer.num_gpus), least_gpus(job))


def wanted_by_types(
    view: SizingView, wanted: Mapping[JobId, float]
) -> dict[tuple[str, ...], float]:
    """Return the GPUs wanted of each GPU type, each job's on one type."""
    return on_one_type(
        view.pools,
        [(types_allowed(job), wanted.get(job.id, 0.0)) for job in view.cluster.jobs],
        view.cluster.nodes,
    )
