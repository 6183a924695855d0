"""Compiled relaxations of the Pollux round: a proven bound on its objective, and the counts that reach it.

Three facts of any lawful plan survive, as resources R: replicas fit the GPUs; the nodes of jobs that span
nodes, which must not meet, fit the cluster; and a node holds one piece of more than half of the largest node,
or two of just half of it (wide pieces). Where exactly a job stands is forgotten.
"""

from typing import NamedTuple

import numpy as np

from coadapt.policies.compiled import compiled
from coadapt.policies.pollux_books import GPUS, NODES, NUM_RESOURCES, WIDE, Costs, Market
from coadapt.policies.pollux_objective import FloatArray, IntArray

KEEP = -1  # in place of a replica count: the job keeps what it holds
HALVINGS = 25  # of the interval in which a price is searched


class Choices(NamedTuple):
    """What each job may choose: a count, what it uses of each resource, its cost. O options, size_J used.

    count_JO is the replica count as the solver knows it: KEEP where the job keeps what it holds.
    """

    count_JO: IntArray
    use_JOR: FloatArray
    cost_JO: FloatArray
    size_J: IntArray


def list_choices(costs: Costs) -> Choices:
    """Return each job's choices, without those that cost no less than a smaller one of their kind."""
    num_jobs, width = costs.wait_J.size, 3 * costs.change_JSK.shape[2] + 2
    choices = Choices(
        count_JO=np.zeros((num_jobs, width), dtype=np.int64),
        use_JOR=np.zeros((num_jobs, width, NUM_RESOURCES)),
        cost_JO=np.zeros((num_jobs, width)),
        size_J=np.zeros(num_jobs, dtype=np.int64),
    )
    sizes_N = np.sort(costs.capacity_N)[::-1]
    fewest_K = np.repeat(np.arange(1, sizes_N.size + 1), sizes_N)  # nodes that 1, 2, … replicas need at least
    _fill_choices(costs, choices, np.concatenate((np.zeros(1, dtype=np.int64), fewest_K)))
    return choices


@compiled
def _fill_choices(costs: Costs, choices: Choices, fewest_K: IntArray) -> None:
    for job in range(choices.size_J.size):
        held = _offer_present(costs, choices, job)
        if costs.pinned_J[job] and held > 0:
            continue
        least = costs.wait_J[job]
        for count in range(costs.min_J[job], min(costs.max_J[job], fewest_K.size - 1) + 1):
            cost = costs.change_JSK[job, 0, count]
            if fewest_K[count] == 1 and cost < least:
                least = cost
                _offer(choices, job, count, cost)
                choices.use_JOR[job, choices.size_J[job] - 1, WIDE] = costs.wide_K[count]
        _offer_spanning(costs, choices, job, fewest_K)


@compiled
def _offer(choices: Choices, job: int, count: int, cost: float) -> None:
    place = choices.size_J[job]
    choices.count_JO[job, place] = count
    choices.cost_JO[job, place] = cost
    choices.use_JOR[job, place, GPUS] = count
    choices.size_J[job] += 1


@compiled
def _offer_present(costs: Costs, choices: Choices, job: int) -> int:
    """Offer to wait (not to a pinned job that holds GPUs) and to keep; return the GPUs that the job holds."""
    held = 0
    num_nodes = 0
    wide = 0.0
    for node in range(costs.capacity_N.size):
        piece = costs.current_JN[job, node]
        held += piece
        num_nodes += piece > 0
        wide += costs.wide_K[piece]
    if held == 0 or not costs.pinned_J[job]:
        _offer(choices, job, 0, costs.wait_J[job])
    if held > 0:
        place = choices.size_J[job]
        _offer(choices, job, held, costs.keep_J[job])
        choices.count_JO[job, place] = KEEP
        choices.use_JOR[job, place, WIDE] = wide
        if costs.exclusive and num_nodes > 1 and not costs.pinned_J[job]:
            choices.use_JOR[job, place, NODES] = num_nodes
    return held


