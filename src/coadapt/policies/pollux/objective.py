"""Pollux's objective (Qiao et al., OSDI 2021, §4.2), once for the exact solver and for
the genetic search.

Axes: J jobs by (attained service, submission, id), N nodes by id, S shape (0: one node,
1: several nodes), K replicas 0..K, C configurations of the goodput table, T tenants, P
candidates.
"""

# The objective, and why the solvers see a sum of costs.
#
# Pollux (eq. 14) maximises FITNESS_p = (mean_j S_j^p)^(1/p), where S_j is job j's
# speedup: its goodput on what it gets over its goodput on a fair share of the cluster
# (GPUs / jobs). p = 1 is the sum of speedups, p = -1 (the default) the harmonic mean: a
# job of speedup 0.5 then weighs four times as much as one of speedup 1, so falling
# behind is paid for by the others. A power mean grows with sum_j sign(p) S_j^p, and
# with sum_j log S_j at p = 0; so minimising the sum of c_j = -sign(p) S_j^p is the same
# problem, and it is a SUM: each job's cost depends on its own row alone. Both solvers
# build on that.
#
# Moving costs: a job that changes its row trains at rho_j * S_j (eq. 16), rho_j = (T -
# R delta) / (T + delta) with age T, R rescales so far, delta seconds per rescale. A
# young job and one that moved often are left where they are.
#
# Departures of the authors' code from the paper, kept because their figures come from
# it: speedups are scaled by nodes / GPUs and a floor of 1e-3 is added (so a waiting job
# costs 1000 at p = -1, not infinity); the fair share is taken on one node even where no
# node has as many GPUs; a first start is charged like a rescale.
#
# Two shapes are all that the step-time model distinguishes, one node or several, and so
# speedup is a table (job, shape, replicas): 2 K goodputs per job instead of one per
# allocation.

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from coadapt.goodput.batch import limits_in_use
from coadapt.goodput.table import goodput_table
from coadapt.model import ClusterView, JobView, Node, RescaleContract
from coadapt.policies.pollux.pools import Pool

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]
BoolArray = NDArray[np.bool_]

# Added to each job's speedup, so that a job that waits does not decide everything
# (Pollux's code; 1).
UTILITY_FLOOR = 1e-3
NO_QUOTA = 1 << 40  # GPUs; more than any cluster has


