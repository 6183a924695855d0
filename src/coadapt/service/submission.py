"""Submission of an accepted job file: the job's id, and checks that the cluster could
ever run it.
"""

import hashlib
import re
import shlex
from collections.abc import Iterable, Mapping

from coadapt.goodput.batch import adaptive_grid
from coadapt.model import InputError, JobId, JobSpec, Node, Tenant
from coadapt.model.prices import Prices
from coadapt.model.tenant import TenantId

ID_NAME_LENGTH = 40
# Two jobs of one name meet with a chance of 1 in 4 billion; `submit` refuses the second
# then.
ID_HASH_LENGTH = 8


def job_id(name: str, key: str) -> JobId:
    """Return the id of the job `name` submitted under idempotency key `key`: equal
    input, equal id.
    """
    slug = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:ID_NAME_LENGTH] or "job"
    digest = hashlib.sha256(repr((name, key)).encode()).hexdigest()
    return f"{slug}-{digest[:ID_HASH_LENGTH]}"


def check_possible(
    spec: JobSpec, nodes: Iterable[Node], away: Iterable[Node] = ()
) -> None:
    """Raise InputError if no allocation on the whole cluster would let the job
    train.

    away: nodes that went away. A job that may use a GPU type of which all nodes are
    away is accepted and waits, since it is not known how many will come back. So is any
    job while no node is known.
    """
    pools: dict[str, int] = {}
    for node in nodes:
        pools[node.gpu_type] = pools.get(node.gpu_type, 0) + node.num_gpus
    empty = {node.gpu_type for node in away} - pools.keys()
    limits = spec.replicas
    known = pools.keys() | empty
    if known and not any(limits.allows_type(name) for name in known):
        raise InputError(
            "resources.gpu_types",
            list(limits.gpu_types),
            f"one of {', '.join(sorted(known))}",
        )
    if not known or any(limits.allows_type(name) for name in empty):
        _check_batch(spec, limits.max)
        return
    most = max(count for name, count in pools.items() if limits.allows_type(name))
    if limits.min > most:
        types = limits.types_in_words
        allowed = (
            f"a minimum of at most {most}, which is all that this cluster has of "
            f"{types}"
        )
        raise InputError("resources.gpus", limits.in_words, allowed)
    _check_batch(spec, min(limits.max, most))


def check_quota(spec: JobSpec, tenants: Mapping[TenantId, Tenant]) -> None:
    """Raise InputError if the quota of the job's tenant is below the fewest GPUs that
    the job can train on.

    A job above the quota of all tenants together waits: where Kueue admits nodes, that
    quota follows them and may be 0 for a while.
    """
    least = spec.replicas.min
    tenant = tenants.get(spec.tenant)
    if tenant is None or tenant.allows(least):
        return
    most = (
        f"a minimum of at most {tenant.quota_gpus}" if tenant.quota_gpus else "no job"
    )
    raise InputError(
        "resources.gpus",
        spec.replicas.in_words,
        f"{most}, as tenant {tenant.id} may have {tenant.quota_gpus}; an operator raises "
        f"that with: coadapt tenant set {shlex.quote(tenant.id)} --quota {least}",
    )


NO_PRICES = (
    "no such limit, as the scheduler knows no prices: set `prices` in its settings file"
)


def check_prices(spec: JobSpec, prices: Prices | None) -> None:
    """Raise InputError for a job with a limit of costs where no prices are known."""
    if spec.max_cost is not None and prices is None:
        raise InputError("max_cost", spec.max_cost, NO_PRICES)


def _check_batch(spec: JobSpec, most: int) -> None:
    """Refuse limits under which the policies find no lawful batch on any number of GPUs
    up to `most`.
    """
    limits = spec.batch
    least = spec.replicas.min
    if limits.schedule is not None and least * limits.min_atomic > min(
        limits.schedule.totals
    ):
        allowed = (
            f"batches of at least {least * limits.min_atomic}: {limits.min_atomic} "
            f"samples on each GPU"
        )
        raise InputError("batch.schedule", min(limits.schedule.totals), allowed)
    if not spec.adaptive:
        if least * limits.min_atomic > limits.requested:
            needed = least * limits.min_atomic
            raise InputError(
                "batch.requested"
                if limits.requested != limits.initial
                else "batch.initial",
                limits.requested,
                f"at least {needed}: {limits.min_atomic} samples (batch.min_atomic) "
                f"on each of {least} "
                f"GPU{'s' if least > 1 else ''}, the least that resources.gpus asks "
                f"for",
            )
        return
    counts = tuple(range(least, most + 1))
    if not adaptive_grid(limits, counts).total_CB.any():
        atomic = f"{limits.min_atomic}..{limits.max_atomic or limits.max_total}"
        raise InputError(
            "batch",
            f"{limits.initial}..{limits.max_total} samples in passes of {atomic}",
            f"limits that at least one number of GPUs in {least}..{most} satisfies"
            + ("" if limits.accumulation else ", without accumulation"),
        )
