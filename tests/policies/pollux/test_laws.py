"""Laws of both solvers of Pollux: lawful plans, a true bound, the best of all where all
are tried.
"""

import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coadapt.model import ClusterView, check_plan
from coadapt.policies import Policy
from coadapt.policies.checks.contract import check_policy
from coadapt.policies.pollux import relaxation
from coadapt.policies.pollux.objective import PolluxOptions, job_cost, job_utility
from coadapt.policies.pollux.policy import Pollux, PolluxGenetic
from coadapt.policies.pollux.round_costs import round_costs
from coadapt.policies.pollux.solve import relax, solve
from tests.policies.pollux.stage import (
    Model,
    best_by_trying_all,
    problem_of,
    tiny_views,
    trained,
)
from tests.policies.stage import nodes, on, view

ROUNDING = 1e-9  # relative, of sums of a few costs
POWERS = (-2.0, -1.0, 0.0, 1.0)


@settings(max_examples=60)
@given(tiny_views(), st.sampled_from(POWERS), st.booleans())
def test_no_plan_of_all_beats_the_bound_nor_ours_the_best_of_all(
    seen: ClusterView, power: float, avoid: bool
) -> None:
    problem = problem_of(seen, PolluxOptions(power=power, avoid_interference=avoid))
    solution = solve(problem)
    cost = float(job_cost(job_utility(problem, solution.rows_JN), power).sum())
    best = best_by_trying_all(problem)
    slack = ROUNDING * abs(best)
    assert solution.bound <= best + slack
    assert best <= cost + slack


def test_our_plan_is_the_best_of_all_on_small_rounds() -> None:
    """Over 200 rounds drawn from a seed; hypothesis would hunt for the one in a
    thousand where it is not.
    """
    rng = np.random.default_rng(0)
    excess = []
    for _ in range(200):
        problem = problem_of(small_view(rng))
        cost = job_cost(job_utility(problem, solve(problem).rows_JN), -1.0).sum()
        excess.append(float(cost) / best_by_trying_all(problem) - 1.0)
    assert sum(share > ROUNDING for share in excess) <= 1
    assert max(excess) < 0.1


def small_view(rng: np.random.Generator) -> ClusterView:
    """Up to three jobs, some of which run, on up to three nodes of three GPUs."""
    free = [3] * int(rng.integers(1, 4))
    jobs = []
    for number in range(int(rng.integers(1, 4))):
        held = {}
        node = int(rng.integers(len(free)))
        if rng.random() < 0.6 and free[node]:
            held[f"n{node}"] = int(rng.integers(1, free[node] + 1))
            free[node] -= held[f"n{node}"]
        model = Model(
            sync_far_s=float(rng.choice((0.12, 0.5))),
            noise=float(rng.choice((30.0, 3000.0))),
        )
        age = float(rng.choice((45.0, 600.0, 6000.0)))
        profiled = int(rng.integers(0, 5))
        jobs.append(
            trained(
                f"job-{number}",
                model=model,
                held=on(**held),
                profiled=profiled,
                age=age,
                rescales=1,
            )
        )
    return view(nodes(*[3] * len(free)), *jobs, at=3600.0)


@settings(max_examples=40)
@given(tiny_views())
def test_plans_are_lawful_and_no_objective_exceeds_the_bound(seen: ClusterView) -> None:
    plan = Pollux().allocate(seen)
    searched = PolluxGenetic(generations=5).allocate(seen)
    check_plan(seen, plan)
    check_plan(seen, searched)
    most = plan.diagnostics["bound"] * (1 + ROUNDING)
    assert plan.diagnostics["objective"] <= most
    assert searched.diagnostics["objective"] <= most
    assert plan.diagnostics["gap"] == pytest.approx(
        max(1 - plan.diagnostics["objective"] / plan.diagnostics["bound"], 0.0)
    )


@settings(max_examples=40)
@given(tiny_views())
def test_the_exact_relaxation_bounds_no_worse_than_multipliers_alone(
    seen: ClusterView,
) -> None:
    costs = round_costs(problem_of(seen))
    dual, _ = relaxation.lagrangian_relaxation(costs, relaxation.list_choices(costs))
    assert relax(costs).bound >= dual.bound
    value = dual.reduced_cost_J.sum() - dual.multiplier_R @ relaxation.capacity_of(
        costs
    )
    assert value == pytest.approx(dual.bound)


@pytest.mark.parametrize("seed", range(3))
def test_the_search_never_beats_the_solver_on_a_busy_cluster(seed: int) -> None:
    jobs = [
        trained(f"job-{number}", profiled=2 ** (number % 4), age=600.0 + number)
        for number in range(6)
    ]
    seen = view(nodes(4, 4, 4, 4), *jobs, at=3600.0)
    solved = Pollux().allocate(seen)
    searched = PolluxGenetic(seed=seed).allocate(seen)
    assert searched.diagnostics["objective"] <= solved.diagnostics["objective"] * (
        1 + ROUNDING
    )


@pytest.mark.parametrize(
    "make", [Pollux, lambda: PolluxGenetic(generations=5)], ids=["exact", "genetic"]
)
def test_both_keep_the_contract(make: Callable[[], Policy]) -> None:
    make().allocate(view(nodes(2), trained("compiles the kernels"), at=3600.0))
    check_policy(make, cases=20, seed=1, timer=time.process_time)


def test_more_jobs_than_gpus_leaves_waiting_only_those_that_must() -> None:
    jobs = [
        replace(trained(f"job-{n:02d}", limits=(1, 4)), submitted_at=3000.0 + n)
        for n in range(12)
    ]
    plan = Pollux().allocate(view(nodes(4, 4), *jobs, at=3600.0))
    assert len(plan.allocations) == 8
    assert all(held.num_replicas == 1 for held in plan.allocations.values())
    assert plan.diagnostics["gap"] < ROUNDING
