"""One picture of the cluster as plain JSON data: the same for the command line, the
page and a simulation.
"""

import math
from collections.abc import Iterable
from dataclasses import fields
from itertools import islice
from operator import attrgetter

from coadapt.core.accounting import held, num_gpus_held
from coadapt.core.growth import set_aside_text
from coadapt.core.lifecycle import ENDED, HOLDING, JobState, Reason
from coadapt.core.state import JobRecord, SchedulerState
from coadapt.goodput.efficiency import efficiency
from coadapt.model import Measured, NodeId, Usage
from coadapt.model.measured import (
    NOT_FINITE,
    PERCENT_DONE,
    RANK,
    RATIO,
    REMAINING_S,
    SAVE_S,
)
from coadapt.model.prices import HOUR_S, NO_BILL
from coadapt.model.wire import Json, to_json
from coadapt.runtime.buying_picture import buying_picture
from coadapt.runtime.story import why_now

# Fields of Measured and Usage that a picture leaves out: too long for a look, or shown
# in another form.
_NOT_SHOWN = frozenset(
    {
        "batch_history",
        "by_type",
        "forecast",
        "grad",
        "accounted_at",
        "costs",
        "logged",
    }
)
_SHOWN = {
    kind: tuple(each.name for each in fields(kind) if each.name not in _NOT_SHOWN)
    for kind in (Measured, Usage)
}

# Of the user's own figures so many are kept over time, per job.
METRICS_KEPT = 4
# Metrics by which the trainer speaks to the scheduler.
_SCHEDULER_METRICS = frozenset(
    {RANK, RATIO, NOT_FINITE, SAVE_S, PERCENT_DONE, REMAINING_S}
)

_PLACE = attrgetter("submitted_at", "id")

# What a job waits after that has nothing to do with plans, and is shown beside them.
_OWN_REASONS = frozenset(
    {
        Reason.NODE_LOST,
        Reason.REPLICAS_LOST,
        Reason.HUNG,
        Reason.SCRIPT_FAILED,
        Reason.GROWTH_FAILED,
        Reason.NODE_UNFIT,
    }
)


def cluster_snapshot(
    state: SchedulerState,
    at: float,
    limit: int | None = None,
    no_plan_yet: str = "",
) -> dict[str, Json]:
    """Return nodes, the last round, and live jobs by number and in submission order, at
    `at` (s).

    limit: the most jobs: those that hold GPUs, then those that wait the longest.
    no_plan_yet: why a plan that is due takes so long, "" if nothing is known.
    """
    holding = [job for job in state.active if job.status.state in HOLDING]
    used = _gpus_used(state.nodes, holding)
    leaving = {} if state.buying is None else state.buying.leaving
    most = len(state.active) if limit is None else limit
    jobs = holding[:most]
    if len(jobs) < most:
        others = (job for job in state.active if job.status.state is JobState.PENDING)
        jobs = sorted([*jobs, *islice(others, most - len(jobs))], key=_PLACE)
    return {
        "at": at,
        "num_gpus": sum(node.num_gpus for node in state.nodes.values()),
        "num_gpus_used": sum(used.values()),
        "round": state.round,
        "plan_error": state.plan_error,
        "diagnostics": to_json(state.diagnostics),
        "nodes": [
            {
                "id": node.id,
                "num_gpus": node.num_gpus,
                "num_gpus_used": used[node.id],
                "gpu_type": node.gpu_type,
                "rack": node.rack,
                "offer": node.offer,
                "leaving": leaving.get(node.id, ""),
            }
            for node in sorted(state.nodes.values(), key=lambda node: node.id)
        ],
        "buying": buying_picture(state, at),
        "num_jobs": to_json(count_states(state)),
        "jobs": [
            job_snapshot(job, at, state.plan_error or no_plan_yet) for job in jobs
        ],
    }


def _gpus_used(
    nodes: Iterable[NodeId], holding: Iterable[JobRecord]
) -> dict[NodeId, float]:
    """Return how many GPUs of each live node jobs hold."""
    used: dict[NodeId, float] = dict.fromkeys(nodes, 0.0)
    for job in holding:
        ordered = job.order.grant.allocation
        trains_on = job.running.grant.allocation
        # Nearly all jobs hold whole GPUs, and only those: they need no look at single
        # devices.
        whole = (
            ordered.gpu_share == trains_on.gpu_share == 1.0
            and ordered.slots == trains_on.slots
        )
        on_nodes: Iterable[tuple[NodeId, float]] = (
            ordered.slots if whole else held(job).by_node.items()
        )
        for node, gpus in on_nodes:
            if node in used:
                used[node] += gpus
    return used


def count_states(state: SchedulerState) -> dict[str, int]:
    """Return the number of live jobs by state, without states that have none."""
    # list.count runs in C: every page of a list of jobs asks for these numbers.
    states = [job.status.state for job in state.active]
    return {each.value: states.count(each) for each in sorted(set(states) - ENDED)}


