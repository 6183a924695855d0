"""One generation of ONES after the other, compiled: crossover, mutation, fill, reorder,
select (SC 2021).

Axes: P candidates, G GPUs (genes), J jobs in order of submission, K replicas 0..G, T
generations.
"""

# A candidate is a vector of genes, one per GPU: the job that has it, or -1. A job's
# replicas are its genes' number, and its batch follows from that; so one search decides
# both. Its score is the GPU time that its jobs still need,
#
#     sum_j n_j * remaining samples_j / throughput_j(n_j)         (lower is better)
#
# which favours jobs that end soon and use GPUs well ("smallest remaining utilisation
# first"). Jobs that wait add nothing. They do not starve because of `fill`, which gives
# free GPUs first of all to jobs that never ran. Remaining samples come from the Beta
# predictor, drawn again for each generation and the same for all its candidates: a job
# about which little is known is tried in some generations and left out in others
# (Thompson sampling).
#
# Parents stand in the first third of the population, children of crossover in the
# second, mutants in the last. Genes are swapped by position, so position has to mean
# something: `reorder` lays every candidate out as the running jobs lie, in blocks. The
# authors' dynamic programme finds the layout with fewest changes; here jobs are in the
# order in which they lie now, which is the same where counts are, and cheaper. GPUs
# themselves are given later by `pack`, which moves no job whose count stays.

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from coadapt.goodput.compiled import compiled, compiled_part

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]

EMPTY = -1
SWAP_CHANCE = 0.5  # of a gene in crossover (authors' configuration)
REMOVE_CHANCE = 0.3  # of a job in mutation (authors' configuration)


class Round(NamedTuple):
    """The jobs of a round. min_J: fewest replicas. allowed_J, limit_J: what a job may
    have now, and at most.

    fresh_J: never ran. settled_J: may be removed by mutation. alone_s_J: remaining time
    on one GPU. live_J: where it lies now (its first gene), beyond all GPUs if it waits.
    cost_JK: GPU-seconds per sample.
    """

    num_gpus: int
    min_J: IntArray
    allowed_J: IntArray
    limit_J: IntArray
    fresh_J: BoolArray
    settled_J: BoolArray
    alone_s_J: FloatArray
    live_J: IntArray
    cost_JK: FloatArray


def evolve(
    round_: Round, parents_PG: IntArray, left_TJ: FloatArray, rng: np.random.Generator
) -> IntArray:
    """Return the parents after as many generations as `left_TJ` has rows, the best one
    first.

    left_TJ: samples that each job has left, as drawn for each generation.
    """
    population_PG = np.full(
        (3 * len(parents_PG), round_.num_gpus), EMPTY, dtype=np.int64
    )
    population_PG[: len(parents_PG)] = parents_PG
    _evolve(round_, population_PG, left_TJ, rng)
    best_PG: IntArray = population_PG[: len(parents_PG)].copy()
    return best_PG


@compiled
def _evolve(
    round_: Round,
    population_PG: IntArray,
    left_TJ: FloatArray,
    rng: np.random.Generator,
) -> None:
    size = population_PG.shape[0] // 3
    score_P = np.zeros(population_PG.shape[0])
    # Jobs that ran are filled in by remaining time, layouts made in the order of the
    # present one.
    by_time_J = np.argsort(round_.alone_s_J)
    by_place_J = np.argsort(round_.live_J, kind="mergesort")
    for generation in range(left_TJ.shape[0]):
        for parent in range(size):
            _refresh(round_, population_PG[parent])
        _cross(round_, population_PG, size, rng)
        _mutate(round_, population_PG, size, rng)
        for candidate in range(population_PG.shape[0]):
            _fill(round_, population_PG[candidate], by_time_J)
            _reorder(round_, population_PG[candidate], by_place_J)
            score_P[candidate] = score(
                round_, population_PG[candidate], left_TJ[generation]
            )
        order_P = np.argsort(score_P, kind="mergesort")
        population_PG[:] = population_PG[order_P]


@compiled
def counts(round_: Round, genes_G: IntArray) -> IntArray:
    """Return each job's number of genes."""
    count_J = np.zeros(round_.min_J.size, dtype=np.int64)
    for gpu in range(genes_G.size):
        if genes_G[gpu] != EMPTY:
            count_J[genes_G[gpu]] += 1
    return count_J


