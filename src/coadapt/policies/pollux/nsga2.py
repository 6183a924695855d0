"""Compiled NSGA-II over allocation matrices, as Pollux searches them (OSDI 2021,
§4.2.1; Deb et al. 2002).

Axes as in pollux/objective.py; P candidates, each a matrix (num_jobs, num_nodes); O
objectives, both minimised: the sum of costs, and minus the cluster's utility. All
randomness comes from the generator passed in.
"""

# A candidate is a whole plan: a matrix of jobs by nodes. A generation mates candidates,
# mutates and repairs their offspring, and keeps the best of parents and offspring
# together.
#
# Two objectives, because one would not do what the authors want: the first is the power
# mean of the speedups (as a sum of costs); the second, minus the speedups per GPU of
# the nodes in use, keeps candidates alive that leave nodes empty, from which the
# authors' autoscaler picks. Here the first one decides in the end. One candidate
# dominates another if it is no worse in both and better in one. Candidates that no
# other one dominates are front 0; without them, front 1; and so on. Survivors are taken
# front by front; within the front that does not fit whole, by crowding distance: how
# far apart a candidate's neighbours are, as a share of the front's spread. It keeps the
# ends (infinite distance) and thins out where many are alike.
#
# Fronts in one pass: with two objectives, and candidates in order of the first one, a
# candidate is dominated by a front exactly if that front's latest member dominates it.
# So each is compared with one member per front.
#
# Repair is part of the published method: mutation writes numbers without looking at
# limits, then conflicts are taken back in a fixed order (meeting of jobs that span
# nodes, limits per job, capacity per node). What a repair undoes is not penalised.
# Pinned jobs are restored first, so no other job's repair can need their GPUs.
#
# Draws are not those of the authors' library: results agree with it in distribution,
# not draw by draw.

from typing import NamedTuple

import numpy as np

from coadapt.goodput.compiled import compiled, compiled_part
from coadapt.policies.pollux.objective import FloatArray, IntArray
from coadapt.policies.pollux.round_costs import RoundCosts

# Probabilities in mating and mutation, from Pollux's code.
CROSSOVER_CHANCE = 0.9
RESTORE_CHANCE = 0.1  # a job's row returns to what it holds now
SPARSE_ROW_CHANCE = 0.1
SPARSE_CELL_CHANCE = 0.1
# Matings in a row without a new candidate, per place in the population, after which a
# generation makes do with the offspring that it has. (The authors' library tries fifty
# times longer; small rounds have few.)
PATIENCE = 1


class Population(NamedTuple):
    """Candidates in slots: slot_P lists those alive, the best first, then the free
    slots for offspring.

    rows_PJN, value_PO, hash_P, rank_P (front), crowding_P are by slot; the rest is
    scratch.
    """

    slot_P: IntArray
    rows_PJN: IntArray
    value_PO: FloatArray
    hash_P: IntArray
    rank_P: IntArray
    crowding_P: FloatArray
    last_P: IntArray
    order_N: IntArray
    left_N: IntArray
    left_T: IntArray


def empty_population(size: int, costs: RoundCosts) -> Population:
    """Return capacity for `size` candidates, their offspring, and one mating more."""
    capacity = 2 * size + 2
    shape = costs.current_JN.shape
    return Population(
        slot_P=np.arange(capacity),
        rows_PJN=np.zeros((capacity, *shape), dtype=np.int64),
        value_PO=np.zeros((capacity, 2)),
        hash_P=np.zeros(capacity, dtype=np.int64),
        rank_P=np.zeros(capacity, dtype=np.int64),
        crowding_P=np.zeros(capacity),
        last_P=np.zeros(capacity, dtype=np.int64),
        order_N=np.zeros(shape[1], dtype=np.int64),
        left_N=np.zeros(shape[1], dtype=np.int64),
        left_T=np.zeros(costs.quota_T.size, dtype=np.int64),
    )


@compiled
def evolve(
    costs: RoundCosts,
    population: Population,
    num_seeds: int,
    generations: int,
    rng: np.random.Generator,
) -> int:
    """Search from the candidates in the first `num_seeds` slots: repaired, they are
    generation 1.

    Returns the size of the first front, which stands at the start of slot_P, the lowest
    cost foremost.
    """
    size = population.slot_P.size // 2 - 1
    alive = 0
    for seed in range(num_seeds):
        _repair(costs, population, population.rows_PJN[seed], rng)
        if _admit(costs, population, seed, alive):
            population.slot_P[seed] = population.slot_P[alive]
            population.slot_P[alive] = seed
            alive += 1
    alive = _survive(population, alive, size)
    # Elitism: parents compete with their offspring, so the best candidate is never
    # lost.
    for _ in range(generations - 1):
        grown = alive
        in_vain = 0
        while grown < alive + size and in_vain < PATIENCE * size:
            before = grown
            grown = _mate(costs, population, alive, grown, rng)
            in_vain = in_vain + 1 if grown == before else 0
        alive = _survive(population, min(grown, alive + size), size)
    front = 0
    while front < alive and population.rank_P[population.slot_P[front]] == 0:
        front += 1
    return front


