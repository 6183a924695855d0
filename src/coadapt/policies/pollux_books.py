"""What the exact Pollux solver works on: the costs of a round, the prices of its relaxation, a plan's books.

Axes as in pollux_objective. Costs are those of job_cost: the plan with the least sum is the best one.
"""

from typing import NamedTuple

from coadapt.policies.pollux_objective import BoolArray, FloatArray, IntArray

GPUS, NODES, WIDE = 0, 1, 2  # resources
NUM_RESOURCES = 3


class Costs(NamedTuple):
    """A round problem with its costs. wait_J, keep_J: of holding nothing, of keeping current_JN.

    change_JSK: of any other row. least_J: the least cost that the job could have at all. wide_K: the wide
    pieces that K GPUs in one node are, see pollux_bound.
    """

    capacity_N: IntArray
    current_JN: IntArray
    pinned_J: BoolArray
    min_J: IntArray
    max_J: IntArray
    wait_J: FloatArray
    keep_J: FloatArray
    change_JSK: FloatArray
    least_J: FloatArray
    tenant_J: IntArray
    quota_T: IntArray
    max_nodes: int
    exclusive: bool
    wide_K: FloatArray


class Market(NamedTuple):
    """A lower bound on the cost of any plan, and the prices that prove it.

    price_R: per GPU, per node of a job that spans nodes, per wide piece. ideal_J: the least that
    each job could pay, its cost and the price of what it uses together.
    """

    bound: float
    price_R: FloatArray
    ideal_J: FloatArray


class Books(NamedTuple):
    """A plan under construction: rows, their costs, and what they leave over."""

    row_JN: IntArray
    cost_J: FloatArray
    free_N: IntArray
    spanning_N: IntArray  # jobs that span nodes, per node
    wide_N: FloatArray  # room for wide pieces
    left_T: IntArray
    order_N: IntArray  # scratch
    trial_IN: IntArray  # scratch rows
    saved_JN: IntArray  # scratch
