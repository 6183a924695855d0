"""The published search of Pollux: its parts against their definitions, its memory, its
seed.
"""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coadapt.model import ClusterView, Grant, Plan
from coadapt.policies import create_policy
from coadapt.policies.pollux import nsga2
from coadapt.policies.pollux.nsga2 import Population, empty_population
from coadapt.policies.pollux.objective import job_cost, job_speedup, job_utility
from coadapt.policies.pollux.policy import PolluxGenetic
from coadapt.policies.pollux.round_costs import RoundCosts, round_costs
from tests.policies.pollux.stage import NOW, problem_of, tiny_views, trained
from tests.policies.stage import counts, nodes, on, view


def problem(num_jobs: int = 3) -> RoundCosts:
    return round_costs(
        problem_of(
            view(nodes(4, 4), *(trained(f"job-{n}") for n in range(num_jobs)), at=NOW)
        )
    )


def population_of(values: list[tuple[float, float]], size: int) -> Population:
    population = empty_population(max(size, len(values)), problem())
    population.value_PO[: len(values)] = values
    return population


def fronts_by_definition(values: list[tuple[float, float]]) -> list[int]:
    """Return each candidate's front: peel off those whom nobody left dominates."""
    front = [-1] * len(values)
    left = set(range(len(values)))
    number = 0
    while left:
        best = {
            one
            for one in left
            if not any(
                all(a <= b for a, b in zip(values[other], values[one], strict=True))
                and values[other] != values[one]
                for other in left
            )
        }
        for one in best:
            front[one] = number
        left -= best
        number += 1
    return front


VALUE = st.tuples(st.integers(0, 4).map(float), st.integers(-4, 0).map(float))


@given(st.lists(VALUE, min_size=1, max_size=12), st.integers(1, 12))
def test_the_better_fronts_survive_whole_and_the_last_one_by_its_ends(
    values: list[tuple[float, float]], size: int
) -> None:
    population = population_of(values, size)
    alive = nsga2._survive(population, len(values), size)
    front = fronts_by_definition(values)
    survivors = population.slot_P[:alive].tolist()
    assert alive == min(size, len(values))
    assert [population.rank_P[slot] for slot in range(len(values))] == front
    assert sorted(front[slot] for slot in survivors) == sorted(front)[:alive]
    assert sorted(population.slot_P[: len(values)].tolist()) == list(range(len(values)))
    assert values[survivors[0]] == min(values)


def test_crowding_is_the_distance_of_the_neighbours() -> None:
    """Deb et al. 2002: a share of the front's spread per objective; the ends first, a
    double last.
    """
    population = population_of(
        [(0.0, 0.0), (1.0, -5.0), (1.0, -5.0), (4.0, -6.0), (10.0, -10.0)], 5
    )
    nsga2._survive(population, 5, 5)
    assert population.crowding_P[:5].tolist() == [
        np.inf,
        4 / 10 + 6 / 10,
        0.0,
        9 / 10 + 5 / 10,
        np.inf,
    ]


@given(tiny_views(), st.integers(0, 2**32 - 1))
def test_repair_makes_any_matrix_lawful(seen: ClusterView, seed: int) -> None:
    problem = problem_of(seen)
    rng = np.random.default_rng(seed)
    population = empty_population(1, round_costs(problem))
    rows = rng.integers(0, 4, problem.current_JN.shape)
    given_rows = rows.copy()
    nsga2._repair(round_costs(problem), population, rows, rng)
    total = rows.sum(axis=1)
    spans = (rows > 0) & ((rows > 0).sum(axis=1) > 1)[:, None]
    assert (rows <= given_rows).all()
    assert (rows.sum(axis=0) <= problem.capacity_N).all()
    assert ((total == 0) | ((total >= problem.min_J) & (total <= problem.max_J))).all()
    assert (spans.sum(axis=0) <= 1).all()


@given(tiny_views(), st.integers(0, 2**32 - 1))
def test_objectives_are_those_of_the_shared_definition(
    seen: ClusterView, seed: int
) -> None:
    problem = problem_of(seen)
    rng = np.random.default_rng(seed)
    population = empty_population(1, round_costs(problem))
    rows = population.rows_PJN[0]
    rows[:] = rng.integers(0, 4, rows.shape)
    nsga2._repair(round_costs(problem), population, rows, rng)
    assert nsga2._admit(round_costs(problem), population, 0, 0)
    used = problem.capacity_N[(rows > 0).any(axis=0)].sum()
    expected = (
        job_cost(job_utility(problem, rows), -1.0).sum(),
        -job_speedup(problem, rows).sum() / max(used, 1),
    )
    assert population.value_PO[0] == pytest.approx(expected)


def test_a_candidate_is_admitted_once() -> None:
    population = empty_population(2, problem())
    assert nsga2._admit(problem(), population, 0, 0)
    assert not nsga2._admit(problem(), population, 1, 1)
    population.rows_PJN[1, 0, 0] = 1
    assert nsga2._admit(problem(), population, 1, 1)


def rounds(policy: PolluxGenetic, *views: ClusterView) -> list[Plan]:
    return [policy.allocate(seen) for seen in views]


def test_the_seed_and_the_views_decide() -> None:
    jobs = [trained(f"job-{n}", profiled=4) for n in range(6)]
    first = view(nodes(4, 4, 4), *jobs, at=NOW)
    second = view(nodes(4, 4, 4), *jobs[1:], at=NOW + 60.0)
    one, same, other = (
        rounds(PolluxGenetic(seed=seed, generations=3), first, second)
        for seed in (1, 1, 2)
    )
    assert one == same
    assert one != other


def test_the_last_front_follows_its_jobs_and_nodes() -> None:
    """With one generation nothing is searched: what comes out is what was carried over,
    and repaired.
    """
    old = trained("old", limits=(2, 4), age=6000.0)
    young = trained("young", age=60.0)
    policy = PolluxGenetic(generations=1)
    held = [
        replace(old, grant=Grant(allocation=on(n1=2))),
        replace(young, grant=Grant(allocation=on(n0=1))),
    ]
    assert counts(policy.allocate(view(nodes(2, 2), *held, at=NOW))) == {
        "old": 2,
        "young": 1,
    }
    # Both lost their GPUs; priorities changed; a node and a job went, others came.
    new = trained("new", age=30.0, profiled=0)
    back = [replace(old, usage=replace(old.usage, attained_service_gpu_s=1.0)), new]
    plan = policy.allocate(view(nodes(8, 2)[1:] + nodes(3, name="m"), *back, at=NOW))
    assert plan.allocations == {"old": on(n1=2)}


def test_a_larger_search_finds_no_less() -> None:
    seen = view(
        nodes(*[4] * 8),
        *(trained(f"job-{n}", age=600.0 + n) for n in range(12)),
        at=NOW,
    )
    short, long = (
        PolluxGenetic(generations=generations).allocate(seen).diagnostics["objective"]
        for generations in (2, 60)
    )
    assert short < long


@pytest.mark.parametrize(
    "options", [{"population": 0}, {"generations": 0}, {"power": float("inf")}]
)
def test_bad_options_are_refused(options: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=next(iter(options))):
        create_policy("pollux-genetic", **options)
