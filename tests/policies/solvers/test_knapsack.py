"""The round's program against all choices, and the bound that must hold whatever it
finds.
"""

import itertools

import numpy as np
import pytest

from coadapt.policies.solvers.knapsack import (
    MAX_EXACT_STEPS,
    WAIT,
    Options,
    choose_at,
    prove,
    solve,
)


def draw(seed: int, num_types: int, num_tenants: int) -> Options:
    rng = np.random.default_rng(seed)
    shape = (int(rng.integers(1, 6)), int(rng.integers(1, 5)))
    worth_JO = np.where(rng.random(shape) < 0.2, -1.0, rng.uniform(0.0, 10.0, shape))
    tenant_J = np.full(shape[0], -1)
    if num_tenants:
        tenant_J = rng.integers(-1, num_tenants, shape[0])
        tenant_J[tenant_J >= 0] += num_types
    return Options(
        worth_JO,
        rng.integers(1, 9, shape),
        rng.integers(0, num_types, shape),
        tenant_J,
        rng.integers(0, 12, num_types + num_tenants),
        num_types,
    )


def best_value(options: Options) -> float:
    num_jobs, num_options = options.value_JO.shape
    choices = itertools.product(range(-1, num_options), repeat=num_jobs)
    return max(
        value for choice in choices if (value := worth(options, choice)) is not None
    )


def worth(options: Options, choice: tuple[int, ...]) -> float | None:
    """Return what a choice is worth, None if it is not lawful."""
    used_R = np.zeros(len(options.capacity_R))
    total = 0.0
    for j, o in enumerate(choice):
        if o == WAIT:
            continue
        if options.value_JO[j, o] < 0.0:
            return None
        total += float(options.value_JO[j, o])
        used_R[options.type_JO[j, o]] += options.gpus_JO[j, o]
        if options.tenant_J[j] >= 0:
            used_R[options.tenant_J[j]] += options.gpus_JO[j, o]
    return total if (used_R <= options.capacity_R).all() else None


@pytest.mark.parametrize("num_types", [1, 2, 3, 4])
@pytest.mark.parametrize("seed", range(30))
def test_without_quotas_it_is_the_best_of_all(seed: int, num_types: int) -> None:
    options = draw(seed, num_types, 0)
    choice = solve(options)
    assert choice.value == pytest.approx(best_value(options))
    assert choice.bound == pytest.approx(choice.value)


@pytest.mark.parametrize("seed", range(30))
def test_with_types_and_quotas_it_is_lawful_and_the_bound_holds(seed: int) -> None:
    options = draw(seed, 1 + seed % 3, 1 + seed % 2)
    choice = solve(options)
    assert worth(options, tuple(choice.option_J.tolist())) == pytest.approx(
        choice.value
    )
    assert choice.value <= best_value(options) + 1e-9 <= choice.bound + 2e-9


@pytest.mark.parametrize("seed", range(30))
def test_prices_prove_a_bound_without_a_choice(seed: int) -> None:
    options = draw(seed, 1 + seed % 3, seed % 2)
    bound, price_R = prove(options)
    assert best_value(options) <= bound + 1e-9
    assert choose_at(
        options, price_R, np.empty_like(options.tenant_J)
    ) == pytest.approx(bound)


def crowd(num_jobs: int, capacity: list[int]) -> Options:
    """Return jobs whose goodput grows by a power of the GPUs, on some types faster than
    on others.
    """
    rng = np.random.default_rng(0)
    num_types = len(capacity)
    gpus_O = np.tile([1, 2, 3, 4, 8, 12, 16], num_types)
    type_O = np.repeat(np.arange(num_types), 7)
    speed_JO = rng.uniform(0.2, 1.0, (num_jobs, num_types))[:, type_O]
    shape = speed_JO.shape
    return Options(
        speed_JO * gpus_O ** rng.uniform(0.4, 0.9, (num_jobs, 1)),
        np.broadcast_to(gpus_O, shape).copy(),
        np.broadcast_to(type_O, shape).copy(),
        np.full(num_jobs, -1),
        np.array(capacity),
        num_types,
    )


def test_a_cluster_like_that_of_sia_is_solved_exactly() -> None:
    choice = solve(crowd(40, [24, 16, 24]))
    assert choice.value == pytest.approx(choice.bound)


def test_types_that_are_too_large_together_come_near_the_bound() -> None:
    capacity = [200, 300, 100]
    assert np.prod(capacity) > MAX_EXACT_STEPS / 4
    choice = solve(crowd(150, capacity))
    assert 0.99 * choice.bound <= choice.value <= choice.bound


def test_a_job_that_is_owed_gpus_does_not_blur_the_price_for_the_others() -> None:
    """What is owed makes its worth larger: here by so much that the others' price is
    1e-14 of the highest.
    """
    plain = crowd(30, [40])
    owed = crowd(31, [43])
    owed.value_JO[:30] = plain.value_JO
    owed.value_JO[30] = -1.0
    owed.value_JO[30, 2] = 1e14  # on three GPUs
    prices = []
    for options in (plain, owed):
        _, price_R = prove(options)
        prices.append(price_R[0])
    assert prices[0] > 0.1
    assert prices[1] == pytest.approx(prices[0], rel=1e-11)