def job_snapshot(job: JobRecord, at: float, plan_error: str = "") -> dict[str, Json]:
    """Return one job's picture at `at` (s); attained service is counted up to that
    instant.

    plan_error: why the last round had no plan, "" if it had one.
    """
    usage = job.usage.upto(max(at, job.usage.accounted_at), num_gpus_held(job))
    grad = job.measured.grad
    allocation = job.ordered
    return {
        "id": job.id,
        "name": job.spec.name,
        "tenant": job.spec.tenant,
        "priority": job.spec.priority,
        "contract": job.spec.contract.value,
        "state": job.state.value,
        "reason": why_now(job.status)[0].value,
        "explanation": _explanation(job, plan_error),
        "generation": job.generation,
        "silent_s": _silent_s(job, at),
        "submitted_at": job.submitted_at,
        "ended_at": job.ended_at,
        "age_s": (job.ended_at if job.ended_at is not None else at) - job.submitted_at,
        "gpus_min": job.spec.replicas.min,
        "gpus_max": job.spec.replicas.max,
        "num_gpus": allocation.num_replicas,
        "gpus_limit": job.growth.limit,
        "sizes_set_aside": [
            set_aside_text(each) for each in job.growth.failed if each.set_aside
        ],
        "nodes_unfit": dict(job.unfit_nodes),
        "allocation": to_json(allocation.slots),
        "efficiency": job_efficiency(job),
        "noise_scale": to_json(grad.noise_scale(job.spec.batch.initial))
        if grad
        else None,
        "rescale_s": usage.costs.mean_s,
        "num_in_place": usage.costs.num_in_place,
        "pause": to_json(usage.costs.pause),
        "cost": job.bill.upto(at),
        "cost_foreseen": foreseen_cost(job, at),
        **_shown(job.measured),
        **_shown(usage),
    }


def foreseen_cost(job: JobRecord, at: float) -> float | None:
    """Return what the job will have cost at its end, as seen at `at` (s).

    None where no price or no end is known. The end is known of a job that reports how
    many seconds are left, or its progress and the progress at its end; the second is
    taken to need as many GPU-seconds per progress as until now, at the present price.
    """
    bill = job.bill
    if job.ended_at is not None or bill == NO_BILL:
        return None
    cost = bill.upto(at)
    left_s = job.measured.metrics.get(REMAINING_S)
    if left_s is not None and left_s >= 0.0 and bill.per_h:
        return cost + bill.per_h * left_s / HOUR_S
    target = job.measured.progress_target
    progress = job.measured.progress
    usage = job.usage.upto(max(at, job.usage.accounted_at), num_gpus_held(job))
    gpu_s = usage.attained_service_gpu_s
    if not target or progress <= 0.0 or gpu_s <= 0.0:
        return None
    num_gpus = num_gpus_held(job)
    per_gpu_s = bill.per_h / HOUR_S / num_gpus if num_gpus else cost / gpu_s
    left = max(target - progress, 0.0) / progress
    return cost + gpu_s * left * per_gpu_s


def _explanation(job: JobRecord, plan_error: str) -> str:
    """Return why the job is in its state, with the error of the policy if the job waits
    for a plan.
    """
    if not plan_error or job.state is not JobState.PENDING:
        return why_now(job.status)[1]
    before = f"{job.explanation}; " * (job.reason in _OWN_REASONS)
    return f"{before}waits: {no_plan_text(plan_error)}"


def no_plan_text(plan_error: str) -> str:
    """Return the sentence that jobs show which wait because the policy fails."""
    return f"the policy gives no plan, because {plan_error}"


def _shown(figures: Measured | Usage) -> dict[str, Json]:
    return {name: to_json(getattr(figures, name)) for name in _SHOWN[type(figures)]}


def _silent_s(job: JobRecord, at: float) -> float | None:
    """Return the age of the last report of a job that trains, None for one that never
    reported.
    """
    last_at = job.running.reported_at
    return None if last_at is None or not job.trains_on else max(at - last_at, 0.0)


def noise_scale(job: JobRecord) -> float | None:
    """Return the gradient noise scale in samples, None while it is not known or has no
    bound.
    """
    grad = job.measured.grad
    if grad is None:
        return None
    scale = grad.noise_scale(job.spec.batch.initial)
    return scale if math.isfinite(scale) else None


def own_metrics(job: JobRecord) -> dict[str, float]:
    """Return what the job's script reports of itself, such as its loss: at most
    METRICS_KEPT finite figures.
    """
    named = [
        (name, value)
        for name, value in job.measured.metrics.items()
        if name not in _SCHEDULER_METRICS and math.isfinite(value)
    ]
    # The loss first, then by name: the same ones in each report.
    named.sort(key=lambda item: (item[0] != "loss", item[0]))
    return dict(named[:METRICS_KEPT])


def job_efficiency(job: JobRecord) -> float | None:
    """Return the statistical efficiency of the batch in use, None while the noise scale
    is unknown.
    """
    grad = job.measured.grad
    batch = job.measured.batch
    if grad is None or batch is None or (grad.sqr == 0.0 and grad.var == 0.0):
        return None
    return float(efficiency(batch.total, job.spec.batch.initial, grad.sqr, grad.var))
