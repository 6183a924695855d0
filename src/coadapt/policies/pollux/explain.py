"""From a solved Pollux round to a plan: allocations, and a sentence per job on why it
got what it got.
"""

from typing import NamedTuple

import numpy as np

from coadapt.model import Allocation, JobId, RescaleContract
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
    """Return what the policy adds to why a job waits, "" for nothing."""
    need = int(problem.min_J[number])
    total = int(problem.capacity_N.sum())
    if problem.max_J[number] < need <= total:
        return "it is frozen, and what it held is no longer there"
    if need > total:
        return ""
    tenant = problem.tenant_J[number]
    left = problem.quota_T[tenant] - rows_JN[problem.tenant_J == tenant].sum()
    if left < need:
        return ""
    if total - int(rows_JN.sum()) < need:
        return "the others make more of theirs"
    return "they are not where it could use them"
