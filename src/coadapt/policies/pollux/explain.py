"""From a solved Pollux round to a plan: allocations, and a sentence per job on why it
got what it got.
"""

from typing import NamedTuple

import numpy as np

from coadapt.model import Allocation, ClusterView, JobId, RescaleContract
from coadapt.policies.allocation.reasons import gets, plural
from coadapt.policies.pollux.objective import IntArray, RoundProblem


def explained_plan(
    problem: RoundProblem, rows_JN: IntArray
) -> tuple[dict[JobId, Allocation], dict[JobId, str]]:
    """Return the allocation of each job with replicas, and a sentence for each job of
    the round.

    It tells what the job gets, what that is worth, and what one GPU more would bring,
    or why it waits.
    """
    given: dict[JobId, Allocation] = {}
    why: dict[JobId, str] = {}
    # Of the whole round at once: numpy takes longer to begin than to count.
    stays_J = (
        (rows_JN == problem.current_JN).all(axis=1) & rows_JN.any(axis=1)
    ).tolist()
    cluster = _Cluster(int(problem.capacity_N.sum()), int(problem.capacity_N.max()))
    for number, job in enumerate(problem.jobs):
        # One that stays keeps its rank order, too.
        allocation = (
            job.allocation if stays_J[number] else _allocation(problem, rows_JN[number])
        )
        if allocation:
            given[job.id] = allocation
            why[job.id] = _runs(problem, number, allocation, cluster)
        else:
            why[job.id] = _waits(problem, number, rows_JN)
    return given, why


def without_pool(view: ClusterView) -> dict[JobId, str]:
    """Return a sentence for each job of which no node has a GPU that it allows."""
    live = {node.gpu_type for node in view.nodes}
    return {
        job.id: f"waits: no live node has GPUs of {job.spec.replicas.types_in_words}"
        if live and job.spec.replicas.gpu_types
        else "waits: the cluster has no live node"
        for job in view.jobs
        if not any(job.spec.replicas.allows_type(gpu_type) for gpu_type in live)
    }


class _Cluster(NamedTuple):
    """GPUs of all nodes, and of the largest."""

    num_gpus: int
    largest: int


def _allocation(problem: RoundProblem, row_N: IntArray) -> Allocation:
    return Allocation(
        slots=tuple((problem.nodes[n].id, int(row_N[n])) for n in np.flatnonzero(row_N))
    )


def _runs(
    problem: RoundProblem, number: int, allocation: Allocation, cluster: _Cluster
) -> str:
    job = problem.jobs[number]
    count = allocation.num_replicas
    speedup = problem.speedup_JSK[number, int(allocation.num_nodes > 1), count]
    moves = allocation != job.allocation and count == job.allocation.num_replicas
    change = (
        f"moves with its {plural(count, 'GPU')}" if moves else gets(job, allocation)
    )
    more = _next(problem, number, count, speedup, cluster)
    return f"{change}: speedup {speedup:.2f} of its fair share; {more}"


def _next(
    problem: RoundProblem, number: int, count: int, speedup: float, cluster: _Cluster
) -> str:
    job = problem.jobs[number]
    if count >= cluster.num_gpus:
        return "there are no more GPUs"
    if count >= problem.max_J[number]:
        grows = (
            count < job.spec.replicas.max
            and job.spec.contract is not RescaleContract.FROZEN
        )
        if grows and not job.measured.num_replicas_profiled:
            return "more once its first steps were timed"
        if grows and count >= 2 * job.measured.num_replicas_profiled:
            return (
                f"more once it was timed on more than "
                f"{job.measured.num_replicas_profiled}"
            )
        return f"{count} is the most that it may hold"
    local = (
        problem.speedup_JSK[number, 0, count + 1] if count < cluster.largest else 0.0
    )
    more = max(local, problem.speedup_JSK[number, 1, count + 1])
    return (
        f"one more GPU would bring {100.0 * (more / speedup - 1.0):+.0f} %"
        if speedup
        else "not timed yet"
    )


def _waits(problem: RoundProblem, number: int, rows_JN: IntArray) -> str:
    job = problem.jobs[number]
    need = int(problem.min_J[number])
    change = (
        f"gives up its {plural(job.allocation.num_replicas, 'GPU')} and waits"
        if job.allocation
        else "waits"
    )
    total = int(problem.capacity_N.sum())
    if problem.max_J[number] < need <= total:
        return f"{change}: it is frozen, and what it held is no longer there"
    if need > total:
        return (
            f"{change}: needs {plural(need, 'GPU')} of one type, and there are {total}"
        )
    tenant = problem.tenant_J[number]
    left = problem.quota_T[tenant] - rows_JN[problem.tenant_J == tenant].sum()
    if left < need:
        return (
            f"{change}: needs {plural(need, 'GPU')}, tenant {job.spec.tenant} may "
            f"hold {left} more"
        )
    idle = total - int(rows_JN.sum())
    why = (
        "the others make more of theirs"
        if idle < need
        else "but not where it could use them"
    )
    return (
        f"{change}: needs {plural(need, 'GPU')}, {idle} "
        f"{'is' if idle == 1 else 'are'} free, {why}"
    )
