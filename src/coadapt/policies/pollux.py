"""Pollux (Qiao et al., OSDI 2021) with its published objective solved exactly or nearly, with a proven gap.

Maximising a power mean of utilities is minimising a sum of costs, one per job. A relaxation bounds that sum
from below; a local search over whole rows finds a lawful plan near it. Nothing is drawn at random.
"""

from collections.abc import Iterable

import numpy as np

from coadapt.model import Allocation, ClusterView, JobId, Plan
from coadapt.policies import pollux_bound, pollux_kernels
from coadapt.policies.pollux_kernels import Books, Costs
from coadapt.policies.pollux_objective import (
    IntArray,
    PolluxOptions,
    RoundProblem,
    cost_tables,
    job_cost,
    job_utility,
    power_mean,
    round_problem,
)
from coadapt.policies.pollux_plan import allocations, reasons, without_nodes
from coadapt.policies.pollux_pools import quota_left, split_pools

# Factor on the speedup of a job for which a change would leave nothing (ρ = 0): nothing to the objective, but
# among equals it lets a free GPU be used (1).
LEAST_RESCALE_FACTOR = 1e-9
# Cost of stopping a frozen job: more than any sum of real costs.
NEVER = 1e30
# A plan this close to the bound, as a share of it, needs no other start (1).
NEGLIGIBLE = 1e-9
# Work bounds, in inner steps: the exact relaxation above the first gives way to prices; trials of `improve`.
MAX_EXACT_STEPS = 20_000_000
MAX_TRIALS = 200_000


class Pollux:
    """Maximises Pollux's objective over all lawful plans of the round, job by job and pair by pair.

    Options as in PolluxOptions. `plan.diagnostics`: objective (power mean over all jobs), bound (no lawful
    plan can exceed it), gap = 1 - objective/bound.
    """

    def __init__(
        self,
        *,
        power: float = -1.0,
        max_nodes_per_job: int = 16,
        avoid_interference: bool = True,
        fair_share_on_one_node: bool = True,
        penalise_first_start: bool = True,
    ) -> None:
        self._options = PolluxOptions(
            power=power,
            max_nodes_per_job=max_nodes_per_job,
            avoid_interference=avoid_interference,
            fair_share_on_one_node=fair_share_on_one_node,
            penalise_first_start=penalise_first_start,
        )

    def allocate(self, view: ClusterView) -> Plan:
        """Return the plan of this round."""
        given: dict[JobId, Allocation] = {}
        why: dict[JobId, str] = {}
        cost, bound = 0.0, 0.0
        for pool in split_pools(view):
            problem = round_problem(view, pool, self._options, quota_left(view, given, pool))
            rows_JN, pool_bound = solve(problem)
            power = self._options.power
            cost += float(job_cost(job_utility(problem, rows_JN), power).sum())
            bound += pool_bound
            plan = allocations(problem, rows_JN)
            given |= plan
            why |= reasons(problem, plan)
        if not why:
            return Plan(reasons=without_nodes(view))
        return Plan(
            allocations=given,
            reasons=why,
            diagnostics=_diagnostics(cost, bound, len(why), self._options.power),
        )


def solve(problem: RoundProblem) -> tuple[IntArray, float]:
    """Return the rows (num_jobs, num_nodes) of a good plan, and a lower bound on the cost of any plan."""
    costs = _costs(problem)
    choices = pollux_bound.list_choices(costs)
    prices, option_J = pollux_bound.priced_relaxation(costs, choices)
    bound, ideal_J = prices.bound, pollux_bound.ideal_costs(choices, prices)
    num_nodes = len(problem.nodes) if costs.exclusive else 1
    if int(choices.size_J.sum()) * int(problem.capacity_N.sum()) * num_nodes <= MAX_EXACT_STEPS:
        bound, option_J = pollux_bound.exact_relaxation(costs, choices)
    wanted_J = choices.count_JO[np.arange(len(option_J)), option_J]
    best: Books | None = None
    for start in _starts(costs, wanted_J):
        pollux_kernels.improve(costs, start, prices, ideal_J, MAX_TRIALS)
        if best is None or start.cost_J.sum() < best.cost_J.sum():
            best = start
        if best.cost_J.sum() <= bound + NEGLIGIBLE * abs(bound):
            break
    assert best is not None
    return best.row_JN, bound


def _starts(costs: Costs, wanted_J: IntArray) -> Iterable[Books]:
    """Yield plans to improve: the relaxation's counts placed, the largest first, and the present plan."""
    for count_J in (wanted_J, np.full_like(wanted_J, pollux_bound.KEEP)):
        books = pollux_kernels.open_books(costs)
        pollux_kernels.place_counts(costs, books, count_J, np.argsort(-count_J, kind="stable"))
        yield books


def _costs(problem: RoundProblem) -> Costs:
    options = problem.options
    tables = cost_tables(problem, np.maximum(problem.rho_J, LEAST_RESCALE_FACTOR))
    wait_J = tables.change_JSK[:, 0, 0].copy()
    wait_J[problem.pinned_J] = NEVER
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
        max_nodes=options.max_nodes_per_job,
        exclusive=options.avoid_interference,
    )


def _diagnostics(cost: float, bound: float, num_jobs: int, power: float) -> dict[str, float]:
    objective, most = power_mean(cost, num_jobs, power), power_mean(bound, num_jobs, power)
    return {"objective": objective, "bound": most, "gap": max(1.0 - objective / most, 0.0)}
