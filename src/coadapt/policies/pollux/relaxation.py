"""Compiled relaxations of the Pollux round: a proven bound on its objective, and counts
that come near it.

Axes as in pollux/objective.py; R resources, O options of a job.
"""

# Why this bounds every lawful plan from below.
#
# A round of Pollux maximises a power mean of the jobs' speedups, which is to minimise a
# sum of costs, one for each job (`job_cost`). So it is: choose a row x_j of GPUs for
# each job so that sum_j c_j(x_j) is least and the rows fit the nodes. The costs are a
# sum over jobs; only the fitting, and tenants' quotas, tie the jobs together. So we
# drop the quotas, and keep of the fitting no more than linear facts that hold for EVERY
# lawful plan, sum_j a_jr <= C_r for a few resources r, and forget where a job stands.
# Fewer conditions allow more plans: the least cost can only fall. That is the
# relaxation.
#
# The facts (resources):
#   GPUS   replicas of all jobs                                 <= GPUs of the cluster
#   NODES  nodes of the jobs that span nodes, if no two of these
#          may meet on a node (interference)                    <= nodes of the cluster
#   WIDE   pieces of half of the largest node (1/2) and          <= what the node itself
#          more (1)                                                 counts so
#
# The third one is what makes the bound tight where GPUs alone do not: five jobs of 3
# replicas have 15 <= 16 GPUs on four nodes of 4, and yet only four of them can run in
# one node each. A piece is what one job has in one node; it counts 1 if larger than
# half of the largest node, 1/2 if just half, else 0:
#
#     node of 4   [# # # #]   [# # #|.]   [# #|# #]   [# #|#|#]   [#|#|#|#]
#     pieces          4          3, 1        2, 2       2, 1, 1     1, 1, 1, 1
#     wide            1          1          1/2+1/2       1/2           0
#                                                              (never more than 1)
#
# (u_1 of Fekete and Schepers 2001, a dual feasible function of bin packing; a node of
# half the largest size holds at most 1/2, a smaller one none.) A job cut over several
# nodes has several pieces; r replicas on n nodes have at least (r - n * narrow) /
# (largest - narrow) wide ones, narrow being the largest piece that does not count.
# Fewer nodes need more wide pieces and the reverse, hence two offers per count.
#
# The bound itself is Lagrangian duality: what is scarce gets a price u_r >= 0 (its
# multiplier), each job chooses alone what is cheapest for it with these prices paid,
# and what the cluster has is paid back,
#
#     L(u) = sum_j min_o [ c_jo + sum_r u_r a_jor ]  -  sum_r u_r C_r
#
# For the options o* of a lawful plan the bracket is at least its minimum, and sum_r u_r
# (sum_j a - C_r) <= 0: the plan's cost is >= L(u), whatever u is. So prices may be
# searched as roughly as one likes; a poor search costs tightness, never truth. Two
# things must hold in the code for that: every row of a lawful plan is matched by an
# offered option that costs and uses no more (list_choices drops an option only for a
# cheaper, smaller one of its kind); and a job that may not be moved is charged no more
# than it uses (a pinned job is not charged NODES, as it may meet others).
#
# L is concave and piecewise linear in u, and its slope along u_r is what is used of r
# minus C_r: so one multiplier is found by halving on the sign of (used - C_r). We do
# that for GPUS inside, WIDE and NODES outside, one after the other. What is left, the
# integrality gap of GPUS and NODES, the dynamic program closes where it is cheap (it
# keeps WIDE priced: a third axis would make it dear).

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from coadapt.goodput.compiled import compiled_lean, lean_part, variable
from coadapt.policies.pollux.objective import FloatArray, IntArray
from coadapt.policies.pollux.round_costs import (
    GPUS,
    KEEPING,
    LEAST,
    MOST,
    NODES,
    NUM_RESOURCES,
    PINNED,
    WAITING,
    WIDE,
    DualBound,
    PackedCosts,
    RoundCosts,
    packed,
)

NO_REPLICAS = variable(0)
KEEP = -1  # in place of a replica count: the job keeps what it holds
# rows of DualSearch
BEST = 0
TRIAL = 1
CHEAP = 2
NEXT = 3
# of the interval in which a multiplier is searched: its error is 3e-8 of the interval
HALVINGS = 25


class Choices(NamedTuple):
    """What each job may choose: a count, what it uses of each resource, its cost. O
    options, size_J used.

    count_JO is the replica count as the solver knows it: KEEP where the job keeps what
    it holds.
    """

    count_JO: IntArray
    use_JOR: FloatArray
    cost_JO: FloatArray
    size_J: IntArray


