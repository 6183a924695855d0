"""Pollux (Qiao et al., OSDI 2021) as policies: its objective solved nearly exactly, or
searched as published.

Both see a round in the same way: pool by pool, as costs per job whose sum is to be
least. They differ in `solve` alone.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from coadapt.model import Allocation, ClusterView, JobId, Plan
from coadapt.policies.base import PolicyCard
from coadapt.policies.pollux.explain import explained_plan
from coadapt.policies.pollux.objective import (
    PolluxOptions,
    RoundProblem,
    Solution,
    job_cost,
    job_utility,
    power_mean,
    round_problem,
)
from coadapt.policies.pollux.pools import quota_left, split_pools
from coadapt.policies.pollux.search import GeneticSearch
from coadapt.policies.pollux.solve import solve

Solve = Callable[[RoundProblem, str], Solution]  # of one pool, and its GPU type


def allocate_by_pools(view: ClusterView, options: PolluxOptions, solve: Solve) -> Plan:
    """Return the plan that `solve` finds for each pool of one GPU type, one after the
    other.

    Diagnostics: objective (power mean over all jobs) and, where every solution has a
    bound: bound, no plan under these options that leaves each job in its pool exceeds
    it; gap = 1 - objective/bound.
    """
    given: dict[JobId, Allocation] = {}
    why: dict[JobId, str] = {}
    cost = 0.0
    bound = 0.0
    for pool in split_pools(view):
        problem = round_problem(view, pool, options, quota_left(view, given, pool))
        solution = solve(problem, pool.gpu_type)
        cost += float(
            job_cost(job_utility(problem, solution.rows_JN), options.power).sum()
        )
        bound += solution.bound
        plan, reasons = explained_plan(problem, solution.rows_JN)
        given |= plan
        why |= reasons
    if not why:
        return Plan()
    objective = power_mean(cost, len(why), options.power)
    diagnostics = {"objective": objective}
    if bound > float("-inf"):
        most = power_mean(bound, len(why), options.power)
        diagnostics |= {"bound": most, "gap": max(1.0 - objective / most, 0.0)}
    return Plan(allocations=given, reasons=why, diagnostics=diagnostics)


@dataclass(frozen=True, kw_only=True)
class Pollux(PolluxOptions):
    """Maximises Pollux's objective over all lawful plans of the round. Stateless.

    Options as in PolluxOptions. `plan.diagnostics`: objective, bound, gap; see
    allocate_by_pools.
    """

    card: ClassVar[PolicyCard] = PolicyCard(
        paper="Qiao et al., Pollux, OSDI 2021, solved exactly or nearly so",
        decides="GPU counts, places",
    )

    def allocate(self, view: ClusterView) -> Plan:
        """Return the plan of this round."""
        return allocate_by_pools(view, self, lambda problem, _: solve(problem))


class PolluxGenetic:
    """Searches Pollux's objective with the authors' NSGA-II; the last front seeds the
    next search.

    population, generations: the size of the search. power, avoid_interference: as in
    PolluxOptions. `plan.diagnostics`: objective (power mean over all jobs). The search
    is kept for comparison: `pollux` solves the same objective better in a fraction of
    the time.
    """

    card: ClassVar[PolicyCard] = PolicyCard(
        paper="Qiao et al., Pollux, OSDI 2021, the published search",
        decides="GPU counts, places",
    )

    def __init__(
        self,
        *,
        seed: int = 0,
        population: int = 100,
        generations: int = 100,
        power: float = -1.0,
        avoid_interference: bool = True,
    ) -> None:
        self._options = PolluxOptions(
            power=power, avoid_interference=avoid_interference
        )
        self._search = GeneticSearch(
            seed=seed, population=population, generations=generations
        )

    def allocate(self, view: ClusterView) -> Plan:
        """Return the plan of this round; the same views in the same order give the same
        plans.
        """
        return allocate_by_pools(view, self._options, self._search.solve)