@compiled_part
def _mate(
    costs: RoundCosts,
    population: Population,
    alive: int,
    grown: int,
    rng: np.random.Generator,
) -> int:
    """Add up to two distinct offspring after the `grown` candidates; return how many
    there are then.
    """
    first = population.rows_PJN[_tournament(population, alive, rng)]
    second = population.rows_PJN[_tournament(population, alive, rng)]
    num_jobs, num_nodes = first.shape
    # One cut between jobs: rows above it are swapped, so a job's row is inherited
    # whole.
    cut = int(rng.random() * num_jobs) if rng.random() < CROSSOVER_CHANCE else 0
    left = population.slot_P[grown]
    right = population.slot_P[grown + 1]
    for job in range(num_jobs):
        for node in range(num_nodes):
            one = first[job, node]
            other = second[job, node]
            population.rows_PJN[left, job, node] = other if job < cut else one
            population.rows_PJN[right, job, node] = one if job < cut else other
    for child in (left, right):
        _mutate(costs, population.rows_PJN[child], rng)
        _repair(costs, population, population.rows_PJN[child], rng)
    if _admit(costs, population, left, grown):
        grown += 1
    else:
        population.slot_P[grown] = right
        population.slot_P[grown + 1] = left
    return grown + 1 if _admit(costs, population, right, grown) else grown


@compiled_part
def _tournament(population: Population, alive: int, rng: np.random.Generator) -> int:
    """Return the better of two random candidates: by dominance, then by crowding, then
    by chance.
    """
    one = int(population.slot_P[int(rng.random() * alive)])
    other = int(population.slot_P[int(rng.random() * alive)])
    if _dominates(population, one, other):
        return one
    if _dominates(population, other, one):
        return other
    if population.crowding_P[one] != population.crowding_P[other]:
        return (
            one if population.crowding_P[one] > population.crowding_P[other] else other
        )
    return one if rng.random() < 0.5 else other


@compiled_part
def _dominates(population: Population, one: int, other: int) -> bool:
    cost = population.value_PO[one, 0]
    rival_cost = population.value_PO[other, 0]
    waste = population.value_PO[one, 1]
    rival_waste = population.value_PO[other, 1]
    return bool(
        cost <= rival_cost
        and waste <= rival_waste
        and (cost < rival_cost or waste < rival_waste)
    )


@compiled_part
def _mutate(costs: RoundCosts, rows_JN: IntArray, rng: np.random.Generator) -> None:
    num_jobs, num_nodes = rows_JN.shape
    for job in range(num_jobs):
        if rng.random() < RESTORE_CHANCE:
            for node in range(num_nodes):
                rows_JN[job, node] = costs.current_JN[job, node]
        if rng.random() < SPARSE_ROW_CHANCE:
            for node in range(num_nodes):
                if rng.random() < SPARSE_CELL_CHANCE:
                    rows_JN[job, node] = 0
    for node in range(num_nodes):
        used = 0
        tenants = 0
        for job in range(num_jobs):
            used += rows_JN[job, node]
            tenants += rows_JN[job, node] > 0
        if used >= costs.capacity_N[node]:
            continue
        # A job that holds GPUs on the node takes its free GPUs sooner than one that
        # does not.
        newcomer = 1.0 / num_jobs
        holder = newcomer + (1.0 - newcomer) / max(tenants, 1)
        for job in range(num_jobs):
            held = rows_JN[job, node]
            if rng.random() < (holder if held > 0 else newcomer):
                rows_JN[job, node] = held + int(
                    rng.random() * (costs.capacity_N[node] - held + 1)
                )


@compiled
def _repair(
    costs: RoundCosts,
    population: Population,
    rows_JN: IntArray,
    rng: np.random.Generator,
) -> None:
    """Make the candidate lawful by taking replicas away as published; pinned jobs keep
    theirs.
    """
    num_jobs, num_nodes = rows_JN.shape
    _keep_pinned(costs, rows_JN)
    if costs.exclusive:
        _part_spanning(costs, population, rows_JN)
    for job in range(num_jobs):
        if not costs.pinned_J[job]:
            _cap_row(costs, population, rows_JN[job], costs.max_J[job], rng)
    for node in range(num_nodes):
        population.left_N[node] = costs.capacity_N[node]
    for tenant in range(costs.quota_T.size):
        population.left_T[tenant] = costs.quota_T[tenant]
    for pinned in (True, False):
        for job in range(num_jobs):
            if costs.pinned_J[job] == pinned:
                _cap_to_left(population, rows_JN[job], costs.tenant_J[job])
    for job in range(num_jobs):
        _empty_below_minimum(rows_JN[job], costs.min_J[job])