def list_choices(costs: RoundCosts, *, every_cut: bool = False) -> Choices:
    """Return each job's choices, without those that cost no less than a smaller one of
    their kind.

    every_cut: offer a count on each number of nodes, not only on the fewest and on the
    most.
    """
    num_jobs = costs.wait_J.size
    num_cuts = max(costs.capacity_N.size, 2) if every_cut else 2
    width = (1 + num_cuts) * costs.change_JSK.shape[2] + 2
    choices = Choices(
        count_JO=np.zeros((num_jobs, width), dtype=np.int64),
        use_JOR=np.zeros((num_jobs, width, NUM_RESOURCES)),
        cost_JO=np.zeros((num_jobs, width)),
        size_J=np.zeros(num_jobs, dtype=np.int64),
    )
    sizes_N = np.sort(costs.capacity_N)[::-1]
    fewest_K = np.repeat(
        np.arange(1, sizes_N.size + 1), sizes_N
    )  # nodes that 1, 2, … replicas need at least
    _fill_choices(
        packed(costs),
        choices,
        np.concatenate((np.zeros(1, dtype=np.int64), fewest_K)),
        every_cut,
    )
    return choices


@compiled_lean
def _fill_choices(
    costs: PackedCosts, choices: Choices, fewest_K: IntArray, every_cut: bool
) -> None:
    for job in range(choices.size_J.size):
        held = _offer_present(costs, choices, job)
        if costs.limit_JL[job, PINNED] and held > 0:
            continue
        least = costs.cost_JC[job, WAITING]
        for count in range(
            costs.limit_JL[job, LEAST],
            min(costs.limit_JL[job, MOST], fewest_K.size - 1) + 1,
        ):
            cost = costs.change_JSK[job, 0, count]
            if fewest_K[count] == 1 and cost < least:
                least = cost
                _offer(choices, job, count, cost)
                choices.use_JOR[job, choices.size_J[job] - 1, WIDE] = costs.wide_K[
                    count
                ]
        _offer_spanning(costs, choices, job, fewest_K, every_cut)


@lean_part
def _offer(choices: Choices, job: int, count: int, cost: float) -> None:
    place = choices.size_J[job]
    choices.count_JO[job, place] = count
    choices.cost_JO[job, place] = cost
    choices.use_JOR[job, place, GPUS] = count
    choices.size_J[job] += 1


@lean_part
def _offer_present(costs: PackedCosts, choices: Choices, job: int) -> int:
    """Offer to wait (not to a pinned job that holds GPUs) and to keep; return the GPUs
    that the job holds.
    """
    held = NO_REPLICAS
    num_nodes = 0
    wide = 0.0
    for node in range(costs.current_JN.shape[1]):
        piece = costs.current_JN[job, node]
        held += piece
        num_nodes += piece > 0
        wide += costs.wide_K[piece]
    if held == 0 or not costs.limit_JL[job, PINNED]:
        _offer(choices, job, NO_REPLICAS, costs.cost_JC[job, WAITING])
    if held > 0:
        place = choices.size_J[job]
        _offer(choices, job, held, costs.cost_JC[job, KEEPING])
        choices.count_JO[job, place] = KEEP
        choices.use_JOR[job, place, WIDE] = wide
        if costs.exclusive and num_nodes > 1 and not costs.limit_JL[job, PINNED]:
            choices.use_JOR[job, place, NODES] = num_nodes
    return held


@lean_part
def _offer_spanning(
    costs: PackedCosts, choices: Choices, job: int, fewest_K: IntArray, every_cut: bool
) -> None:
    """Offer each count on as few nodes as possible, on so many that hardly a piece is
    wide, if asked between.

    r replicas on n nodes have at least (r - n·narrow) / (largest - narrow) wide pieces,
    which is linear in n: what lies between the two ends is no better at any prices.
    """
    largest = costs.wide_K.size - 1
    narrow = (largest + 1) // 2 - 1  # the largest piece that is not wide at all
    least = costs.cost_JC[job, WAITING]
    for count in range(
        max(costs.limit_JL[job, LEAST], 2),
        min(costs.limit_JL[job, MOST], fewest_K.size - 1) + 1,
    ):
        cost = costs.change_JSK[job, 1, count]
        fewest = max(fewest_K[count], 2)
        if cost >= least or fewest > costs.max_nodes:
            # a smaller count, or waiting, costs no more and uses no more; or no room
            # for so many
            continue
        least = cost
        # Nodes of one GPU have no narrow pieces: there more nodes spare none, and one
        # offer is all.
        none_wide = count // narrow if narrow > 0 else fewest
        most = max(min(none_wide, costs.max_nodes, costs.current_JN.shape[1]), fewest)
        for num_nodes in range(
            fewest, most + 1, 1 if every_cut else max(most - fewest, 1)
        ):
            wide = (count - num_nodes * narrow) / (largest - narrow)
            place = choices.size_J[job]
            _offer(choices, job, count, cost)
            choices.use_JOR[job, place, WIDE] = (
                wide if num_nodes < none_wide or narrow == 0 else 0.0
            )
            choices.use_JOR[job, place, NODES] = num_nodes if costs.exclusive else 0


