"""The fit: Pollux's loss, its gradient, its priors, and how low our search gets."""

import pickle
import subprocess
import sys
import time
from dataclasses import astuple
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from benchmarks.policies.fit_reference import (
    PolluxLoss,
    fit_with_scipy,
    measured_profiles,
    synthetic_profiles,
)
from coadapt.goodput import fit_kernel
from coadapt.goodput.fit import fit_throughput
from coadapt.goodput.profile import Profile, ProfileBuilder
from coadapt.goodput.throughput import PARAM_NAMES, packed_placement, step_time
from coadapt.model import Placement, ThroughputParams

FloatArray = NDArray[np.float64]

fit_kernel.compile_loops()

WORSE = 1.0 + 1e-3  # most that our loss may be above scipy's, as a factor ...
PERFECT = 1e-6  # ... and in absolute terms, where both fit perfectly

TRUTH = ThroughputParams(
    alpha_c=0.05,
    beta_c=0.001,
    alpha_r=0.02,
    beta_r=0.001,
    alpha_n=0.1,
    beta_n=0.01,
    alpha_k=0.4,
    beta_k=0.03,
    gamma=1.5,
)
PLACEMENTS = tuple(
    packed_placement(num_replicas, 4) for num_replicas in (1, 2, 3, 4, 6, 8)
)
RACKS = tuple(Placement((num_replicas, 4), num_racks=2) for num_replicas in (1, 2, 4))


def observe(
    placements: tuple[Placement, ...],
    atomics: tuple[int, ...] = (32, 64, 128),
    truth: ThroughputParams = TRUTH,
) -> Profile:
    builder = ProfileBuilder()
    for placement in placements:
        for atomic in atomics:
            compute_s = truth.alpha_c + truth.beta_c * atomic
            builder.add(
                placement, atomic, compute_s, float(step_time(truth, placement, atomic))
            )
    return builder.build()


def values(params: ThroughputParams) -> dict[str, float]:
    return {name: getattr(params, name) for name in PARAM_NAMES}


def test_noise_free_parameters_are_recovered() -> None:
    found = fit_throughput(observe(PLACEMENTS + RACKS))
    assert values(found) == pytest.approx(values(TRUTH), rel=1e-4)


@given(
    st.tuples(*[st.floats(0.01, 1.0)] * 4),
    st.tuples(*[st.floats(0.01, 0.1)] * 4),
    st.floats(1.2, 3.0),
)
def test_noise_free_step_times_are_recovered(
    alphas: tuple[float, ...], shares: tuple[float, ...], gamma: float
) -> None:
    compute, *links = [
        item for a, share in zip(alphas, shares, strict=True) for item in (a, a * share)
    ]
    truth = ThroughputParams(
        **dict(zip(PARAM_NAMES, [compute, *links, gamma], strict=True))
    )
    found = fit_throughput(observe(PLACEMENTS + RACKS, truth=truth))
    for placement in PLACEMENTS + RACKS:
        expected = float(step_time(truth, placement, 64))
        assert float(step_time(found, placement, 64)) == pytest.approx(
            expected, rel=0.02
        )


def test_the_loss_is_pollux_s() -> None:
    rng = np.random.default_rng(1)
    for profile in synthetic_profiles(50, seed=1):
        problem = fit_kernel.prepare(profile.columns())
        loss = PolluxLoss(profile)
        x = np.where(problem.free, _random_point(rng), loss.start)
        found = fit_kernel.evaluate(
            problem, x, fit_kernel.RMSE_MIN, np.empty(9), np.empty((9, 9))
        )
        assert found == pytest.approx(loss(x), rel=1e-6)


def test_the_gradient_is_that_of_the_loss() -> None:
    rng = np.random.default_rng(2)
    for profile in synthetic_profiles(50, seed=2):
        problem = fit_kernel.prepare(profile.columns())
        grad = np.empty(9)
        gram = np.empty((9, 9))
        x = np.where(problem.free, _random_point(rng), PolluxLoss(profile).start)
        fit_kernel.evaluate(problem, x, fit_kernel.RMSE_MIN, grad, gram)
        differences = [
            _central_difference(PolluxLoss(profile), x, a)
            if problem.free[a]
            else grad[a]
            for a in range(9)
        ]
        np.testing.assert_allclose(grad, differences, rtol=1e-4, atol=1e-6)


