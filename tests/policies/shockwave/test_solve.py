"""The fast planner against the programme as it was published, solved by HiGHS; and laws
of its packing.
"""

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from coadapt.policies.shockwave.objective import (
    JobsAhead,
    WindowOptions,
    fair_window,
    log_progress,
    weighted_window,
    window_value,
)
from coadapt.policies.shockwave.solve import solve_window
from tests.policies.shockwave.verbatim import solve_verbatim

ROUND_S = 120.0
TOLERANCE = 1e-6  # of HiGHS, on objectives of about 1


def draw_jobs(rng: np.random.Generator, num_jobs: int, *, widest: int = 4) -> JobsAhead:
    share_J = np.where(rng.random(num_jobs) < 0.3, 0.0, rng.random(num_jobs))
    whole_s_J = rng.uniform(100.0, 4000.0, num_jobs)
    left_s_J = np.maximum(
        whole_s_J * (1.0 - share_J) * rng.uniform(0.6, 1.5, num_jobs), 1.0
    )
    return JobsAhead(
        width_J=rng.choice([1, 1, 1, 2, widest], num_jobs).astype(np.int64),
        share_J=share_J,
        whole_s_J=whole_s_J,
        left_s_J=left_s_J,
        target_J=rng.uniform(500.0, 9000.0, num_jobs),
    )


def options(
    num_gpus: int = 4, num_rounds: int = 4, weight: float = 1e-3, now_s: float = 1200.0
) -> WindowOptions:
    return WindowOptions(
        num_gpus=num_gpus,
        num_rounds=num_rounds,
        round_s=ROUND_S,
        ends_at=now_s + num_rounds * ROUND_S,
        makespan_weight=weight,
        rho_max=1.0,
        power=2.0,
    )


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("weight", [1e-3, 1e-5])
def test_the_optimum_of_the_published_programme_lies_between_the_plan_and_the_bound(
    seed: int, weight: float
) -> None:
    jobs = draw_jobs(np.random.default_rng(seed), 5)
    settings_ = options(weight=weight)
    window = weighted_window(jobs, settings_)
    exact = solve_verbatim(jobs, settings_, window)
    ours = solve_window(window)
    assert exact is not None
    assert ours is not None
    optimum = -exact.value
    scale = max(1.0, abs(optimum))
    assert optimum <= ours.bound + TOLERANCE * scale
    assert ours.value <= optimum + TOLERANCE * scale


@pytest.mark.parametrize("seed", range(3))
def test_the_plan_is_near_the_optimum_of_the_published_programme(seed: int) -> None:
    jobs = draw_jobs(np.random.default_rng(seed), 12)
    settings_ = options(num_gpus=8, num_rounds=8)
    window = weighted_window(jobs, settings_)
    exact = solve_verbatim(jobs, settings_, window)
    ours = solve_window(window)
    assert exact is not None
    assert ours is not None
    assert ours.value >= -exact.value - 0.01 * max(1.0, abs(exact.value))


def test_with_as_many_rounds_as_in_use_it_is_the_optimum_but_for_a_thousandth() -> None:
    gaps = []
    for seed in range(20):
        jobs = draw_jobs(np.random.default_rng(seed), 60)
        solved = solve_window(
            weighted_window(jobs, options(num_gpus=32, num_rounds=20))
        )
        assert solved is not None
        gaps.append(solved.bound - solved.value)
    assert min(gaps) >= -1e-12
    assert float(np.mean(gaps)) < 1e-3


@pytest.mark.parametrize("seed", range(6))
def test_the_fairness_constraint_is_kept_or_found_to_be_impossible(seed: int) -> None:
    rng = np.random.default_rng(100 + seed)
    jobs = draw_jobs(rng, 4, widest=2)
    jobs = jobs._replace(target_J=rng.uniform(800.0, 12_000.0, 4))
    settings_ = options(num_rounds=5, now_s=0.0)
    window = fair_window(jobs, settings_)
    exact = solve_verbatim(jobs, settings_, window)
    ours = solve_window(window)
    if exact is None:
        assert ours is None
        return
    assert ours is not None
    assert ours.value <= -exact.value + TOLERANCE <= ours.bound + 2 * TOLERANCE
    count_J = ours.runs_JT.sum(axis=1)
    left_s_J = np.maximum(jobs.left_s_J - window.run_s_JM[np.arange(4), count_J], 0.0)
    assert (left_s_J <= window.late_s_J + 1e-6).all()


@settings(max_examples=60)
@given(
    st.integers(0, 2**32 - 1), st.integers(1, 12), st.integers(1, 9), st.integers(1, 12)
)
@example(seed=763, num_jobs=7, num_gpus=3, num_rounds=1)
def test_plans_fit_every_round_and_say_what_they_are_worth(
    seed: int, num_jobs: int, num_gpus: int, num_rounds: int
) -> None:
    jobs = draw_jobs(np.random.default_rng(seed), num_jobs, widest=4)
    jobs = jobs._replace(width_J=np.minimum(jobs.width_J, num_gpus))
    window = weighted_window(jobs, options(num_gpus=num_gpus, num_rounds=num_rounds))
    solved = solve_window(window)
    assert solved is not None
    assert set(np.unique(solved.runs_JT)) <= {0, 1}
    assert ((solved.runs_JT * jobs.width_J[:, None]).sum(axis=0) <= num_gpus).all()
    assert solved.value == pytest.approx(
        window_value(window, solved.runs_JT.sum(axis=1))
    )
    assert solved.value <= solved.bound + 1e-9 * max(1.0, abs(solved.bound))


def test_wide_jobs_get_their_rounds_beside_narrow_ones_of_higher_rank() -> None:
    """Without looking ahead, eight jobs of one GPU fill the rounds that the wide job
    needs.
    """
    width = np.array([4, *[1] * 8])
    jobs = JobsAhead(
        width_J=width,
        share_J=np.zeros(9),
        whole_s_J=np.array([6 * ROUND_S, *[4 * ROUND_S] * 8]),
        left_s_J=np.array([6 * ROUND_S, *[4 * ROUND_S] * 8]),
        target_J=np.full(9, 1e6),
    )
    solved = solve_window(
        weighted_window(jobs, options(num_gpus=8, num_rounds=7, weight=1.0))
    )
    assert solved is not None
    assert solved.runs_JT[0].sum() == 6
    assert solved.runs_JT[1:].sum() == 32


def test_late_jobs_come_first() -> None:
    jobs = JobsAhead(
        width_J=np.ones(3, dtype=np.int64),
        share_J=np.full(3, 0.5),
        whole_s_J=np.full(3, 2400.0),
        left_s_J=np.full(3, 1200.0),
        target_J=np.array([9000.0, 1800.0, 9000.0]),
    )
    window = weighted_window(jobs, options(num_gpus=1, num_rounds=6, weight=1e-9))
    solved = solve_window(window)
    assert solved is not None
    assert window.weight_J.argmax() == 1
    assert solved.runs_JT[1, 0] == 1


def test_the_logarithm_is_exact_at_its_bases_and_concave_between_them() -> None:
    share = np.linspace(0.0, 1.0, 101)
    assert log_progress(np.array([0.2, 0.6, 1.0])) == pytest.approx(
        np.log([0.2, 0.6, 1.0])
    )
    assert log_progress(np.array([0.0])) == pytest.approx(np.log([1e-6]))
    assert (np.diff(log_progress(share), n=2) <= 1e-9).all()