def capacity_of(costs: RoundCosts) -> FloatArray:
    """Return what the cluster has of each resource (num_resources,)."""
    wide = costs.wide_K[costs.capacity_N].sum()
    return np.array(
        [costs.capacity_N.sum(), costs.capacity_N.size, wide], dtype=np.float64
    )


class DualSearch(NamedTuple):
    """A search for multipliers: the best so far, those on trial, and what jobs choose
    at each.

    highest: no multiplier is larger. multiplier_SR, option_SJ: rows BEST, TRIAL and, of
    options alone, CHEAP and NEXT, which are scratch like reduced_cost_J.
    """

    capacity_R: FloatArray
    highest: float
    multiplier_SR: FloatArray
    option_SJ: IntArray
    reduced_cost_J: FloatArray


def lagrangian_relaxation(
    costs: RoundCosts, choices: Choices
) -> tuple[DualBound, IntArray]:
    """Return multipliers with the bound that they prove, and choices near it that fit
    the GPUs.
    """
    num_jobs = costs.wait_J.size
    # Beyond what the best option saves over waiting, every job waits, and nothing is
    # used but by pinned jobs, which have one option: the price of stopping one, out of
    # all proportion, would coarsen the search.
    saving_J = costs.wait_J - choices.cost_JO.min(axis=1)
    search = DualSearch(
        capacity_R=capacity_of(costs),
        highest=float(saving_J[~costs.pinned_J].max(initial=0.0)),
        multiplier_SR=np.zeros((2, NUM_RESOURCES)),
        option_SJ=np.zeros((4, num_jobs), dtype=np.int64),
        reduced_cost_J=np.zeros(num_jobs),
    )
    bound = _maximise_dual(choices, search)
    multiplier_R = search.multiplier_SR[BEST]
    _choose_at(choices, multiplier_R, search.reduced_cost_J, search.option_SJ[NEXT])
    return DualBound(bound, multiplier_R, search.reduced_cost_J), search.option_SJ[BEST]


@compiled_lean
def _maximise_dual(choices: Choices, search: DualSearch) -> float:
    multiplier_R = search.multiplier_SR[BEST]
    option_J = search.option_SJ[BEST]
    trial_R = search.multiplier_SR[TRIAL]
    trial_J = search.option_SJ[TRIAL]
    bound = _maximise_over_gpus(choices, search)
    _copy(trial_R, multiplier_R)
    _copy(trial_J, option_J)
    # Raised from 0 one after the other, each with GPUs priced again: where neither
    # binds, both stay 0.
    for side in (WIDE, NODES):
        low = 0.0
        high = search.highest
        for _ in range(HALVINGS):
            used = 0.0
            for job in range(trial_J.size):
                used += choices.use_JOR[job, trial_J[job], side]
            if used > search.capacity_R[side]:
                low = trial_R[side]
            else:
                high = trial_R[side]
            if high == 0.0:
                break
            _copy(multiplier_R, trial_R)
            trial_R[side] = 0.5 * (low + high)
            value = _maximise_over_gpus(choices, search)
            if value > bound:
                bound = value
                _copy(trial_R, multiplier_R)
                _copy(trial_J, option_J)
        _copy(multiplier_R, trial_R)
        _copy(option_J, trial_J)
    return bound


@lean_part
def _copy(source: FloatArray | IntArray, target: FloatArray | IntArray) -> None:
    for place in range(source.size):
        target[place] = source[place]


@lean_part
def _maximise_over_gpus(choices: Choices, search: DualSearch) -> float:
    """Maximise over the multiplier of GPUs by halving; the choices are the cheapest
    that fit, then filled up.

    Writes the multiplier and the choices on TRIAL; returns the bound.
    """
    multiplier_R = search.multiplier_SR[TRIAL]
    option_J = search.option_SJ[TRIAL]
    cheap_J = search.option_SJ[CHEAP]
    next_J = search.option_SJ[NEXT]
    low = 0.0
    high = search.highest
    best = -np.inf
    best_multiplier = 0.0
    for step in range(HALVINGS + 1):
        multiplier_R[GPUS] = 0.0 if step == 0 else 0.5 * (low + high)
        bound = _choose_at(choices, multiplier_R, search.reduced_cost_J, next_J)
        used = 0.0
        for resource in range(search.capacity_R.size):
            bound -= multiplier_R[resource] * search.capacity_R[resource]
        for job in range(option_J.size):
            used += choices.use_JOR[job, next_J[job], GPUS]
        if bound > best:
            best = bound
            best_multiplier = multiplier_R[GPUS]
        if used > search.capacity_R[GPUS]:
            low = multiplier_R[GPUS]
            _copy(next_J, cheap_J)
        else:
            high = multiplier_R[GPUS]
            _copy(next_J, option_J)
            if step == 0:
                _copy(next_J, cheap_J)
                break
    multiplier_R[GPUS] = best_multiplier
    _fill_up(choices, search.capacity_R[GPUS], cheap_J, option_J)
    return best