@compiled
def score(round_: Round, genes_G: IntArray, left_J: FloatArray) -> float:
    """Return the GPU-seconds that the candidate's jobs still need; those that never ran
    count as none.
    """
    count_J = counts(round_, genes_G)
    total = 0.0
    for job in range(count_J.size):
        if count_J[job] > 0 and not round_.fresh_J[job]:
            total += left_J[job] * round_.cost_JK[job, count_J[job]]
    return total


@compiled_part
def _refresh(round_: Round, genes_G: IntArray) -> None:
    """Blank genes beyond what their job may have, and jobs that are left with too
    few.
    """
    count_J = np.zeros(round_.min_J.size, dtype=np.int64)
    for gpu in range(genes_G.size):
        job = genes_G[gpu]
        if job != EMPTY:
            if count_J[job] >= round_.allowed_J[job]:
                genes_G[gpu] = EMPTY
            else:
                count_J[job] += 1
    for gpu in range(genes_G.size):
        job = genes_G[gpu]
        if job != EMPTY and count_J[job] < round_.min_J[job]:
            genes_G[gpu] = EMPTY


@compiled_part
def _cross(
    round_: Round, population_PG: IntArray, size: int, rng: np.random.Generator
) -> None:
    """Write two children per random pair: genes are swapped where neither job gets more
    than it may have.
    """
    for pair in range((size + 1) // 2):
        one = int(rng.random() * size)
        other = int(rng.random() * size)
        first = population_PG[size + 2 * pair]
        second = population_PG[min(size + 2 * pair + 1, 2 * size - 1)]
        first[:] = population_PG[one]
        second[:] = population_PG[other]
        first_J = counts(round_, first)
        second_J = counts(round_, second)
        for gpu in range(first.size):
            if rng.random() >= SWAP_CHANCE or first[gpu] == second[gpu]:
                continue
            mine = first[gpu]
            yours = second[gpu]
            if yours != EMPTY and first_J[yours] >= round_.allowed_J[yours]:
                continue
            if mine != EMPTY and second_J[mine] >= round_.allowed_J[mine]:
                continue
            first[gpu] = yours
            second[gpu] = mine
            if mine != EMPTY:
                first_J[mine] -= 1
                second_J[mine] += 1
            if yours != EMPTY:
                second_J[yours] -= 1
                first_J[yours] += 1
        _refresh(round_, first)
        _refresh(round_, second)


@compiled_part
def _mutate(
    round_: Round, population_PG: IntArray, size: int, rng: np.random.Generator
) -> None:
    """Write one mutant per parent: each job that has run long enough is removed by
    chance.
    """
    for parent in range(size):
        mutant = population_PG[2 * size + parent]
        mutant[:] = population_PG[parent]
        for job in range(round_.min_J.size):
            if round_.settled_J[job] and rng.random() < REMOVE_CHANCE:
                for gpu in range(mutant.size):
                    if mutant[gpu] == job:
                        mutant[gpu] = EMPTY


@compiled_part
def _fill(round_: Round, genes_G: IntArray, by_time_J: IntArray) -> None:
    """Give free GPUs: to jobs that never ran, in order; then to others, by remaining
    time.
    """
    count_J = counts(round_, genes_G)
    free = genes_G.size - int(count_J.sum())
    wanted_J = count_J.copy()
    for job in range(count_J.size):
        if (
            round_.fresh_J[job]
            and count_J[job] == 0
            and round_.min_J[job] <= min(free, round_.allowed_J[job])
        ):
            wanted_J[job] = round_.min_J[job]
            free -= round_.min_J[job]
    for most_J in (round_.allowed_J, round_.limit_J):
        for place in range(by_time_J.size):
            job = by_time_J[place]
            more = min(free, most_J[job] - wanted_J[job])
            if (
                round_.fresh_J[job]
                or more <= 0
                or wanted_J[job] + more < round_.min_J[job]
            ):
                continue
            wanted_J[job] += more
            free -= more
    gpu = 0
    for job in range(count_J.size):
        for _ in range(wanted_J[job] - count_J[job]):
            while genes_G[gpu] != EMPTY:
                gpu += 1
            genes_G[gpu] = job


@compiled_part
def _reorder(round_: Round, genes_G: IntArray, by_place_J: IntArray) -> None:
    """Lay the candidate out in blocks, in the order in which its jobs lie now."""
    count_J = counts(round_, genes_G)
    gpu = 0
    for place in range(by_place_J.size):
        job = by_place_J[place]
        for _ in range(count_J[job]):
            genes_G[gpu] = job
            gpu += 1
    genes_G[gpu:] = EMPTY