def test_the_rounded_loss_has_its_gradient_too() -> None:
    profile = observe(PLACEMENTS)
    problem = fit_kernel.prepare(profile.columns())
    grad = np.empty(9)
    gram = np.empty((9, 9))
    x = np.array([*values(TRUTH).values()]) * 1.001
    floor = 0.1  # far above both errors

    def rounded(point: FloatArray) -> float:
        return fit_kernel.evaluate(problem, point, floor, np.empty(9), np.empty((9, 9)))

    fit_kernel.evaluate(problem, x, floor, grad, gram)
    differences = [
        _central_difference(rounded, x, a) if problem.free[a] else grad[a]
        for a in range(9)
    ]
    np.testing.assert_allclose(grad, differences, rtol=1e-4, atol=1e-7)


def _random_point(rng: np.random.Generator) -> FloatArray:
    return np.append(rng.uniform(0.01, 0.5, 8), rng.uniform(1.1, 5.0))


def _central_difference(loss: "PolluxLoss | object", x: FloatArray, a: int) -> float:
    assert callable(loss)
    step = np.zeros(9)
    step[a] = 1e-6 * x[a]
    return float(loss(x + step) - loss(x - step)) / (2.0 * step[a])


@pytest.mark.parametrize("seed", range(4))
def test_no_loss_is_worse_than_scipy_s_on_synthetic_profiles(seed: int) -> None:
    for number, profile in enumerate(synthetic_profiles(50, seed)):
        _assert_no_worse_than_scipy(
            profile, f"synthetic profile {number} of seed {seed}"
        )


@pytest.mark.papers
def test_no_loss_is_worse_than_scipy_s_on_measured_profiles(traces: Path) -> None:
    for number, (name, profile) in enumerate(
        measured_profiles(traces / "osdi21/traces", 600, seed=0)
    ):
        _assert_no_worse_than_scipy(profile, f"profile {number} of {name}")


def _assert_no_worse_than_scipy(profile: Profile, name: str) -> None:
    loss = PolluxLoss(profile)
    reached = loss.of(fit_throughput(profile))
    scipy_reached = loss(fit_with_scipy(profile))
    assert reached <= WORSE * scipy_reached + PERFECT, name


def test_a_former_fit_as_start_finds_no_worse() -> None:
    for profile in synthetic_profiles(100, seed=5):
        loss = PolluxLoss(profile)
        found = fit_throughput(profile)
        assert (
            loss.of(fit_throughput(profile, found)) <= WORSE * loss.of(found) + PERFECT
        )


def test_before_anything_but_one_replica_was_seen_replicas_cost_nothing() -> None:
    found = fit_throughput(observe(PLACEMENTS[:1]))
    assert found.alpha_c == pytest.approx(TRUTH.alpha_c, rel=1e-4)
    assert found.beta_c == pytest.approx(TRUTH.beta_c, rel=1e-4)
    assert (
        max(
            found.alpha_r,
            found.beta_r,
            found.alpha_n,
            found.beta_n,
            found.alpha_k,
            found.beta_k,
        )
        < 2e-8
    )
    assert found.gamma == pytest.approx(1.0)


def test_one_atomic_batch_is_taken_to_be_half_fixed_cost() -> None:
    found = fit_throughput(observe(PLACEMENTS[:1], (64,)))
    assert found.alpha_c == pytest.approx(
        (TRUTH.alpha_c + 64 * TRUTH.beta_c) / 2, rel=1e-12
    )
    assert found.alpha_c + 64 * found.beta_c == pytest.approx(
        TRUTH.alpha_c + 64 * TRUTH.beta_c, rel=1e-3
    )


def test_two_replicas_say_nothing_of_the_growth_with_replicas() -> None:
    found = fit_throughput(
        observe((Placement((1,)), Placement((2,)), Placement((1, 1))))
    )
    assert found.alpha_r > 0.01
    assert found.alpha_n > 0.05
    assert (found.beta_r, found.beta_n) == (1e-8, 1e-8)


def test_a_wider_link_that_was_not_used_costs_a_tenth_more() -> None:
    one_node = fit_throughput(observe(PLACEMENTS[:4]))
    assert one_node.alpha_n == pytest.approx(1.1 * one_node.alpha_r)
    assert one_node.beta_n == pytest.approx(1.1 * one_node.beta_r)
    assert one_node.alpha_k == pytest.approx(1.21 * one_node.alpha_r)
    one_rack = fit_throughput(observe(PLACEMENTS))
    assert one_rack.alpha_n == pytest.approx(TRUTH.alpha_n, rel=1e-3)
    assert one_rack.alpha_k == pytest.approx(1.1 * one_rack.alpha_n)
    assert one_rack.beta_k == pytest.approx(1.1 * one_rack.beta_n)