@lean_part
def _fill_up(
    choices: Choices, num_gpus: float, cheap_J: IntArray, option_J: IntArray
) -> None:
    """Let jobs choose as at a lower price, one after the other, while the GPUs last.

    Alike jobs change their choice at the same price: without this their GPUs would lie
    idle all at once.
    """
    left = num_gpus
    for job in range(option_J.size):
        left -= choices.use_JOR[job, option_J[job], GPUS]
    for job in range(option_J.size):
        more = (
            choices.use_JOR[job, cheap_J[job], GPUS]
            - choices.use_JOR[job, option_J[job], GPUS]
        )
        if 0.0 < more <= left:
            option_J[job] = cheap_J[job]
            left -= more


@compiled_lean
def _choose_at(
    choices: Choices,
    multiplier_R: FloatArray,
    reduced_cost_J: FloatArray,
    option_J: IntArray,
) -> float:
    """Let each job choose at these multipliers; write its reduced cost and its choice,
    return the sum.
    """
    total = 0.0
    for job in range(option_J.size):
        reduced_cost_J[job] = np.inf
        for option in range(choices.size_J[job]):
            reduced = choices.cost_JO[job, option]
            for resource in range(multiplier_R.size):
                reduced += (
                    multiplier_R[resource] * choices.use_JOR[job, option, resource]
                )
            if reduced < reduced_cost_J[job]:
                reduced_cost_J[job] = reduced
                option_J[job] = option
        total += reduced_cost_J[job]
    return total


def exact_relaxation(
    choices: Choices,
    num_gpus: int,
    num_nodes: int,
    wide_multiplier: float,
    option_J: IntArray,
) -> float:
    """Return the least sum of costs and of `wide_multiplier` per wide piece that fits
    GPUs and nodes.

    Writes each job's choice. Dynamic programming; work: options of all jobs x GPUs x
    nodes.
    """
    best_BGN = np.zeros((2, num_gpus + 1, num_nodes + 1))
    taken_JGN = np.zeros((option_J.size, num_gpus + 1, num_nodes + 1), np.int16)
    return _exact(choices, wide_multiplier, best_BGN, taken_JGN, option_J)


@compiled_lean
def _exact(
    choices: Choices,
    wide_multiplier: float,
    best_BGN: FloatArray,
    taken_JGN: NDArray[np.int16],
    option_J: IntArray,
) -> float:
    """Fill the tables job by job, best_BGN alternately; write each job's choice, return
    the least sum.
    """
    num_gpus = best_BGN.shape[1] - 1
    num_nodes = best_BGN.shape[2] - 1
    for job in range(option_J.size):
        # A cell: the least cost of the jobs so far within g GPUs and n nodes (not: with
        # exactly as many).
        best_GN = best_BGN[job % 2]
        next_GN = best_BGN[1 - job % 2]
        for g in range(num_gpus + 1):
            for n in range(num_nodes + 1):
                next_GN[g, n] = np.inf
        for option in range(choices.size_J[job]):
            gpus = int(choices.use_JOR[job, option, GPUS])
            nodes = int(choices.use_JOR[job, option, NODES])
            cost = (
                choices.cost_JO[job, option]
                + wide_multiplier * choices.use_JOR[job, option, WIDE]
            )
            for g in range(gpus, num_gpus + 1):
                for n in range(nodes, num_nodes + 1):
                    total = best_GN[g - gpus, n - nodes] + cost
                    if total < next_GN[g, n]:
                        next_GN[g, n] = total
                        taken_JGN[job, g, n] = option
    # Read the choices back from the last job to the first.
    g = num_gpus
    n = num_nodes
    for job in range(option_J.size - 1, -1, -1):
        option_J[job] = taken_JGN[job, g, n]
        g -= int(choices.use_JOR[job, option_J[job], GPUS])
        n -= int(choices.use_JOR[job, option_J[job], NODES])
    return float(best_BGN[option_J.size % 2, num_gpus, num_nodes])
