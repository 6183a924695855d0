"""Stepping to a feasible choice against the same steps, each found by looking at all
jobs.
"""

from itertools import product

import numpy as np
import pytest

from coadapt.policies.solvers.knapsack import (
    WAIT,
    Options,
    choose_at,
    make_feasible,
)


def draw(seed: int, num_jobs: int = 25) -> Options:
    """Return jobs that want about twice the GPUs that there are: one to three types, up
    to two quotas.
    """
    rng = np.random.default_rng(seed)
    num_types = 1 + seed % 3
    num_tenants = seed // 3 % 3
    shape = num_jobs, 3 * num_types
    gpus_JO = rng.integers(1, 9, shape)
    value_JO = gpus_JO ** rng.uniform(0.3, 0.9, shape) * rng.integers(
        1, 4, shape
    )  # some are alike
    value_JO[rng.random(shape) < 0.2] = -1.0
    tenant_J = (
        rng.integers(-1, num_tenants, num_jobs)
        if num_tenants
        else np.full(num_jobs, -1)
    )
    tenant_J[tenant_J >= 0] += num_types
    of_type_T = rng.integers(0, 80 // num_types, num_types)
    quota_Q = rng.integers(5, 30, num_tenants)
    type_JO = rng.integers(0, num_types, shape)
    return Options(
        value_JO, gpus_JO, type_JO, tenant_J, np.append(of_type_T, quota_Q), num_types
    )


def value_of(options: Options, j: int, o: int) -> float:
    return 0.0 if o == WAIT else float(options.value_JO[j, o])


def used_by(options: Options, j: int, o: int) -> np.ndarray:
    used_R = np.zeros(len(options.capacity_R), dtype=int)
    if o != WAIT:
        used_R[options.type_JO[j, o]] += options.gpus_JO[j, o]
        if options.tenant_J[j] >= 0:
            used_R[options.tenant_J[j]] += options.gpus_JO[j, o]
    return used_R


def step_by_step(
    options: Options, option_J: list[int], price_R: np.ndarray
) -> list[int]:
    """Return the feasible choice that steps lead to, the best of all steps each
    time.
    """
    num_jobs, num_options = options.value_JO.shape
    left_R = options.capacity_R - sum(
        used_by(options, j, o) for j, o in enumerate(option_J)
    )

    def go(j: int, new: int) -> None:
        left_R[:] += used_by(options, j, option_J[j]) - used_by(options, j, new)
        option_J[j] = new

    def loss(j: int, new: int, r: int) -> float:
        fewer = int((used_by(options, j, option_J[j]) - used_by(options, j, new)).max())
        less = value_of(options, j, option_J[j]) - value_of(options, j, new)
        return less / min(fewer, -left_R[r]) if less > 0.0 else less

    def is_down(j: int, o: int, r: int) -> bool:
        old = option_J[j]
        if old == WAIT or used_by(options, j, old)[r] == 0:
            return False
        if o == WAIT:
            return True
        fewer = options.gpus_JO[j, o] < options.gpus_JO[j, old]
        return bool(
            fewer
            and options.type_JO[j, o] == options.type_JO[j, old]
            and options.value_JO[j, o] > 0.0
        )

    def rank(j: int, o: int) -> float:
        old = option_J[j]
        gain = options.value_JO[j, o] - value_of(options, j, old)
        needs_R = used_by(options, j, o) - used_by(options, j, old)
        needs_R[: options.num_types] = np.maximum(needs_R[: options.num_types], 0)
        if options.value_JO[j, o] <= 0.0 or gain <= 1e-12 or (needs_R > left_R).any():
            return 0.0
        more = options.gpus_JO[j, o] - (0 if old == WAIT else options.gpus_JO[j, old])
        cost = price_R[options.type_JO[j, o]] * more
        return (
            float(gain / max(cost, 1e-12)) if cost > 0.0 else float(1e12 * (1.0 + gain))
        )

    for r in range(len(left_R)):
        while left_R[r] < 0:
            steps = [
                s
                for s in product(range(num_jobs), range(-1, num_options))
                if is_down(*s, r)
            ]
            go(*min(steps, key=lambda step: loss(*step, r)))
    while True:
        ranks = {
            step: rank(*step) for step in product(range(num_jobs), range(num_options))
        }
        best = max(ranks, key=lambda step: ranks[step])
        if ranks[best] <= 0.0:
            return option_J
        go(*best)


@pytest.mark.parametrize("seed", range(60))
def test_each_step_is_the_best_of_all(seed: int) -> None:
    options = draw(seed)
    rng = np.random.default_rng(seed)
    price_R = np.zeros(len(options.capacity_R))
    option_J = np.empty(25, dtype=np.int64)
    if seed % 2:
        price_R[:] = rng.uniform(0.0, 1.5, len(price_R))
    choose_at(options, price_R, option_J)  # at no price too much, at some too little
    if seed % 4 > 1:
        drawn_J = rng.integers(
            0, options.value_JO.shape[1], 25
        )  # who may have less than fewer GPUs bring
        option_J = np.where(
            options.value_JO[np.arange(25), drawn_J] > 0.0, drawn_J, WAIT
        )
    expected = step_by_step(options, option_J.tolist(), price_R)
    value = make_feasible(options, option_J, price_R)
    assert option_J.tolist() == expected
    assert value == pytest.approx(
        sum(value_of(options, j, o) for j, o in enumerate(expected))
    )
