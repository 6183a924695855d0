"""Compiled NSGA-II over allocation matrices, as Pollux searches them (OSDI 2021, §4.2.1; Deb et al. 2002).

Axes as in pollux_objective; P candidates, each a matrix (num_jobs, num_nodes); O objectives, both minimised:
the sum of costs, and minus the cluster's utility. All randomness comes from the generator passed in.
"""

from typing import NamedTuple

import numpy as np

from coadapt.policies.compiled import compiled
from coadapt.policies.pollux_objective import BoolArray, FloatArray, IntArray

# Chances in mating and mutation, of Pollux's code (1).
CROSSOVER_CHANCE = 0.9
RESTORE_CHANCE = 0.1  # a job's row returns to what it holds now
SPARSE_ROW_CHANCE = 0.1
SPARSE_CELL_CHANCE = 0.1
# Matings in a row without a new candidate, per place in the population, after which a generation makes do
# with the offspring that it has. (The authors' library tries fifty times longer; small rounds have few.)
PATIENCE = 1


class Arena(NamedTuple):
    """A round problem for the search: costs as in job_cost, quotas and capacities in GPUs."""

    capacity_N: IntArray
    current_JN: IntArray
    pinned_J: BoolArray
    min_J: IntArray
    max_J: IntArray
    keep_J: FloatArray
    change_JSK: FloatArray
    speedup_JSK: FloatArray
    tenant_J: IntArray
    quota_T: IntArray
    max_nodes: int
    exclusive: bool


