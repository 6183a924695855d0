"""Solving a Pollux round nearly exactly: a relaxation bounds it from below, a local
search comes near that.

Nothing is drawn at random.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from coadapt.policies.pollux import local_search, relaxation
from coadapt.policies.pollux.objective import IntArray, RoundProblem, Solution
from coadapt.policies.pollux.round_costs import (
    WIDE,
    DualBound,
    PackedCosts,
    PartialPlan,
    RoundCosts,
    empty_plan,
    packed,
    round_costs,
)

# Least factor on the speedup of a job, used if a change would leave it no time to train
# (ρ = 0). It does not affect the objective, but lets a free GPU be used.
LEAST_RESCALE_FACTOR = 1e-9
# If a plan is closer to the bound than this share of it, no other start is tried.
NEGLIGIBLE = 1e-9
# Above this many inner steps (measured: 1 ns each) the exact relaxation gives way to
# multipliers alone.
MAX_EXACT_STEPS = 5_000_000
# Rows tried while improving plans (measured: 4 µs each at 400 jobs on 256 nodes).
MAX_TRIALS = 20_000


def solve(problem: RoundProblem) -> Solution:
    """Return a plan with nearly the least sum of costs, and the bound that proves how
    near.
    """
    relaxed = relax(round_costs(problem, least_factor=LEAST_RESCALE_FACTOR))
    costs = packed(relaxed.costs)
    best = empty_plan(relaxed.costs)
    trials = MAX_TRIALS
    enough = relaxed.bound + NEGLIGIBLE * abs(relaxed.bound)
    for plan in _starts(relaxed, costs):
        if plan.cost_J.sum() > enough:
            trials -= local_search.improve(costs, plan, relaxed.dual, trials)
        if plan.cost_J.sum() < best.cost_J.sum():
            best = plan
        if trials <= 0 or best.cost_J.sum() <= enough:
            break
    return Solution(best.row_JN, relaxed.bound)


@dataclass(frozen=True, slots=True)
class Relaxed:
    """A round without placing. bound: no lawful plan costs less. wanted_J: replica
    counts that reach it.

    order_J: jobs in the order in which they are best placed.
    """

    costs: RoundCosts
    dual: DualBound
    bound: float
    wanted_J: IntArray
    order_J: IntArray


def relax(costs: RoundCosts) -> Relaxed:
    """Return the relaxed round: solved exactly where that is cheap, else by multipliers
    alone.
    """
    choices = relaxation.list_choices(costs)
    dual, option_J = relaxation.lagrangian_relaxation(costs, choices)
    bound = dual.bound
    num_gpus, num_nodes, num_wide = relaxation.capacity_of(costs)
    multiplier = float(dual.multiplier_R[WIDE])
    steps_per_choice = num_gpus * num_nodes
    if (
        choices.size_J.sum() * steps_per_choice <= MAX_EXACT_STEPS
        and costs.exclusive
        and multiplier > 0.0
    ):
        choices = relaxation.list_choices(costs, every_cut=True)
    if choices.size_J.sum() * steps_per_choice <= MAX_EXACT_STEPS:
        exact = relaxation.exact_relaxation(
            choices, int(num_gpus), int(num_nodes), multiplier, option_J
        )
        bound = max(bound, exact - multiplier * num_wide)
    every_J = np.arange(len(option_J))
    wanted_J = choices.count_JO[every_J, option_J]
    wide_J = choices.use_JOR[every_J, option_J, WIDE]
    return Relaxed(costs, dual, bound, wanted_J, np.lexsort((-wanted_J, -wide_J)))


def _starts(relaxed: Relaxed, costs: PackedCosts) -> Iterator[PartialPlan]:
    """Yield plans to improve: the relaxation's counts placed, wide pieces first, and
    the present plan.
    """
    present_J = np.where(costs.current_JN.any(axis=1), relaxation.KEEP, 0)
    for count_J in (relaxed.wanted_J, present_J):
        plan = empty_plan(relaxed.costs)
        local_search.place_counts(costs, plan, count_J, relaxed.order_J)
        yield plan