@compiled
def _offer_spanning(costs: Costs, choices: Choices, job: int, fewest_K: IntArray) -> None:
    """Offer each count on several nodes twice: on as few as possible, and on so many that no piece is wide.

    r replicas on n nodes have at least (r - n·narrow) / (largest - narrow) wide pieces, which is linear in n:
    what lies between the two offers is no better at any prices.
    """
    largest = costs.capacity_N.max()
    narrow = (largest + 1) // 2 - 1  # the largest piece that is not wide at all
    least = costs.wait_J[job]
    for count in range(max(costs.min_J[job], 2), min(costs.max_J[job], fewest_K.size - 1) + 1):
        cost = costs.change_JSK[job, 1, count]
        fewest = max(fewest_K[count], 2)
        if cost >= least or fewest > costs.max_nodes:
            continue
        least = cost
        wide = max((count - fewest * narrow) / (largest - narrow), 0.0)
        for num_nodes, num_wide in ((fewest, wide), (max(count // max(narrow, 1), fewest), 0.0)):
            if num_wide > 0.0 or narrow > 0:
                place = choices.size_J[job]
                _offer(choices, job, count, cost)
                choices.use_JOR[job, place, WIDE] = num_wide
                choices.use_JOR[job, place, NODES] = num_nodes if costs.exclusive else 0


def room_of(costs: Costs) -> FloatArray:
    """Return what the cluster has of each resource (num_resources,)."""
    wide = costs.wide_K[costs.capacity_N].sum()
    return np.array([costs.capacity_N.sum(), costs.capacity_N.size, wide], dtype=np.float64)


def priced_relaxation(costs: Costs, choices: Choices) -> tuple[Market, IntArray]:
    """Return prices of the resources with the bound that they prove, and choices near it that fit the GPUs.

    The Lagrangian dual is concave in the prices. Those of wide pieces and of nodes are raised from 0, one
    after the other, while too many are sold; GPUs are priced anew each time. Any prices prove a bound, so
    stopping early costs tightness only.
    """
    num_jobs = costs.wait_J.size
    price_R, option_J = np.zeros(NUM_RESOURCES), np.zeros(num_jobs, dtype=np.int64)
    dearest = float((costs.wait_J - choices.cost_JO.min(axis=1)).max())
    bound = _price_all(choices, room_of(costs), dearest, price_R, option_J)
    ideal_J = np.zeros(num_jobs)
    _buy(choices, price_R, ideal_J, np.zeros(num_jobs, dtype=np.int64))
    return Market(bound, price_R, ideal_J), option_J


@compiled
def _price_all(
    choices: Choices, room_R: FloatArray, dearest: float, price_R: FloatArray, option_J: IntArray
) -> float:
    trial_R = np.zeros_like(price_R)
    trial_J = np.zeros_like(option_J)
    bound = _price_gpus(choices, room_R, dearest, trial_R, trial_J)
    _copy(trial_R, price_R)
    _copy(trial_J, option_J)
    for side in (WIDE, NODES):
        low, high = 0.0, dearest
        for _ in range(HALVINGS):
            sold = 0.0
            for job in range(trial_J.size):
                sold += choices.use_JOR[job, trial_J[job], side]
            if sold > room_R[side]:
                low = trial_R[side]
            else:
                high = trial_R[side]
            if high == 0.0:
                break
            _copy(price_R, trial_R)
            trial_R[side] = 0.5 * (low + high)
            value = _price_gpus(choices, room_R, dearest, trial_R, trial_J)
            if value > bound:
                bound = value
                _copy(trial_R, price_R)
                _copy(trial_J, option_J)
        _copy(price_R, trial_R)
        _copy(option_J, trial_J)
    return bound


@compiled
def _copy(source: FloatArray | IntArray, target: FloatArray | IntArray) -> None:
    for place in range(source.size):
        target[place] = source[place]


@compiled
def _price_gpus(
    choices: Choices, room_R: FloatArray, dearest: float, price_R: FloatArray, option_J: IntArray
) -> float:
    """Search the price of GPUs by halving; the choices are those just dear enough to fit, then filled up.

    Writes the price and the choices; returns the bound.
    """
    ideal_J = np.zeros(option_J.size)
    cheap_J = np.zeros_like(option_J)
    trial_J = np.zeros_like(option_J)
    low, high, best, best_price = 0.0, dearest, -np.inf, 0.0
    for step in range(HALVINGS + 1):
        price_R[GPUS] = 0.0 if step == 0 else 0.5 * (low + high)
        bound = _buy(choices, price_R, ideal_J, trial_J)
        used = 0.0
        for resource in range(room_R.size):
            bound -= price_R[resource] * room_R[resource]
        for job in range(option_J.size):
            used += choices.use_JOR[job, trial_J[job], GPUS]
        if bound > best:
            best, best_price = bound, price_R[GPUS]
        if used > room_R[GPUS]:
            low = price_R[GPUS]
            _copy(trial_J, cheap_J)
        else:
            high = price_R[GPUS]
            _copy(trial_J, option_J)
            if step == 0:
                _copy(trial_J, cheap_J)
                break
    price_R[GPUS] = best_price
    _fill_up(choices, room_R[GPUS], cheap_J, option_J)
    return best


@compiled
def _fill_up(choices: Choices, num_gpus: float, cheap_J: IntArray, option_J: IntArray) -> None:
    """Let jobs choose as at a lower price, one after the other, while the GPUs last.

    Alike jobs change their choice at the same price: without this their GPUs would lie idle all at once.
    """
    left = num_gpus
    for job in range(option_J.size):
        left -= choices.use_JOR[job, option_J[job], GPUS]
    for job in range(option_J.size):
        more = choices.use_JOR[job, cheap_J[job], GPUS] - choices.use_JOR[job, option_J[job], GPUS]
        if 0.0 < more <= left:
            option_J[job] = cheap_J[job]
            left -= more


@compiled
def _buy(choices: Choices, price_R: FloatArray, ideal_J: FloatArray, option_J: IntArray) -> float:
    """Let each job choose at these prices; write what it pays and its choice, return the sum of payments."""
    total = 0.0
    for job in range(option_J.size):
        ideal_J[job] = np.inf
        for option in range(choices.size_J[job]):
            paid = choices.cost_JO[job, option]
            for resource in range(price_R.size):
                paid += price_R[resource] * choices.use_JOR[job, option, resource]
            if paid < ideal_J[job]:
                ideal_J[job] = paid
                option_J[job] = option
        total += ideal_J[job]
    return total


@compiled
def exact_relaxation(
    choices: Choices, num_gpus: int, num_nodes: int, wide_price: float, option_J: IntArray
) -> float:
    """Return the least sum of costs and of `wide_price` per wide piece that fits GPUs and nodes.

    Writes each job's choice. Dynamic programming; work: options of all jobs x GPUs x nodes.
    """
    best_GN = np.zeros((num_gpus + 1, num_nodes + 1))
    taken_JGN = np.zeros((option_J.size, num_gpus + 1, num_nodes + 1), np.int16)
    for job in range(option_J.size):
        next_GN = np.full((num_gpus + 1, num_nodes + 1), np.inf)
        for option in range(choices.size_J[job]):
            gpus, nodes = int(choices.use_JOR[job, option, GPUS]), int(choices.use_JOR[job, option, NODES])
            cost = choices.cost_JO[job, option] + wide_price * choices.use_JOR[job, option, WIDE]
            for g in range(gpus, num_gpus + 1):
                for n in range(nodes, num_nodes + 1):
                    total = best_GN[g - gpus, n - nodes] + cost
                    if total < next_GN[g, n]:
                        next_GN[g, n] = total
                        taken_JGN[job, g, n] = option
        best_GN = next_GN
    g, n = num_gpus, num_nodes
    for job in range(option_J.size - 1, -1, -1):
        option_J[job] = taken_JGN[job, g, n]
        g -= int(choices.use_JOR[job, option_J[job], GPUS])
        n -= int(choices.use_JOR[job, option_J[job], NODES])
    return float(best_GN[num_gpus, num_nodes])