@dataclass(frozen=True, slots=True, kw_only=True)
class PolluxOptions:
    """What Pollux's operator may set. The defaults are the published ones.

    power: p of the power mean over jobs; 1 is total speedup, -1 the harmonic mean,
    lower is fairer (eq. 14). max_nodes_per_job: most nodes of one job.
    avoid_interference: no two jobs that span nodes share a node.
    fair_share_on_one_node: the fair share's goodput is taken as if all its GPUs stood
    in one node, whatever their number (so the authors' code; False spreads them over as
    few nodes as they need). penalise_first_start: a job's first start costs it as much
    as a rescale (so the authors' code).
    """

    power: float = -1.0
    max_nodes_per_job: int = 16
    avoid_interference: bool = True
    fair_share_on_one_node: bool = True
    penalise_first_start: bool = True

    def __post_init__(self) -> None:
        if not math.isfinite(self.power):
            raise ValueError(f"power must be finite, got {self.power}")
        if self.max_nodes_per_job < 1:
            raise ValueError(
                f"max_nodes_per_job must be >= 1, got {self.max_nodes_per_job}"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundProblem:
    """One round's choice within one pool, as arrays.

    current_JN: replicas that each job holds now (zeros where they cannot be kept).
    speedup_JSK: goodput over that of the fair share. rho_J: what is left of it after a
    rescale. pinned_J: may only keep what it holds. min_J, max_J: replicas that a job
    may be given while it runs. scale: turns speedup into utility.
    """

    options: PolluxOptions
    jobs: tuple[JobView, ...]
    nodes: tuple[Node, ...]
    capacity_N: IntArray
    current_JN: IntArray
    pinned_J: BoolArray
    min_J: IntArray
    max_J: IntArray
    speedup_JSK: FloatArray
    rho_J: FloatArray
    tenant_J: IntArray
    quota_T: IntArray
    scale: float


@dataclass(frozen=True, slots=True)
class Solution:
    """Rows (num_jobs, num_nodes) of a lawful plan; bound: no lawful plan's costs sum to
    less.

    bound is minus infinity where nothing was proven.
    """

    rows_JN: IntArray
    bound: float


def round_problem(
    view: ClusterView, pool: Pool, options: PolluxOptions, quotas: Mapping[str, int]
) -> RoundProblem:
    """Return the problem of `pool`. quotas: GPUs that tenants may still take; one left
    out has no limit.
    """
    jobs = tuple(
        sorted(
            pool.jobs,
            key=lambda job: (view.service_gpu_s(job), job.submitted_at, job.id),
        )
    )
    nodes = pool.nodes
    capacity_N = np.array([node.num_gpus for node in nodes], dtype=np.int64)
    limits = [replica_limits(job) for job in jobs]
    min_J = np.array([low for low, _ in limits], dtype=np.int64)
    pinned_J = np.array([_pinned(job) for job in jobs], dtype=np.bool_)
    current_JN = _current(jobs, nodes)
    _drop_what_does_not_fit(current_JN, pinned_J, capacity_N)
    stranded_J = pinned_J & ~current_JN.any(axis=1)
    max_J = np.where(
        stranded_J, 0, np.minimum([high for _, high in limits], capacity_N.sum())
    )
    most = max(int(max_J.max()), int(current_JN.sum(axis=1).max()), 1)
    tenants = sorted({job.spec.tenant for job in jobs})
    index = {tenant: number for number, tenant in enumerate(tenants)}
    cluster_gpus = view.num_gpus
    fair = math.ceil(cluster_gpus / len(view.jobs))
    return RoundProblem(
        options=options,
        jobs=jobs,
        nodes=nodes,
        capacity_N=capacity_N,
        current_JN=current_JN,
        pinned_J=pinned_J & ~stranded_J,
        min_J=min_J,
        max_J=max_J,
        speedup_JSK=_speedup(
            jobs, capacity_N, most, _FairShare(fair, pool.gpu_type, options)
        ),
        rho_J=np.array([rescale_factor(job, view.at, options) for job in jobs]),
        tenant_J=np.array([index[job.spec.tenant] for job in jobs], dtype=np.int64),
        quota_T=np.array(
            [quotas.get(tenant, NO_QUOTA) for tenant in tenants], dtype=np.int64
        ),
        scale=len(view.nodes) / cluster_gpus,
    )


def replica_limits(job: JobView) -> tuple[int, int]:
    """Return the least and the most replicas that Pollux may give to `job` when it
    runs.

    A job that never ran gets one GPU, then at most twice what it was timed on (§4.1),
    always within its own limits and its batch. A frozen job, which can never grow,
    starts at the count that its user asked for.
    """
    spec = job.spec
    batch = job.spec.batch
    if spec.contract is RescaleContract.FROZEN:
        return spec.replicas.requested, spec.replicas.requested
    total = batch.max_total if spec.adaptive else limits_in_use(job).requested
    most = min(
        max(2 * job.measured.num_replicas_profiled, 1),
        spec.replicas.max,
        total // batch.min_atomic,
    )
    return spec.replicas.min, max(most, spec.replicas.min)


def rescale_factor(job: JobView, at: float, options: PolluxOptions) -> float:
    """Return ρ = max(age - δ·rescales, 0) / (age + δ), what a rescale leaves of a job's
    speedup (eq. 16).
    """
    if job.usage.started_at is None and not options.penalise_first_start:
        return 1.0
    age = max(at - job.submitted_at, 0.0)
    if age + job.rescale_s <= 0.0:
        return 1.0
    return max(age - job.rescale_s * job.usage.num_rescales, 0.0) / (
        age + job.rescale_s
    )


def job_speedup(problem: RoundProblem, rows_JN: IntArray) -> FloatArray:
    """Return each job's speedup (num_jobs,) under the allocations `rows_JN`, before any
    penalty.
    """
    shape_J = (np.count_nonzero(rows_JN, axis=1) > 1).astype(np.int64)
    speedup_J: FloatArray = problem.speedup_JSK[
        np.arange(len(rows_JN)), shape_J, rows_JN.sum(axis=1)
    ]
    return speedup_J


def job_utility(problem: RoundProblem, rows_JN: IntArray) -> FloatArray:
    """Return x_j + floor (num_jobs,): penalised speedup times nodes per GPU, plus
    UTILITY_FLOOR.
    """
    changed_J = (rows_JN != problem.current_JN).any(axis=1)
    rho_J = np.where(changed_J, problem.rho_J, 1.0)
    return job_speedup(problem, rows_JN) * problem.scale * rho_J + UTILITY_FLOOR


@dataclass(frozen=True, slots=True)
class CostTables:
    """Each job's cost of keeping its current row (num_jobs,), and of any other one
    (num_jobs, 2, K + 1).
    """

    keep_J: FloatArray
    change_JSK: FloatArray


def cost_tables(problem: RoundProblem, rho_J: FloatArray) -> CostTables:
    """Return the costs of all rows, where `rho_J` is left of a job's speedup after a
    change.
    """
    power = problem.options.power
    spans_J = (np.count_nonzero(problem.current_JN, axis=1) > 1).astype(np.int64)
    every_J = np.arange(len(problem.jobs))
    keep_J = (
        problem.speedup_JSK[every_J, spans_J, problem.current_JN.sum(axis=1)]
        * problem.scale
    )
    change_JSK = problem.speedup_JSK * problem.scale * rho_J[:, None, None]
    return CostTables(
        job_cost(keep_J + UTILITY_FLOOR, power),
        job_cost(change_JSK + UTILITY_FLOOR, power),
    )


def job_cost(utility: FloatArray, power: float) -> FloatArray:
    """Return what each job adds to the sum whose minimum is the maximum of the power
    mean. Any shape.
    """
    if power == 0.0:
        cost: FloatArray = -np.log(utility)
    else:
        cost = -np.sign(power) * utility**power
    return cost


def power_mean(total_cost: float, num_jobs: int, power: float) -> float:
    """Return the power mean of `num_jobs` utilities whose `job_cost` sum to
    `total_cost`.
    """
    mean = total_cost / num_jobs
    return math.exp(-mean) if power == 0.0 else float(abs(mean) ** (1.0 / power))


@dataclass(frozen=True, slots=True)
class _FairShare:
    num_gpus: int
    gpu_type: str
    options: PolluxOptions


def _speedup(
    jobs: Sequence[JobView], capacity_N: IntArray, most: int, fair: _FairShare
) -> FloatArray:
    """Return speedup_JSK. Pollux's model knows two kinds of shape, one node and
    several, so two rows do.
    """
    node_most = int(capacity_N.max())
    one_node = np.arange(1, max(min(node_most, most), fair.num_gpus) + 1)
    several = np.arange(2, max(most, fair.num_gpus) + 1)
    num_nodes_C = np.concatenate((np.ones_like(one_node), np.full_like(several, 2)))
    table = goodput_table(
        jobs, num_nodes_C, np.concatenate((one_node, several)), gpu_type=fair.gpu_type
    )
    goodput_JSK = np.zeros((len(jobs), 2, max(most, fair.num_gpus) + 1))
    goodput_JSK[:, 0, 1 : len(one_node) + 1] = table.goodput_JC[:, : len(one_node)]
    goodput_JSK[:, 1, 2:] = table.goodput_JC[:, len(one_node) :]
    spread = not fair.options.fair_share_on_one_node and fair.num_gpus > node_most
    fair_J = goodput_JSK[:, int(spread), fair.num_gpus]
    # A fair share that the job's batch cannot fill counts as the best that it can do
    # with less.
    fair_J = np.where(
        fair_J > 0.0, fair_J, goodput_JSK[:, 0, : fair.num_gpus + 1].max(axis=1)
    )
    speedup_JSK: FloatArray = (
        goodput_JSK / np.where(fair_J > 0.0, fair_J, 1.0)[:, None, None]
    )
    return speedup_JSK


def _current(jobs: Sequence[JobView], nodes: Sequence[Node]) -> IntArray:
    column = {node.id: number for number, node in enumerate(nodes)}
    capacity = {node.id: node.num_gpus for node in nodes}
    current_JN = np.zeros((len(jobs), len(nodes)), dtype=np.int64)
    for row, job in enumerate(jobs):
        if _keepable(job, capacity):
            for node, count in job.allocation.slots:
                current_JN[row, column[node]] = count
    return current_JN


def _drop_what_does_not_fit(
    current_JN: IntArray, pinned_J: BoolArray, capacity_N: IntArray
) -> None:
    """Clear rows of pinned jobs that cannot all stay where they are, on a node that
    came back smaller.
    """
    free_N = capacity_N.copy()
    for job in np.flatnonzero(pinned_J):
        if (current_JN[job] > free_N).any():
            current_JN[job] = 0
        free_N -= current_JN[job]


def _keepable(job: JobView, capacity: Mapping[str, int]) -> bool:
    """Return whether the job's row is still lawful: its node may have gone, or come
    back with fewer GPUs.
    """
    limits = job.spec.replicas
    return limits.min <= job.allocation.num_replicas <= limits.max and all(
        count <= capacity.get(node, 0) for node, count in job.allocation.slots
    )


def _pinned(job: JobView) -> bool:
    return job.spec.contract is RescaleContract.FROZEN and bool(job.allocation)