@compiled_part
def _empty_below_minimum(row_N: IntArray, least: int) -> None:
    """Take all replicas of a job that has fewer than its minimum."""
    total = 0
    for node in range(row_N.size):
        total += row_N[node]
    if total < least:
        for node in range(row_N.size):
            row_N[node] = 0


@compiled_part
def _keep_pinned(costs: RoundCosts, rows_JN: IntArray) -> None:
    """Give each pinned job what it holds."""
    num_jobs, num_nodes = rows_JN.shape
    for job in range(num_jobs):
        if costs.pinned_J[job]:
            for node in range(num_nodes):
                rows_JN[job, node] = costs.current_JN[job, node]


@compiled_part
def _part_spanning(
    costs: RoundCosts, population: Population, rows_JN: IntArray
) -> None:
    """Leave each node to the first job (pinned ones foremost) of those that span nodes
    and stand on it.
    """
    num_jobs, num_nodes = rows_JN.shape
    for node in range(num_nodes):
        population.left_N[node] = 1
    for pinned in (True, False):
        for job in range(num_jobs):
            if costs.pinned_J[job] != pinned:
                continue
            num_held = 0
            for node in range(num_nodes):
                num_held += rows_JN[job, node] > 0
            if num_held < 2:
                continue
            for node in range(num_nodes):
                if rows_JN[job, node] == 0:
                    continue
                if population.left_N[node] == 0 and not pinned:
                    rows_JN[job, node] = 0
                population.left_N[node] = 0


@compiled_part
def _cap_row(
    costs: RoundCosts,
    population: Population,
    row_N: IntArray,
    most: int,
    rng: np.random.Generator,
) -> None:
    """Cap a job's replicas and nodes; which nodes keep theirs is drawn."""
    total = 0
    num_held = 0
    for node in range(row_N.size):
        total += row_N[node]
        num_held += row_N[node] > 0
    if total <= most and num_held <= costs.max_nodes:
        return
    for node in range(row_N.size):
        population.order_N[node] = node
    total = 0
    num_held = 0
    for place in range(row_N.size):
        drawn = place + int(rng.random() * (row_N.size - place))
        node = population.order_N[drawn]
        population.order_N[drawn] = population.order_N[place]
        row_N[node] = (
            min(row_N[node], most - total) if num_held < costs.max_nodes else 0
        )
        total += row_N[node]
        num_held += row_N[node] > 0


@compiled_part
def _cap_to_left(population: Population, row_N: IntArray, tenant: int) -> None:
    for node in range(row_N.size):
        if row_N[node] > 0:
            row_N[node] = min(
                row_N[node], population.left_N[node], population.left_T[tenant]
            )
            population.left_N[node] -= row_N[node]
            population.left_T[tenant] -= row_N[node]


@compiled
def _admit(costs: RoundCosts, population: Population, slot: int, grown: int) -> bool:
    """Note the objectives of the candidate in `slot`, unless one of the `grown` is the
    same: then False.
    """
    rows_JN = population.rows_PJN[slot]
    num_jobs, num_nodes = rows_JN.shape
    mixed = 0
    for job in range(num_jobs):
        for node in range(num_nodes):
            mixed = (
                mixed ^ rows_JN[job, node]
            ) * 0x100000001B3  # FNV-1a's prime; wraps at 64 bits
    for place in range(grown):
        other = population.slot_P[place]
        if population.hash_P[other] == mixed and _same(
            population.rows_PJN[other], rows_JN
        ):
            return False
    population.hash_P[slot] = mixed
    _evaluate(costs, population, slot)
    return True


@compiled_part
def _evaluate(costs: RoundCosts, population: Population, slot: int) -> None:
    rows_JN = population.rows_PJN[slot]
    num_jobs, num_nodes = rows_JN.shape
    cost = 0.0
    speedup = 0.0
    for job in range(num_jobs):
        total = 0
        num_held = 0
        kept = True
        for node in range(num_nodes):
            count = rows_JN[job, node]
            total += count
            num_held += count > 0
            kept = kept and count == costs.current_JN[job, node]
        spans = 1 if num_held > 1 else 0
        speedup += costs.speedup_JSK[job, spans, total]
        cost += costs.keep_J[job] if kept else costs.change_JSK[job, spans, total]
    gpus = 0
    for node in range(num_nodes):
        for job in range(num_jobs):
            if rows_JN[job, node] > 0:
                gpus += costs.capacity_N[node]
                break
    population.value_PO[slot, 0] = cost
    population.value_PO[slot, 1] = -speedup / max(gpus, 1)