def test_nodes_seen_only_across_racks_leave_the_network_unknown() -> None:
    found = fit_throughput(observe(PLACEMENTS[:4] + RACKS))
    assert found.alpha_k == pytest.approx(TRUTH.alpha_k, rel=1e-3)
    assert found.alpha_n == pytest.approx(1.1 * found.alpha_r)
    assert found.beta_n == pytest.approx(1.1 * found.beta_r)


def test_links_that_were_used_keep_what_was_measured() -> None:
    cheap_racks = ThroughputParams(
        **{**values(TRUTH), "alpha_k": 0.03, "beta_k": 0.002}
    )
    found = fit_throughput(observe(PLACEMENTS + RACKS, truth=cheap_racks))
    assert found.alpha_k == pytest.approx(0.03, rel=1e-3)
    assert found.alpha_n == pytest.approx(TRUTH.alpha_n, rel=1e-3)


def test_repeated_rows_change_nothing() -> None:
    profile = observe(PLACEMENTS)
    twice = Profile(
        **{name: np.tile(getattr(profile, name), 2) for name in Profile.__slots__}
    )
    assert values(fit_throughput(twice)) == pytest.approx(
        values(fit_throughput(profile)), rel=1e-6
    )


def test_one_starting_point_is_not_enough() -> None:
    profile = list(synthetic_profiles(268, seed=105))[-1]
    problem = fit_kernel.prepare(profile.columns())
    alone = fit_kernel.minimise(
        problem, fit_kernel.start_point(problem, fit_kernel.START_GAMMAS[0])
    )
    assert PolluxLoss(profile).of(fit_throughput(profile)) < 0.9 * alone


@given(st.floats(1.0, 10.0), st.floats(1e-8, 10.0))
def test_a_step_to_a_bound_ends_on_it_in_spite_of_rounding(
    gamma: float, alpha: float
) -> None:
    x = np.array([alpha] * 8 + [gamma])
    moved = np.empty(9)
    for bound in (1.0, 10.0):
        fit_kernel._move(x, np.append(1e-8 - x[:8], bound - gamma), moved)
        assert (moved[:8] >= 1e-8).all()
        assert 1.0 <= moved[8] <= 10.0


def test_a_fit_is_a_function_of_the_profile() -> None:
    profile = next(synthetic_profiles(1, seed=9))
    assert fit_throughput(profile) == fit_throughput(profile)


def test_an_empty_profile_is_an_error() -> None:
    with pytest.raises(ValueError, match="at least one observation"):
        fit_throughput(ProfileBuilder().build())


@pytest.mark.parametrize(("num_rows", "most_s"), [(20, 5e-3), (600, 5e-2)])
def test_a_fit_is_quick(num_rows: int, most_s: float) -> None:
    """The median of 15; 0.06 ms and 1 ms are usual, so the bounds leave room for slow
    machines.
    """
    profile = next(each for each in synthetic_profiles(200, seed=3) if len(each) >= 20)
    index = np.resize(np.arange(20), num_rows)
    profile = Profile(
        **{name: getattr(profile, name)[index] for name in Profile.__slots__}
    )
    fit_throughput(profile)
    taken = []
    for _ in range(15):
        begun_s = time.thread_time()
        fit_throughput(profile)
        taken.append(time.thread_time() - begun_s)
    assert np.median(taken) < most_s


FIT_WITHOUT_COMPILER = """
import pickle, sys
from dataclasses import astuple
from pathlib import Path
from coadapt.goodput.fit import fit_throughput
profiles = pickle.loads(Path(sys.argv[1]).read_bytes())
found = [astuple(fit_throughput(each)) for each in profiles]
Path(sys.argv[2]).write_bytes(pickle.dumps(found))
assert "numba" not in sys.modules
"""


def test_plain_loops_fit_the_same_and_load_no_compiler(tmp_path: Path) -> None:
    profiles = [*synthetic_profiles(20, seed=4), observe(PLACEMENTS[:1], (64,))]
    given = tmp_path / "profiles"
    found = tmp_path / "params"
    given.write_bytes(pickle.dumps(profiles))
    command = [sys.executable, "-W", "error", "-c", FIT_WITHOUT_COMPILER]
    subprocess.run([*command, str(given), str(found)], check=True)
    for plain, profile in zip(pickle.loads(found.read_bytes()), profiles, strict=True):
        assert plain == pytest.approx(astuple(fit_throughput(profile)), rel=1e-6)
