"""Pollux (Qiao et al., OSDI 2021) as published: its objective, searched by NSGA-II over allocation matrices.

The search is kept for comparison: policy `pollux` solves the same objective better in a fraction of the time.
"""

from dataclasses import dataclass

import numpy as np

from coadapt.model import Allocation, ClusterView, JobId, NodeId, Plan
from coadapt.policies.pollux_evolution import Arena, empty_population, evolve
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
from coadapt.policies.pollux_plan import explained_plan, without_nodes
from coadapt.policies.pollux_pools import quota_left, split_pools


@dataclass(frozen=True, slots=True)
class _Front:
    """The last search's first front (num_candidates, num_jobs, num_nodes), and what its axes stand for."""

    jobs: tuple[JobId, ...]
    nodes: tuple[NodeId, ...]
    rows_PJN: IntArray


class PolluxGenetic:
    """Searches Pollux's objective with the authors' NSGA-II; the last front seeds the next search.

    population, generations: the size of the search. power, avoid_interference: as in PolluxOptions.
    `plan.diagnostics`: objective (power mean over all jobs).
    """

    def __init__(
        self,
        *,
        seed: int = 0,
        population: int = 100,
        generations: int = 100,
        power: float = -1.0,
        avoid_interference: bool = True,
    ) -> None:
        if population < 1 or generations < 1:
            raise ValueError(f"population and generations must be >= 1, got {population} and {generations}")
        self._options = PolluxOptions(power=power, avoid_interference=avoid_interference)
        self._population, self._generations = population, generations
        self._rng = np.random.default_rng(seed)
        self._fronts: dict[str, _Front] = {}

    def allocate(self, view: ClusterView) -> Plan:
        """Return the plan of this round; the same views in the same order give the same plans."""
        given: dict[JobId, Allocation] = {}
        why: dict[JobId, str] = {}
        cost = 0.0
        for pool in split_pools(view):
            problem = round_problem(view, pool, self._options, quota_left(view, given, pool))
            rows_JN = self._search(problem, pool.gpu_type)
            cost += float(job_cost(job_utility(problem, rows_JN), self._options.power).sum())
            plan, reasons = explained_plan(problem, rows_JN)
            given |= plan
            why |= reasons
        if not why:
            return Plan(reasons=without_nodes(view))
        objective = power_mean(cost, len(why), self._options.power)
        return Plan(allocations=given, reasons=why, diagnostics={"objective": objective})

    def _search(self, problem: RoundProblem, gpu_type: str) -> IntArray:
        arena = arena_of(problem)
        people = empty_population(self._population, arena)
        seeds_PJN = self._seeds(problem, self._fronts.get(gpu_type))[: self._population]
        people.rows_PJN[: len(seeds_PJN)] = seeds_PJN
        size = evolve(arena, people, len(seeds_PJN), self._generations, self._rng)
        front_PJN = people.rows_PJN[people.slot_P[:size]]
        self._fronts[gpu_type] = _Front(
            tuple(job.id for job in problem.jobs), tuple(node.id for node in problem.nodes), front_PJN
        )
        best: IntArray = front_PJN[0]
        return best

    def _seeds(self, problem: RoundProblem, last: _Front | None) -> IntArray:
        """Return the last front's candidates in terms of this round, else the present state alone."""
        if last is None:
            return problem.current_JN[None]
        now = {job.id: row for row, job in enumerate(problem.jobs)}
        column = {node.id: number for number, node in enumerate(problem.nodes)}
        then = [row for row, job in enumerate(last.jobs) if job in now]
        kept = [number for number, node in enumerate(last.nodes) if node in column]
        rows, columns = [now[last.jobs[row]] for row in then], [column[last.nodes[node]] for node in kept]
        seeds_PJN = np.zeros((len(last.rows_PJN), *problem.current_JN.shape), dtype=np.int64)
        seeds_PJN[np.ix_(range(len(seeds_PJN)), rows, columns)] = last.rows_PJN[:, then][:, :, kept]
        return seeds_PJN


def arena_of(problem: RoundProblem) -> Arena:
    """Return the problem as the compiled search takes it."""
    tables = cost_tables(problem, problem.rho_J)
    return Arena(
        capacity_N=problem.capacity_N,
        current_JN=problem.current_JN,
        pinned_J=problem.pinned_J,
        min_J=problem.min_J,
        max_J=problem.max_J,
        keep_J=tables.keep_J,
        change_JSK=tables.change_JSK,
        speedup_JSK=problem.speedup_JSK,
        tenant_J=problem.tenant_J,
        quota_T=problem.quota_T,
        max_nodes=problem.options.max_nodes_per_job,
        exclusive=problem.options.avoid_interference,
    )
