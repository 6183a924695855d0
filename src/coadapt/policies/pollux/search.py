"""Searching a Pollux round as published: NSGA-II over allocation matrices, seeded with
its last front.
"""

import math
from dataclasses import dataclass

import numpy as np

from coadapt.model import JobId, NodeId
from coadapt.policies.pollux.nsga2 import empty_population, evolve
from coadapt.policies.pollux.objective import IntArray, RoundProblem, Solution
from coadapt.policies.pollux.round_costs import round_costs


@dataclass(frozen=True, slots=True)
class _Front:
    """The last search's first front (num_candidates, num_jobs, num_nodes), and what its
    axes stand for.
    """

    jobs: tuple[JobId, ...]
    nodes: tuple[NodeId, ...]
    rows_PJN: IntArray


class GeneticSearch:
    """The authors' search of a round, with a memory of one front per GPU type."""

    def __init__(self, *, seed: int, population: int, generations: int) -> None:
        if population < 1 or generations < 1:
            raise ValueError(
                f"population and generations must be >= 1, got {population} and "
                f"{generations}"
            )
        self._population = population
        self._generations = generations
        self._rng = np.random.default_rng(seed)
        self._fronts: dict[str, _Front] = {}

    def solve(self, problem: RoundProblem, gpu_type: str) -> Solution:
        """Return the front's candidate of least cost. A search proves no bound."""
        costs = round_costs(problem)
        population = empty_population(self._population, costs)
        seeds_PJN = self._seeds(problem, self._fronts.get(gpu_type))[: self._population]
        population.rows_PJN[: len(seeds_PJN)] = seeds_PJN
        size = evolve(costs, population, len(seeds_PJN), self._generations, self._rng)
        front_PJN = population.rows_PJN[population.slot_P[:size]]
        self._fronts[gpu_type] = _Front(
            tuple(job.id for job in problem.jobs),
            tuple(node.id for node in problem.nodes),
            front_PJN,
        )
        return Solution(front_PJN[0], -math.inf)

    def _seeds(self, problem: RoundProblem, last: _Front | None) -> IntArray:
        """Return the last front's candidates in terms of this round, else the present
        state alone.
        """
        if last is None:
            return problem.current_JN[None]
        now = {job.id: row for row, job in enumerate(problem.jobs)}
        column = {node.id: number for number, node in enumerate(problem.nodes)}
        then = [row for row, job in enumerate(last.jobs) if job in now]
        kept = [number for number, node in enumerate(last.nodes) if node in column]
        rows = [now[last.jobs[row]] for row in then]
        columns = [column[last.nodes[node]] for node in kept]
        seeds_PJN = np.zeros(
            (len(last.rows_PJN), *problem.current_JN.shape), dtype=np.int64
        )
        seeds_PJN[np.ix_(range(len(seeds_PJN)), rows, columns)] = last.rows_PJN[
            :, then
        ][:, :, kept]
        return seeds_PJN
