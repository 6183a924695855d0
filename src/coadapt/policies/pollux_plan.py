"""From a solved Pollux round to a plan: allocations, and a sentence per job on why it got what it got."""

from collections.abc import Mapping

import numpy as np

from coadapt.model import Allocation, ClusterView, JobId
from coadapt.policies.pollux_objective import IntArray, RoundProblem, replica_limits


def allocations(problem: RoundProblem, rows_JN: IntArray) -> dict[JobId, Allocation]:
    """Return the allocation of each job with replicas; an unchanged row keeps its rank order."""
    plan: dict[JobId, Allocation] = {}
    for number, job in enumerate(problem.jobs):
        row_N = rows_JN[number]
        held = np.flatnonzero(row_N)
        if not held.size:
            continue
        if np.array_equal(row_N, problem.current_JN[number]):
            plan[job.id] = job.allocation
        else:
            plan[job.id] = Allocation(slots=tuple((problem.nodes[n].id, int(row_N[n])) for n in held))
    return plan


def reasons(problem: RoundProblem, plan: Mapping[JobId, Allocation]) -> dict[JobId, str]:
    """Return a sentence per job: what it gets, what that is worth, what one GPU more would bring."""
    free = int(problem.capacity_N.sum()) - sum(allocation.num_replicas for allocation in plan.values())
    return {
        job.id: _runs(problem, number, plan[job.id]) if job.id in plan else _waits(problem, number, free)
        for number, job in enumerate(problem.jobs)
    }


def without_nodes(view: ClusterView) -> dict[JobId, str]:
    """Return a sentence per job for a cluster that has no node."""
    return {job.id: "waits: the cluster has no live node" for job in view.jobs}


def _runs(problem: RoundProblem, number: int, allocation: Allocation) -> str:
    job, count = problem.jobs[number], allocation.num_replicas
    shape_SK = problem.speedup_JSK[number]
    speedup = shape_SK[int(allocation.num_nodes > 1), count]
    if allocation == job.allocation:
        change = f"keeps {_gpus(count)}"
    elif not job.allocation:
        change = f"starts on {_gpus(count)}"
    elif count == job.allocation.num_replicas:
        change = f"moves, on {_gpus(count)} as before"
    else:
        change = f"runs on {_gpus(count)} (was {job.allocation.num_replicas})"
    return f"{change}: speedup {speedup:.2f} of its fair share; {_next(problem, number, count, speedup)}"


def _next(problem: RoundProblem, number: int, count: int, speedup: float) -> str:
    job = problem.jobs[number]
    if count >= problem.max_J[number]:
        grown_out = (
            count >= job.spec.replicas.max or count >= replica_limits(job)[1] > 2 * job.num_replicas_profiled
        )
        if grown_out or problem.pinned_J[number]:
            return f"{_gpus(count)} is the most that it may hold"
        return f"it may grow past {_gpus(count)} once it was timed on more than {count // 2}"
    local = problem.speedup_JSK[number, 0, count + 1] if count < problem.capacity_N.max() else 0.0
    more = max(local, problem.speedup_JSK[number, 1, count + 1] if count else 0.0)
    return f"one more GPU would bring {100.0 * (more / speedup - 1.0):+.0f} %" if speedup else "not timed yet"


def _waits(problem: RoundProblem, number: int, free: int) -> str:
    job = problem.jobs[number]
    change = f"gives up {_gpus(job.allocation.num_replicas)} and waits" if job.allocation else "waits"
    if problem.max_J[number] < problem.min_J[number]:
        return f"{change}: what it may hold is not in this cluster now"
    tenant = problem.tenant_J[number]
    if problem.quota_T[tenant] < problem.min_J[number]:
        return f"{change}: the quota of tenant {job.spec.tenant.id} is used up"
    need = int(problem.min_J[number])
    if free >= need:
        return f"{change}: needs {_gpus(need)}; {free} are free, but starting now would not pay"
    total = int(problem.capacity_N.sum())
    return f"{change}: needs {_gpus(need)} of {total}, and they bring more to the jobs that hold them"


def _gpus(count: int) -> str:
    return f"{count} GPU" if count == 1 else f"{count} GPUs"
