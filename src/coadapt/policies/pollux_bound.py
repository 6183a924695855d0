"""Compiled relaxations of the Pollux round: a proven bound on its objective, and the counts that reach it.

Two facts of any lawful plan survive: the replicas of all jobs fit the GPUs, and, where jobs that span nodes
must not meet, their nodes fit the cluster. Where exactly a job stands, and who kept what, is forgotten.
"""

from typing import NamedTuple

import numpy as np

from coadapt.policies.compiled import compiled
from coadapt.policies.pollux_kernels import Costs, Prices
from coadapt.policies.pollux_objective import FloatArray, IntArray

KEEP = -1  # in place of a replica count: the job keeps what it holds
MULTIPLIER_STEPS = 40  # halvings of each multiplier's interval


class Choices(NamedTuple):
    """What each job may choose: replicas, nodes that it spans, its cost. O options, of which size_J are used.

    count_JO is the replica count as the solver knows it: KEEP where the job keeps what it holds.
    """

    count_JO: IntArray
    gpus_JO: IntArray
    nodes_JO: IntArray
    cost_JO: FloatArray
    size_J: IntArray


def list_choices(costs: Costs) -> Choices:
    """Return each job's choices, without those that cost no less than a smaller one."""
    num_jobs, width = costs.wait_J.size, costs.change_JSK.shape[2] + 2
    choices = Choices(
        count_JO=np.zeros((num_jobs, width), dtype=np.int64),
        gpus_JO=np.zeros((num_jobs, width), dtype=np.int64),
        nodes_JO=np.zeros((num_jobs, width), dtype=np.int64),
        cost_JO=np.zeros((num_jobs, width)),
        size_J=np.zeros(num_jobs, dtype=np.int64),
    )
    sizes_N = np.sort(costs.capacity_N)[::-1]
    fewest_K = np.repeat(np.arange(1, sizes_N.size + 1), sizes_N)  # nodes that 1, 2, … replicas need at least
    _fill_choices(costs, choices, np.concatenate((np.zeros(1, dtype=np.int64), fewest_K)))
    return choices


@compiled
def _fill_choices(costs: Costs, choices: Choices, fewest_K: IntArray) -> None:
    count_JO, gpus_JO, nodes_JO = choices.count_JO, choices.gpus_JO, choices.nodes_JO
    cost_JO, size_J = choices.cost_JO, choices.size_J
    num_gpus = fewest_K.size - 1
    for job in range(size_J.size):
        held, spanned = _held(costs, job)
        size = 0
        if not (costs.pinned_J[job] and held > 0):
            cost_JO[job, 0] = costs.wait_J[job]
            size = 1
        if held > 0:
            count_JO[job, size] = KEEP
            gpus_JO[job, size] = held
            nodes_JO[job, size] = spanned
            cost_JO[job, size] = costs.keep_J[job]
            size += 1
        least = costs.wait_J[job]
        most = 0 if costs.pinned_J[job] else min(costs.max_J[job], num_gpus)
        for count in range(costs.min_J[job], most + 1):
            num_nodes = fewest_K[count]
            cost = costs.change_JSK[job, 1, count] if count > 1 else np.inf
            if num_nodes == 1:
                cost = min(cost, costs.change_JSK[job, 0, count])
            if cost < least and num_nodes <= costs.max_nodes:
                least = cost
                count_JO[job, size] = count
                gpus_JO[job, size] = count
                nodes_JO[job, size] = num_nodes if num_nodes > 1 and costs.exclusive else 0
                cost_JO[job, size] = cost
                size += 1
        size_J[job] = size


@compiled
def _held(costs: Costs, job: int) -> tuple[int, int]:
    """Return the replicas that the job holds, and its nodes if it spans several and may meet no other."""
    total = 0
    num_nodes = 0
    for node in range(costs.capacity_N.size):
        if costs.current_JN[job, node] > 0:
            total += costs.current_JN[job, node]
            num_nodes += 1
    spans = costs.exclusive and num_nodes > 1 and not costs.pinned_J[job]
    return total, num_nodes if spans else 0


