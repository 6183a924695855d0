"""The relaxation's bound where it is hardest: on rounds whose counts and costs the test
chose.
"""

from collections.abc import Mapping
from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from coadapt.model import JobView, RescaleContract
from coadapt.policies.pollux import relaxation
from coadapt.policies.pollux.objective import (
    FloatArray,
    RoundProblem,
    job_cost,
    job_utility,
)
from coadapt.policies.pollux.round_costs import WIDE, RoundCosts, round_costs
from coadapt.policies.pollux.solve import relax, solve
from tests.policies.pollux.stage import problem_of, trained
from tests.policies.stage import nodes, on, view

ROUNDING = 1e-9  # relative, of sums of a few costs


def test_a_row_between_the_fewest_nodes_and_no_wide_piece_does_not_beat_the_bound() -> (
    None
):
    """16 replicas as (8, 3, 3, 2) have one wide piece on four nodes; two nodes need
    two, and none needs five.

    Another job keeps four nodes and seven of the others have a wide piece each, so
    neither end fits.
    """
    others = [trained(f"one-node-{n}", limits=(5, 5)) for n in range(9)]
    holder = trained("holder", held=on(n4=1, n5=1, n6=1, n7=1), limits=(4, 4))
    seen = view(
        nodes(*[8] * 8), trained("wide", limits=(16, 16)), holder, *others, at=3600.0
    )
    want = {"wide": (1, 16, 5.0), "holder": (1, 4, 3.0)} | {
        job.id: (0, 5, 1.0) for job in others
    }
    problem = _wanting(problem_of(seen), want)
    row_JN = problem.current_JN.copy()
    name_J = [job.id for job in problem.jobs]
    row_JN[name_J.index("wide"), :4] = (8, 3, 3, 2)
    for node, job in zip(range(1, 8), others, strict=False):
        row_JN[name_J.index(job.id), node] = 5
    assert (row_JN.sum(axis=0) <= problem.capacity_N).all()
    relaxed = relax(round_costs(problem))
    assert relaxed.dual.multiplier_R[WIDE] > 0.0
    assert (
        relaxed.bound
        <= job_cost(job_utility(problem, row_JN), problem.options.power).sum()
    )


@pytest.mark.parametrize("exclusive", [True, False])
@pytest.mark.parametrize(
    "sizes", [(3,) * 5, (4,) * 5, (8,) * 4, (5, 4, 2, 1), (2, 2), (1, 1, 1)], ids=str
)
def test_every_row_has_an_offer_that_costs_and_uses_no_more(
    sizes: tuple[int, ...], exclusive: bool
) -> None:
    """Of each resource, where every cut is offered; at any prices together, where the
    two ends are.
    """
    rng = np.random.default_rng(len(sizes))
    for most_nodes in (1, 2, 3, len(sizes)):
        costs = _one_job(sizes, rng)._replace(max_nodes=most_nodes, exclusive=exclusive)
        used_XR, cost_X = _all_rows(costs)
        every_OR, every_cost_O = _offers(relaxation.list_choices(costs, every_cut=True))
        cheaper_XO = every_cost_O <= cost_X[:, None]
        assert (
            (cheaper_XO & (every_OR <= used_XR[:, None] + ROUNDING).all(axis=2))
            .any(axis=1)
            .all()
        )
        end_OR, end_cost_O = _offers(relaxation.list_choices(costs))
        for price_R in rng.exponential(1.0, (50, 3)):
            least = (end_cost_O + end_OR @ price_R).min()
            assert least <= (cost_X + used_XR @ price_R).min() + ROUNDING


def _one_job(sizes: tuple[int, ...], rng: np.random.Generator) -> RoundCosts:
    """Return a round of one job whose speedup is a random walk of its replicas, upwards
    for the most part.
    """
    problem = problem_of(
        view(nodes(*sizes), trained("only", limits=(1, sum(sizes))), at=3600.0)
    )
    speedup_JSK = np.maximum(
        rng.normal(0.5, 1.0, problem.speedup_JSK.shape).cumsum(axis=2), 0.0
    )
    speedup_JSK[:, :, 0] = 0.0
    options = replace(problem.options, power=1.0)
    return round_costs(
        replace(problem, speedup_JSK=speedup_JSK, options=options, rho_J=np.ones(1))
    )


def _all_rows(costs: RoundCosts) -> tuple[FloatArray, FloatArray]:
    """Return what each row that the job may be given uses of each resource, and what it
    costs.
    """
    uses = []
    prices = []
    for row_N in product(*(range(size + 1) for size in costs.capacity_N)):
        total = sum(row_N)
        num_nodes = sum(count > 0 for count in row_N)
        if 0 < total <= costs.max_J[0] and num_nodes <= costs.max_nodes:
            spanned = num_nodes if costs.exclusive and num_nodes > 1 else 0
            uses.append((total, spanned, sum(costs.wide_K[count] for count in row_N)))
            prices.append(costs.change_JSK[0, min(num_nodes, 2) - 1, total])
    return np.array(uses, dtype=np.float64), np.array(prices)


def _offers(choices: relaxation.Choices) -> tuple[FloatArray, FloatArray]:
    """Return what each offer to the only job uses, and what it costs."""
    return choices.use_JOR[0, : choices.size_J[0]], choices.cost_JO[
        0, : choices.size_J[0]
    ]


def test_a_frozen_job_leaves_the_multipliers_as_sharp_as_they_are_without_one() -> None:
    """What it would cost to stop it, a million times the dearest, must not set the
    scale of the search.
    """
    jobs = [
        trained(f"job-{n:02d}", profiled=2 ** (n % 4), age=600.0 + n) for n in range(39)
    ]
    costs = round_costs(
        problem_of(view(nodes(*[4] * 16), _frozen("frozen", n0=4), *jobs, at=3600.0))
    )
    dual, _ = relaxation.lagrangian_relaxation(costs, relaxation.list_choices(costs))
    assert dual.bound == pytest.approx(relax(costs).bound, rel=0.001)


@pytest.mark.parametrize("held", [(4,), (2, 2)], ids=["one too large", "two too many"])
def test_frozen_jobs_that_a_smaller_cluster_cannot_hold_leave_a_bound_and_the_rest(
    held: tuple[int, ...],
) -> None:
    frozen = [_frozen(f"frozen-{n}", n0=count) for n, count in enumerate(held)]
    problem = problem_of(view(nodes(3), *frozen, trained("free"), at=3600.0))
    solution = solve(problem)
    cost = job_cost(job_utility(problem, solution.rows_JN), problem.options.power).sum()
    assert solution.bound <= cost * (1 + ROUNDING)
    assert solution.rows_JN[[job.id for job in problem.jobs].index("free")].sum() > 0


def _frozen(name: str, **held: int) -> JobView:
    job = trained(name, held=on(**held))
    return replace(job, spec=replace(job.spec, contract=RescaleContract.FROZEN))


def _wanting(
    problem: RoundProblem, want: Mapping[str, tuple[int, int, float]]
) -> RoundProblem:
    """Return the problem with one speedup per job, by name: shape, least replicas, and
    what they bring.

    Total speedup counts, and changes cost nothing, unless a job holds replicas: such a
    job loses all.
    """
    speedup_JSK = np.zeros_like(problem.speedup_JSK)
    for number, job in enumerate(problem.jobs):
        shape, count, speedup = want[job.id]
        speedup_JSK[number, shape, count:] = speedup
    rho_J = np.where(problem.current_JN.any(axis=1), 0.0, 1.0)
    options = replace(problem.options, power=1.0)
    return replace(problem, options=options, speedup_JSK=speedup_JSK, rho_J=rho_J)
