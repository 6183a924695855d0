"""Pollux (Qiao et al., OSDI 2021) with its published objective solved exactly or nearly, with a proven gap.

Maximising a power mean of utilities is minimising a sum of costs, one per job. A relaxation bounds that sum
from below; a local search over whole rows finds a lawful plan near it. Nothing is drawn at random.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from coadapt.model import Allocation, ClusterView, JobId, Plan
from coadapt.policies import pollux_bound, pollux_kernels
from coadapt.policies.pollux_books import WIDE, Books, Costs, Market
from coadapt.policies.pollux_objective import (
    FloatArray,
    IntArray,
    PolluxOptions,
    RoundProblem,
    cost_tables,
    job_cost,
    job_utility,
    power_mean,
    round_problem,
)
from coadapt.policies.pollux_plan import explained_plan, without_nodes
from coadapt.policies.pollux_pools import quota_left, split_pools

# Factor on the speedup of a job for which a change would leave nothing (ρ = 0): nothing to the objective, but
# among equals it lets a free GPU be used (1).
LEAST_RESCALE_FACTOR = 1e-9
# Cost of stopping a frozen job, in multiples of the largest real one: more than the others together (1).
NEVER = 1e6
# A plan this close to the bound, as a share of it, needs no other start (1).
NEGLIGIBLE = 1e-9
# Above this many inner steps (measured: 1 ns each) the exact relaxation gives way to prices alone.
MAX_EXACT_STEPS = 5_000_000
# Rows tried while improving plans (measured: 4 µs each at 400 jobs on 256 nodes).
MAX_TRIALS = 20_000


@dataclass(frozen=True, kw_only=True)
class Pollux(PolluxOptions):
    """Maximises Pollux's objective over all lawful plans of the round. Stateless.

    Options as in PolluxOptions. `plan.diagnostics`: objective (power mean over all jobs), gap = 1 -
    objective/bound, bound: no plan under these options that leaves each job in its pool exceeds it.
    """

    def allocate(self, view: ClusterView) -> Plan:
        """Return the plan of this round."""
        given: dict[JobId, Allocation] = {}
        why: dict[JobId, str] = {}
        cost, bound = 0.0, 0.0
        for pool in split_pools(view):
            problem = round_problem(view, pool, self, quota_left(view, given, pool))
            solution = solve(problem)
            cost += float(job_cost(job_utility(problem, solution.rows_JN), self.power).sum())
            bound += solution.bound
            plan, reasons = explained_plan(problem, solution.rows_JN)
            given |= plan
            why |= reasons
        if not why:
            return Plan(reasons=without_nodes(view))
        objective, most = (power_mean(total, len(why), self.power) for total in (cost, bound))
        diagnostics = {"objective": objective, "bound": most, "gap": max(1.0 - objective / most, 0.0)}
        return Plan(allocations=given, reasons=why, diagnostics=diagnostics)


@dataclass(frozen=True, slots=True)
class Solution:
    """Rows (num_jobs, num_nodes) of a lawful plan; bound: no lawful plan's costs sum to less."""

    rows_JN: IntArray
    bound: float


def solve(problem: RoundProblem) -> Solution:
    """Return a plan with nearly the least sum of costs, and the bound that proves how near."""
    relaxed = relax(round_costs(problem))
    costs = relaxed.costs
    best = pollux_kernels.open_books(costs)
    trials = MAX_TRIALS
    enough = relaxed.bound + NEGLIGIBLE * abs(relaxed.bound)
    for books in _starts(relaxed):
        if books.cost_J.sum() > enough:
            trials -= pollux_kernels.improve(costs, books, relaxed.market, trials)
        if books.cost_J.sum() < best.cost_J.sum():
            best = books
        if trials <= 0 or best.cost_J.sum() <= enough:
            break
    return Solution(best.row_JN, relaxed.bound)


@dataclass(frozen=True, slots=True)
class Relaxed:
    """A round without placing. bound: no lawful plan costs less. wanted_J: replica counts that reach it.

    order_J: jobs in the order in which they are best placed.
    """

    costs: Costs
    market: Market
    bound: float
    wanted_J: IntArray
    order_J: IntArray


def relax(costs: Costs) -> Relaxed:
    """Return the relaxed round: solved exactly where that is cheap, else by prices alone."""
    choices = pollux_bound.list_choices(costs)
    market, option_J = pollux_bound.priced_relaxation(costs, choices)
    bound = market.bound
    num_gpus, num_nodes, num_wide = pollux_bound.room_of(costs)
    if choices.size_J.sum() * num_gpus * num_nodes <= MAX_EXACT_STEPS:
        price = float(market.price_R[WIDE])
        exact = pollux_bound.exact_relaxation(choices, int(num_gpus), int(num_nodes), price, option_J)
        bound = max(bound, exact - price * num_wide)
    every_J = np.arange(len(option_J))
    wanted_J, wide_J = choices.count_JO[every_J, option_J], choices.use_JOR[every_J, option_J, WIDE]
    return Relaxed(costs, market, bound, wanted_J, np.lexsort((-wanted_J, -wide_J)))


def _starts(relaxed: Relaxed) -> Iterator[Books]:
    """Yield plans to improve: the relaxation's counts placed, wide pieces first, and the present plan."""
    costs = relaxed.costs
    present_J = np.where(costs.current_JN.any(axis=1), pollux_bound.KEEP, 0)
    for count_J in (relaxed.wanted_J, present_J):
        books = pollux_kernels.open_books(costs)
        pollux_kernels.place_counts(costs, books, count_J, relaxed.order_J)
        yield books


def round_costs(problem: RoundProblem) -> Costs:
    """Return the problem as the kernels take it: stopping a frozen job out of reach, ρ nowhere quite 0."""
    tables = cost_tables(problem, np.maximum(problem.rho_J, LEAST_RESCALE_FACTOR))
    wait_J = tables.change_JSK[:, 0, 0].copy()
    wait_J[problem.pinned_J] = NEVER * np.abs(tables.change_JSK).max()
    return Costs(
        capacity_N=problem.capacity_N,
        current_JN=problem.current_JN,
        pinned_J=problem.pinned_J,
        min_J=problem.min_J,
        max_J=problem.max_J,
        wait_J=wait_J,
        keep_J=tables.keep_J,
        change_JSK=tables.change_JSK,
        least_J=np.minimum(tables.keep_J, tables.change_JSK.min(axis=(1, 2))),
        tenant_J=problem.tenant_J,
        quota_T=problem.quota_T,
        max_nodes=problem.options.max_nodes_per_job,
        exclusive=problem.options.avoid_interference,
        wide_K=_wideness(problem),
    )


def _wideness(problem: RoundProblem) -> FloatArray:
    """Return the wide pieces that 0, 1, … GPUs in a node are: 1 beyond half of the largest node, ½ at it."""
    largest = problem.capacity_N.max()
    # What a job still holds may be more than its node, which came back smaller, has.
    count_K = np.arange(max(largest, problem.current_JN.max(initial=0)) + 1)
    wide_K: FloatArray = 0.5 * (2 * count_K >= largest) + 0.5 * (2 * count_K > largest)
    return wide_K