@compiled
def exact_relaxation(costs: Costs, choices: Choices) -> tuple[float, IntArray]:
    """Return the least cost that fits GPUs and nodes, and each job's choice: dynamic programming over both.

    Work: jobs x options x GPUs x nodes.
    """
    num_jobs = costs.wait_J.size
    num_gpus = costs.capacity_N.sum()
    num_nodes = costs.capacity_N.size if costs.exclusive else 0
    best_GN = np.zeros((num_gpus + 1, num_nodes + 1))
    taken_JGN = np.zeros((num_jobs, num_gpus + 1, num_nodes + 1), np.int16)
    for job in range(num_jobs):
        next_GN = np.full((num_gpus + 1, num_nodes + 1), np.inf)
        for option in range(choices.size_J[job]):
            gpus, nodes = choices.gpus_JO[job, option], choices.nodes_JO[job, option]
            cost = choices.cost_JO[job, option]
            for g in range(gpus, num_gpus + 1):
                for n in range(nodes, num_nodes + 1):
                    total = best_GN[g - gpus, n - nodes] + cost
                    if total < next_GN[g, n]:
                        next_GN[g, n] = total
                        taken_JGN[job, g, n] = option
        best_GN = next_GN
    option_J = np.zeros(num_jobs, np.int64)
    g, n = num_gpus, num_nodes
    for job in range(num_jobs - 1, -1, -1):
        option_J[job] = taken_JGN[job, g, n]
        g -= choices.gpus_JO[job, option_J[job]]
        n -= choices.nodes_JO[job, option_J[job]]
    return best_GN[num_gpus, num_nodes], option_J


@compiled
def priced_relaxation(costs: Costs, choices: Choices) -> tuple[Prices, IntArray]:
    """Return prices on GPUs and nodes with the bound that they prove, and choices near it that fit the GPUs.

    The Lagrangian dual is concave in both prices: a ternary search on the price of nodes around a bisection
    on that of GPUs. Any pair of prices proves a bound, so stopping early costs tightness only.
    """
    low, high = 0.0, _dearest(choices) if costs.exclusive else 0.0
    best, option_J = _price_gpus(costs, choices, 0.0)
    steps = MULTIPLIER_STEPS if costs.exclusive else 0
    for _ in range(steps):
        third = (high - low) / 3.0
        left, option_left_J = _price_gpus(costs, choices, low + third)
        right, option_right_J = _price_gpus(costs, choices, high - third)
        if left.bound >= right.bound:
            high -= third
        else:
            low += third
        if left.bound > best.bound:
            best, option_J = left, option_left_J
        if right.bound > best.bound:
            best, option_J = right, option_right_J
    return best, option_J


@compiled
def _dearest(choices: Choices) -> float:
    """Return a price at which nobody would buy anything."""
    dearest = 0.0
    for job in range(choices.size_J.size):
        for option in range(choices.size_J[job]):
            dearest = max(dearest, choices.cost_JO[job, 0] - choices.cost_JO[job, option])
    return dearest


@compiled
def _price_gpus(costs: Costs, choices: Choices, node_price: float) -> tuple[Prices, IntArray]:
    num_gpus, num_nodes = costs.capacity_N.sum(), costs.capacity_N.size
    low, high = 0.0, _dearest(choices)
    best = Prices(-np.inf, 0.0, node_price)
    option_J = np.zeros(costs.wait_J.size, np.int64)
    trial_J = np.zeros(costs.wait_J.size, np.int64)
    for step in range(MULTIPLIER_STEPS + 1):
        price = 0.0 if step == 0 else 0.5 * (low + high)
        value, used = _buy(choices, price, node_price, trial_J)
        bound = value - price * num_gpus - node_price * num_nodes
        if bound > best.bound:
            best = Prices(bound, price, node_price)
        if used > num_gpus:
            low = price
        else:
            high = price
            option_J[:] = trial_J
            if step == 0:
                break
    return best, option_J


@compiled
def _buy(choices: Choices, price: float, node_price: float, option_J: IntArray) -> tuple[float, int]:
    """Let each job choose at these prices; return the sum of what they pay and the GPUs that they take."""
    total = 0.0
    used = 0
    for job in range(choices.size_J.size):
        least = np.inf
        for option in range(choices.size_J[job]):
            cost = (
                choices.cost_JO[job, option]
                + price * choices.gpus_JO[job, option]
                + node_price * choices.nodes_JO[job, option]
            )
            if cost < least:
                least = cost
                option_J[job] = option
        total += least
        used += choices.gpus_JO[job, option_J[job]]
    return total, used


@compiled
def ideal_costs(choices: Choices, prices: Prices) -> FloatArray:
    """Return the least that each job can pay, cost and prices together (num_jobs,)."""
    ideal_J = np.full(choices.size_J.size, np.inf)
    for job in range(choices.size_J.size):
        for option in range(choices.size_J[job]):
            paid = choices.cost_JO[job, option] + prices.gpu * choices.gpus_JO[job, option]
            ideal_J[job] = min(ideal_J[job], paid + prices.node * choices.nodes_JO[job, option])
    return ideal_J