@compiled_part
def _same(one_JN: IntArray, other_JN: IntArray) -> bool:
    for job in range(one_JN.shape[0]):
        for node in range(one_JN.shape[1]):
            if one_JN[job, node] != other_JN[job, node]:
                return False
    return True


@compiled
def _survive(population: Population, grown: int, size: int) -> int:
    """Keep at most `size` of the `grown` candidates, front by front, of the last one
    the least crowded.
    """
    _sort_by_value(population, grown)
    _sort_by_front(population, grown)
    begin = 0
    while begin < min(grown, size):
        end = begin
        while (
            end < grown
            and population.rank_P[population.slot_P[end]]
            == population.rank_P[population.slot_P[begin]]
        ):
            end += 1
        _measure_crowding(population, begin, end)
        if end > size:
            _sort_by_crowding(population, begin, end)
        begin = end
    return min(grown, size)


@compiled_part
def _sort_by_value(population: Population, grown: int) -> None:
    for place in range(1, grown):
        slot = population.slot_P[place]
        cost = population.value_PO[slot, 0]
        waste = population.value_PO[slot, 1]
        hole = place
        while hole > 0:
            before = population.slot_P[hole - 1]
            if population.value_PO[before, 0] < cost or (
                population.value_PO[before, 0] == cost
                and population.value_PO[before, 1] <= waste
            ):
                break
            population.slot_P[hole] = before
            hole -= 1
        population.slot_P[hole] = slot


@compiled_part
def _sort_by_front(population: Population, grown: int) -> None:
    """Rank the candidates, which are in order of value, and group them by rank. Within
    a rank they keep their order.

    In that order a candidate is dominated by a front exactly if the front's latest
    member dominates it.
    """
    num_fronts = 0
    for place in range(grown):
        slot = population.slot_P[place]
        front = 0
        while front < num_fronts and _dominates(
            population, population.last_P[front], slot
        ):
            front += 1
        population.last_P[front] = slot
        population.rank_P[slot] = front
        num_fronts = max(num_fronts, front + 1)
    population.last_P[:grown] = population.slot_P[:grown]
    filled = 0
    for front in range(num_fronts):
        for place in range(grown):
            if population.rank_P[population.last_P[place]] == front:
                population.slot_P[filled] = population.last_P[place]
                filled += 1


@compiled_part
def _measure_crowding(population: Population, begin: int, end: int) -> None:
    """Note how far apart the neighbours in a front are; 0 for a candidate whose values
    another one has.
    """
    before = -1
    place = begin
    while place < end:
        slot = population.slot_P[place]
        after = place + 1
        while after < end and _equal(population, slot, population.slot_P[after]):
            population.crowding_P[population.slot_P[after]] = 0.0
            after += 1
        if before < 0 or after == end:
            population.crowding_P[slot] = np.inf
        else:
            population.crowding_P[slot] = _gap(
                population, begin, end, before, population.slot_P[after]
            )
        before = slot
        place = after


@compiled_part
def _equal(population: Population, one: int, other: int) -> bool:
    same_cost = population.value_PO[one, 0] == population.value_PO[other, 0]
    return bool(
        same_cost and population.value_PO[one, 1] == population.value_PO[other, 1]
    )


@compiled_part
def _gap(
    population: Population, begin: int, end: int, before: int, after: int
) -> float:
    """Return the distance of two candidates of a front, each objective as a share of
    the front's spread.
    """
    first = population.slot_P[begin]
    last = population.slot_P[end - 1]
    gap = 0.0
    for objective in range(2):
        spread = abs(
            population.value_PO[last, objective] - population.value_PO[first, objective]
        )
        if spread > 0.0:
            gap += (
                abs(
                    population.value_PO[after, objective]
                    - population.value_PO[before, objective]
                )
                / spread
            )
    return gap


@compiled_part
def _sort_by_crowding(population: Population, begin: int, end: int) -> None:
    for place in range(begin + 1, end):
        slot = population.slot_P[place]
        hole = place
        while (
            hole > begin
            and population.crowding_P[population.slot_P[hole - 1]]
            < population.crowding_P[slot]
        ):
            population.slot_P[hole] = population.slot_P[hole - 1]
            hole -= 1
        population.slot_P[hole] = slot