class Population(NamedTuple):
    """Candidates in slots: slot_P lists those alive, the best first, then the free slots for offspring.

    rows_PJN, value_PO, hash_P, rank_P (front), crowding_P are by slot; the rest is scratch.
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


def empty_population(size: int, arena: Arena) -> Population:
    """Return room for `size` candidates, their offspring, and one mating more."""
    room, shape = 2 * size + 2, arena.current_JN.shape
    return Population(
        slot_P=np.arange(room),
        rows_PJN=np.zeros((room, *shape), dtype=np.int64),
        value_PO=np.zeros((room, 2)),
        hash_P=np.zeros(room, dtype=np.int64),
        rank_P=np.zeros(room, dtype=np.int64),
        crowding_P=np.zeros(room),
        last_P=np.zeros(room, dtype=np.int64),
        order_N=np.zeros(shape[1], dtype=np.int64),
        left_N=np.zeros(shape[1], dtype=np.int64),
        left_T=np.zeros(arena.quota_T.size, dtype=np.int64),
    )


@compiled
def evolve(
    arena: Arena, people: Population, num_seeds: int, generations: int, rng: np.random.Generator
) -> int:
    """Search from the candidates in the first `num_seeds` slots: repaired, they are generation 1.

    Returns the size of the first front, which stands at the start of slot_P, the lowest cost foremost.
    """
    size = people.slot_P.size // 2 - 1
    alive = 0
    for seed in range(num_seeds):
        _repair(arena, people, people.rows_PJN[seed], rng)
        if _admit(arena, people, seed, alive):
            people.slot_P[seed], people.slot_P[alive] = people.slot_P[alive], seed
            alive += 1
    alive = _survive(people, alive, size)
    for _ in range(generations - 1):
        grown = alive
        in_vain = 0
        while grown < alive + size and in_vain < PATIENCE * size:
            before = grown
            grown = _mate(arena, people, alive, grown, rng)
            in_vain = in_vain + 1 if grown == before else 0
        alive = _survive(people, min(grown, alive + size), size)
    front = 0
    while front < alive and people.rank_P[people.slot_P[front]] == 0:
        front += 1
    return front


@compiled
def _mate(arena: Arena, people: Population, alive: int, grown: int, rng: np.random.Generator) -> int:
    """Add up to two distinct offspring after the `grown` candidates; return how many there are then."""
    first = people.rows_PJN[_tournament(people, alive, rng)]
    second = people.rows_PJN[_tournament(people, alive, rng)]
    num_jobs, num_nodes = first.shape
    cut = int(rng.random() * num_jobs) if rng.random() < CROSSOVER_CHANCE else 0
    left, right = people.slot_P[grown], people.slot_P[grown + 1]
    for job in range(num_jobs):
        for node in range(num_nodes):
            one, other = first[job, node], second[job, node]
            people.rows_PJN[left, job, node] = other if job < cut else one
            people.rows_PJN[right, job, node] = one if job < cut else other
    for child in (left, right):
        _mutate(arena, people.rows_PJN[child], rng)
        _repair(arena, people, people.rows_PJN[child], rng)
    if _admit(arena, people, left, grown):
        grown += 1
    else:
        people.slot_P[grown], people.slot_P[grown + 1] = right, left
    return grown + 1 if _admit(arena, people, right, grown) else grown


@compiled
def _tournament(people: Population, alive: int, rng: np.random.Generator) -> int:
    """Return the better of two random candidates: by dominance, then by crowding, then by chance."""
    one = int(people.slot_P[int(rng.random() * alive)])
    other = int(people.slot_P[int(rng.random() * alive)])
    if _dominates(people, one, other):
        return one
    if _dominates(people, other, one):
        return other
    if people.crowding_P[one] != people.crowding_P[other]:
        return one if people.crowding_P[one] > people.crowding_P[other] else other
    return one if rng.random() < 0.5 else other


@compiled
def _dominates(people: Population, one: int, other: int) -> bool:
    cost, rival_cost = people.value_PO[one, 0], people.value_PO[other, 0]
    waste, rival_waste = people.value_PO[one, 1], people.value_PO[other, 1]
    return bool(cost <= rival_cost and waste <= rival_waste and (cost < rival_cost or waste < rival_waste))


@compiled
def _mutate(arena: Arena, rows_JN: IntArray, rng: np.random.Generator) -> None:
    num_jobs, num_nodes = rows_JN.shape
    for job in range(num_jobs):
        if rng.random() < RESTORE_CHANCE:
            for node in range(num_nodes):
                rows_JN[job, node] = arena.current_JN[job, node]
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
        if used >= arena.capacity_N[node]:
            continue
        newcomer = 1.0 / num_jobs
        holder = newcomer + (1.0 - newcomer) / max(tenants, 1)
        for job in range(num_jobs):
            held = rows_JN[job, node]
            if rng.random() < (holder if held > 0 else newcomer):
                rows_JN[job, node] = held + int(rng.random() * (arena.capacity_N[node] - held + 1))


@compiled
def _repair(arena: Arena, people: Population, rows_JN: IntArray, rng: np.random.Generator) -> None:
    """Make the candidate lawful by taking replicas away as published; pinned jobs keep theirs."""
    num_jobs, num_nodes = rows_JN.shape
    for job in range(num_jobs):
        if arena.pinned_J[job]:
            for node in range(num_nodes):
                rows_JN[job, node] = arena.current_JN[job, node]
    if arena.exclusive:
        _part_spanning(arena, people, rows_JN)
    for job in range(num_jobs):
        if not arena.pinned_J[job]:
            _cap_row(arena, people, rows_JN[job], arena.max_J[job], rng)
    for node in range(num_nodes):
        people.left_N[node] = arena.capacity_N[node]
    for tenant in range(arena.quota_T.size):
        people.left_T[tenant] = arena.quota_T[tenant]
    for pinned in (True, False):
        for job in range(num_jobs):
            if arena.pinned_J[job] == pinned:
                _cap_to_left(people, rows_JN[job], arena.tenant_J[job])
    for job in range(num_jobs):
        total = 0
        for node in range(num_nodes):
            total += rows_JN[job, node]
        if total < arena.min_J[job]:
            for node in range(num_nodes):
                rows_JN[job, node] = 0


@compiled
def _part_spanning(arena: Arena, people: Population, rows_JN: IntArray) -> None:
    """Leave each node to the first job (pinned ones foremost) of those that span nodes and stand on it."""
    num_jobs, num_nodes = rows_JN.shape
    for node in range(num_nodes):
        people.left_N[node] = 1
    for pinned in (True, False):
        for job in range(num_jobs):
            if arena.pinned_J[job] != pinned:
                continue
            num_held = 0
            for node in range(num_nodes):
                num_held += rows_JN[job, node] > 0
            if num_held < 2:
                continue
            for node in range(num_nodes):
                if rows_JN[job, node] == 0:
                    continue
                if people.left_N[node] == 0 and not pinned:
                    rows_JN[job, node] = 0
                people.left_N[node] = 0


@compiled
def _cap_row(arena: Arena, people: Population, row_N: IntArray, most: int, rng: np.random.Generator) -> None:
    """Cap a job's replicas and nodes; which nodes keep theirs is drawn."""
    total = 0
    num_held = 0
    for node in range(row_N.size):
        total += row_N[node]
        num_held += row_N[node] > 0
    if total <= most and num_held <= arena.max_nodes:
        return
    for node in range(row_N.size):
        people.order_N[node] = node
    total = 0
    num_held = 0
    for place in range(row_N.size):
        drawn = place + int(rng.random() * (row_N.size - place))
        node = people.order_N[drawn]
        people.order_N[drawn] = people.order_N[place]
        row_N[node] = min(row_N[node], most - total) if num_held < arena.max_nodes else 0
        total += row_N[node]
        num_held += row_N[node] > 0


@compiled
def _cap_to_left(people: Population, row_N: IntArray, tenant: int) -> None:
    for node in range(row_N.size):
        if row_N[node] > 0:
            row_N[node] = min(row_N[node], people.left_N[node], people.left_T[tenant])
            people.left_N[node] -= row_N[node]
            people.left_T[tenant] -= row_N[node]


