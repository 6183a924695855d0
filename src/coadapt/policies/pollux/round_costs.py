"""What the solvers of a Pollux round work on: costs, multipliers of the relaxation, a
plan in the making.

Axes as in pollux/objective.py. Costs are those of job_cost: the plan with the least sum
is the best one.
"""

from typing import NamedTuple

import numpy as np

from coadapt.policies.pollux.objective import (
    BoolArray,
    FloatArray,
    IntArray,
    RoundProblem,
    cost_tables,
)

# resources
GPUS = 0
NODES = 1
WIDE = 2
NUM_RESOURCES = 3
# columns of PackedCosts.limit_JL
PINNED = 0
LEAST = 1
MOST = 2
TENANT = 3
# columns of PackedCosts.cost_JC
WAITING = 0
KEEPING = 1
CHEAPEST = 2
NUM_TRIALS = 6  # rows that the local search tries at a time
# rows of PartialPlan.scratch_IN: nodes in order, the first job's
ORDER = NUM_TRIALS
SAVED = NUM_TRIALS + 1
# Cost of stopping a frozen job, in multiples of the largest real cost. It exceeds the
# sum of all real costs.
NEVER = 1e6


class RoundCosts(NamedTuple):
    """A round problem with its costs, for the exact solver and for the published
    search.

    wait_J, keep_J: of holding nothing, of keeping current_JN. change_JSK: of any other
    row. speedup_JSK:
    before any penalty (the search's second objective). least_J: the least cost that the
    job could have at all. exclusive: no two jobs that span nodes share one. wide_K: the
    wide pieces that K GPUs in one node are, see pollux/relaxation.py.
    """

    capacity_N: IntArray
    current_JN: IntArray
    pinned_J: BoolArray
    min_J: IntArray
    max_J: IntArray
    wait_J: FloatArray
    keep_J: FloatArray
    change_JSK: FloatArray
    speedup_JSK: FloatArray
    least_J: FloatArray
    tenant_J: IntArray
    quota_T: IntArray
    max_nodes: int
    exclusive: bool
    wide_K: FloatArray


class PackedCosts(NamedTuple):
    """What the exact solver's kernels read of RoundCosts: few arrays, as numba takes
    each apart at each call.

    limit_JL: pinned (0 or 1), least and most replicas, tenant. cost_JC: of waiting, of
    keeping current_JN, the least that there is. The others as in RoundCosts.
    """

    current_JN: IntArray
    limit_JL: IntArray
    cost_JC: FloatArray
    change_JSK: FloatArray
    wide_K: FloatArray
    max_nodes: int
    exclusive: bool


def packed(costs: RoundCosts) -> PackedCosts:
    """Return the costs as the exact solver's kernels take them."""
    limits = (costs.pinned_J, costs.min_J, costs.max_J, costs.tenant_J)
    return PackedCosts(
        current_JN=costs.current_JN,
        limit_JL=np.stack(limits, axis=1, dtype=np.int64),
        cost_JC=np.stack((costs.wait_J, costs.keep_J, costs.least_J), axis=1),
        change_JSK=costs.change_JSK,
        wide_K=costs.wide_K,
        max_nodes=costs.max_nodes,
        exclusive=costs.exclusive,
    )


class DualBound(NamedTuple):
    """A lower bound on the cost of any plan, and the Lagrange multipliers that prove
    it.

    multiplier_R: the price per GPU, per node of a job that spans nodes, per wide piece.
    reduced_cost_J: the least that each job's cost and the price of what it uses come to
    together.
    """

    bound: float
    multiplier_R: FloatArray
    reduced_cost_J: FloatArray


class PartialPlan(NamedTuple):
    """A plan under construction: rows, their costs, and what they leave over.

    spanning_N: jobs that span nodes. wide_N: capacity for wide pieces. Scratch:
    scratch_IN has NUM_TRIALS rows, one for an order of nodes, and then one per job;
    value_J and mark_J are a number each per job.
    """

    row_JN: IntArray
    cost_J: FloatArray
    free_N: IntArray
    spanning_N: IntArray
    wide_N: FloatArray
    left_T: IntArray
    scratch_IN: IntArray
    value_J: FloatArray
    mark_J: IntArray


def empty_plan(costs: RoundCosts) -> PartialPlan:
    """Return the plan in which every job waits."""
    num_jobs, num_nodes = costs.current_JN.shape
    return PartialPlan(
        row_JN=np.zeros((num_jobs, num_nodes), dtype=np.int64),
        cost_J=costs.wait_J.copy(),
        free_N=costs.capacity_N.copy(),
        spanning_N=np.zeros(num_nodes, dtype=np.int64),
        wide_N=costs.wide_K[costs.capacity_N],
        left_T=costs.quota_T.copy(),
        scratch_IN=np.zeros((NUM_TRIALS + 1 + num_jobs, num_nodes), dtype=np.int64),
        value_J=np.zeros(num_jobs),
        mark_J=np.zeros(num_jobs, dtype=np.int64),
    )


def round_costs(problem: RoundProblem, *, least_factor: float = 0.0) -> RoundCosts:
    """Return the problem as the kernels take it: stopping a frozen job that runs is out
    of reach.

    least_factor: what a rescale leaves at least of a job's speedup; 0 is ρ as it is.
    """
    tables = cost_tables(problem, np.maximum(problem.rho_J, least_factor))
    wait_J = tables.change_JSK[:, 0, 0].copy()
    wait_J[problem.pinned_J] = NEVER * np.abs(tables.change_JSK).max()
    return RoundCosts(
        capacity_N=problem.capacity_N,
        current_JN=problem.current_JN,
        pinned_J=problem.pinned_J,
        min_J=problem.min_J,
        max_J=problem.max_J,
        wait_J=wait_J,
        keep_J=tables.keep_J,
        change_JSK=tables.change_JSK,
        speedup_JSK=problem.speedup_JSK,
        least_J=np.minimum(tables.keep_J, tables.change_JSK.min(axis=(1, 2))),
        tenant_J=problem.tenant_J,
        quota_T=problem.quota_T,
        max_nodes=problem.options.max_nodes_per_job,
        exclusive=problem.options.avoid_interference,
        wide_K=_wideness(problem),
    )


def _wideness(problem: RoundProblem) -> FloatArray:
    """Return the wide pieces that 0, 1, … GPUs in a node are: 1 beyond half of the
    largest node, ½ at it.
    """
    largest = problem.capacity_N.max()
    count_K = np.arange(largest + 1)
    wide_K: FloatArray = 0.5 * (2 * count_K >= largest) + 0.5 * (2 * count_K > largest)
    return wide_K
