"""One engine for all policies that put jobs in an order and give each the GPUs that it
requested, or none.

First in first out, shortest first and Tiresias differ in the order, in the rule for a
job that does not fit, and in whether running jobs may be preempted: that is all that
their files say.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from coadapt.model import ClusterView, JobId, JobView, Plan, RescaleContract, TenantId
from coadapt.model.view import current_allocations
from coadapt.policies.allocation.capacity import Capacity, Verdict, span
from coadapt.policies.allocation.contenders import contenders
from coadapt.policies.allocation.counted_plan import counted_plan, placed_plan
from coadapt.policies.allocation.pack import Pick, pack_beside
from coadapt.policies.allocation.reasons import go_first, plural, waits


@dataclass(frozen=True, slots=True, kw_only=True)
class GangRule:
    """How a queue is served.

    ahead: which jobs go first, to complete the sentence "3 jobs … go first". backfill:
    later jobs may pass one that does not fit. preempt: running jobs must win their GPUs
    again each round, else they keep them.
    """

    ahead: str
    backfill: bool = True
    preempt: bool = True


def admit(
    view: ClusterView,
    queue: Iterable[JobView],
    rule: GangRule,
    *,
    picks: Mapping[JobId, Pick] | None = None,
) -> Plan:
    """Return the plan in which the jobs of `queue`, in its order, get the GPUs they
    requested while they fit.

    Jobs that need a new place are placed in this order too (as Tiresias in Pollux's
    simulator), by `picks` as in `pack`.
    `queue` holds each job of `view` once, or `contenders` alone. Without backfill, a
    job that waits for free GPUs stops the jobs behind it. A job that waits for its
    tenant's quota or for a larger cluster does not.
    """
    capacity = Capacity(view)
    held = current_allocations(view)
    order = list(queue)
    stay = (
        not rule.preempt
        or len(order) < len(view.jobs)
        or len(contenders(view)) < len(order)
    )
    stay = stay and capacity.keep_all(held)
    if not stay and not rule.preempt:
        for job in order:
            if job.id not in capacity.counts:
                capacity.keep(job)
    notes = {}
    num_served = 0
    behind: str | None = None  # the note of all jobs behind one that waits for GPUs
    for job in order:
        if job.id in capacity.counts:
            num_served += 1
            continue
        if behind is not None:
            notes[job.id] = behind
            continue
        count = requested_gpus(job)
        if capacity.give(job, count):
            num_served += 1
            continue
        notes[job.id] = waits(job, count, capacity, go_first(num_served, rule.ahead))
        if not rule.backfill and capacity.verdict(job, count) is Verdict.BUSY:
            needs = plural(job.spec.replicas.requested, "GPU")
            behind = f"behind {job.spec.name}, which needs {needs}"
    if not stay:
        return counted_plan(
            view, capacity, notes, order=[job.id for job in order], picks=picks
        )
    movers = [
        job
        for job in order
        if job.id in capacity.counts and job.id not in held.allocations
    ]
    placed = pack_beside(view, held, movers, capacity, picks)
    return placed_plan(view, {**held.allocations, **placed}, notes)


def requested_gpus(job: JobView) -> int:
    """Return the GPUs of `job` under a policy that never rescales: those requested,
    within `span`.
    """
    if job.spec.contract is RescaleContract.FROZEN:
        return span(job)[0]
    return job.spec.replicas.requested


def by_priority(view: ClusterView, queue: Sequence[JobView]) -> list[JobView]:
    """Return `queue` with tenants of higher priority first, and in each tenant its jobs
    of higher priority.

    A tenant's jobs swap places among themselves only; ties keep their order.
    """
    jobs = sorted(queue, key=lambda job: -view.tenant(job.spec.tenant).priority)
    if not any(job.spec.priority for job in jobs):
        return jobs
    ranked: dict[TenantId, list[JobView]] = {}
    for job in sorted(jobs, key=lambda job: -job.spec.priority):
        ranked.setdefault(job.spec.tenant, []).append(job)
    turn = {tenant: iter(of_tenant) for tenant, of_tenant in ranked.items()}
    return [next(turn[job.spec.tenant]) for job in jobs]