@compiled
def _admit(arena: Arena, people: Population, slot: int, grown: int) -> bool:
    """Note the objectives of the candidate in `slot`, unless one of the `grown` is the same: then False."""
    rows_JN = people.rows_PJN[slot]
    num_jobs, num_nodes = rows_JN.shape
    mixed = 0
    for job in range(num_jobs):
        for node in range(num_nodes):
            mixed = (mixed ^ rows_JN[job, node]) * 0x100000001B3  # FNV-1a's prime; wraps at 64 bits
    for place in range(grown):
        other = people.slot_P[place]
        if people.hash_P[other] == mixed and _same(people.rows_PJN[other], rows_JN):
            return False
    people.hash_P[slot] = mixed
    _evaluate(arena, people, slot)
    return True


@compiled
def _evaluate(arena: Arena, people: Population, slot: int) -> None:
    rows_JN = people.rows_PJN[slot]
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
            kept = kept and count == arena.current_JN[job, node]
        spans = 1 if num_held > 1 else 0
        speedup += arena.speedup_JSK[job, spans, total]
        cost += arena.keep_J[job] if kept else arena.change_JSK[job, spans, total]
    gpus = 0
    for node in range(num_nodes):
        for job in range(num_jobs):
            if rows_JN[job, node] > 0:
                gpus += arena.capacity_N[node]
                break
    people.value_PO[slot, 0] = cost
    people.value_PO[slot, 1] = -speedup / max(gpus, 1)


@compiled
def _same(one_JN: IntArray, other_JN: IntArray) -> bool:
    for job in range(one_JN.shape[0]):
        for node in range(one_JN.shape[1]):
            if one_JN[job, node] != other_JN[job, node]:
                return False
    return True


@compiled
def _survive(people: Population, grown: int, size: int) -> int:
    """Keep at most `size` of the `grown` candidates, front by front, of the last one the least crowded."""
    _sort_by_value(people, grown)
    _sort_by_front(people, grown)
    begin = 0
    while begin < min(grown, size):
        end = begin
        while end < grown and people.rank_P[people.slot_P[end]] == people.rank_P[people.slot_P[begin]]:
            end += 1
        _measure_crowding(people, begin, end)
        if end > size:
            _sort_by_crowding(people, begin, end)
        begin = end
    return min(grown, size)


@compiled
def _sort_by_value(people: Population, grown: int) -> None:
    for place in range(1, grown):
        slot = people.slot_P[place]
        cost, waste = people.value_PO[slot, 0], people.value_PO[slot, 1]
        hole = place
        while hole > 0:
            before = people.slot_P[hole - 1]
            if people.value_PO[before, 0] < cost or (
                people.value_PO[before, 0] == cost and people.value_PO[before, 1] <= waste
            ):
                break
            people.slot_P[hole] = before
            hole -= 1
        people.slot_P[hole] = slot


@compiled
def _sort_by_front(people: Population, grown: int) -> None:
    """Rank the candidates, who are in order of value, and group them by rank, else keeping their order.

    In that order a candidate is dominated by a front exactly if the front's latest member dominates it.
    """
    num_fronts = 0
    for place in range(grown):
        slot = people.slot_P[place]
        front = 0
        while front < num_fronts and _dominates(people, people.last_P[front], slot):
            front += 1
        people.last_P[front] = slot
        people.rank_P[slot] = front
        num_fronts = max(num_fronts, front + 1)
    people.last_P[:grown] = people.slot_P[:grown]
    filled = 0
    for front in range(num_fronts):
        for place in range(grown):
            if people.rank_P[people.last_P[place]] == front:
                people.slot_P[filled] = people.last_P[place]
                filled += 1


@compiled
def _measure_crowding(people: Population, begin: int, end: int) -> None:
    """Note how far apart the neighbours in a front are; 0 for a candidate whose values another one has."""
    before = -1
    place = begin
    while place < end:
        slot = people.slot_P[place]
        after = place + 1
        while after < end and _equal(people, slot, people.slot_P[after]):
            people.crowding_P[people.slot_P[after]] = 0.0
            after += 1
        if before < 0 or after == end:
            people.crowding_P[slot] = np.inf
        else:
            people.crowding_P[slot] = _gap(people, begin, end, before, people.slot_P[after])
        before = slot
        place = after


@compiled
def _equal(people: Population, one: int, other: int) -> bool:
    same_cost = people.value_PO[one, 0] == people.value_PO[other, 0]
    return bool(same_cost and people.value_PO[one, 1] == people.value_PO[other, 1])


@compiled
def _gap(people: Population, begin: int, end: int, before: int, after: int) -> float:
    """Return the distance of two candidates of a front, each objective as a share of the front's spread."""
    first, last = people.slot_P[begin], people.slot_P[end - 1]
    gap = 0.0
    for objective in range(2):
        spread = abs(people.value_PO[last, objective] - people.value_PO[first, objective])
        if spread > 0.0:
            gap += abs(people.value_PO[after, objective] - people.value_PO[before, objective]) / spread
    return gap


@compiled
def _sort_by_crowding(people: Population, begin: int, end: int) -> None:
    for place in range(begin + 1, end):
        slot = people.slot_P[place]
        hole = place
        while hole > begin and people.crowding_P[people.slot_P[hole - 1]] < people.crowding_P[slot]:
            people.slot_P[hole] = people.slot_P[hole - 1]
            hole -= 1
        people.slot_P[hole] = slot
