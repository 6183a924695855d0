"""Plays on several GPU types: against linear programs, against the play of one type,
and by their laws.
"""

import numpy as np
import pytest
from scipy.optimize import linprog

from coadapt.policies.solvers.arrays import FloatArray, IntArray
from coadapt.policies.solvers.concave_envelope import (
    Curves,
    envelopes,
    type_envelopes,
)
from coadapt.policies.solvers.fluid_market import SOFT, Market
from coadapt.policies.solvers.fluid_relaxation import (
    FixedPoint,
    FluidJobs,
    Objective,
    Timeline,
    cost_of,
    fixed_point,
)
from tests.policies.solvers.test_fluid_pool import (
    SIZES,
    crowd_of,
    draw,
    goal_of,
    play,
    settle,
)

GPUS = np.array([16.0, 8.0, 4.0])


def play_types(jobs: FluidJobs, value_P: FloatArray, soft: float = SOFT) -> Timeline:
    """Return the timeline of phases on GPUs of several types."""
    return Market(jobs, soft).play(value_P)


def settle_types(
    jobs: FluidJobs, value_P: FloatArray, objective: Objective, plays: int
) -> FixedPoint:
    return fixed_point(Market(jobs), value_P, objective, plays)


def draw_types(seed: int) -> tuple[Curves, FloatArray, FloatArray, FloatArray]:
    """Return curves on three types, values, lengths and arrivals of two dozen jobs;
    some lack a type.
    """
    rng = np.random.default_rng(seed)
    num_jobs = 24
    size_C = np.tile(SIZES, 3)
    type_C = np.repeat(np.arange(3), len(SIZES))
    own_J1 = rng.uniform(0.4, 0.95, (num_jobs, 1))
    goodput_JC = size_C**own_J1 * rng.uniform(0.3, 3.0, (num_jobs, 3))[:, type_C]
    goodput_JC[rng.random((num_jobs, 3))[:, type_C] < 0.15] = 0.0
    goodput_JC[size_C[None, :].repeat(num_jobs, 0) > GPUS[type_C]] = 0.0
    curves = type_envelopes(goodput_JC, size_C.astype(np.int64), type_C, (0, 1, 2))
    value_J, left_J = (
        rng.uniform(0.3, 3.0, num_jobs),
        rng.uniform(50.0, 1000.0, num_jobs),
    )
    return (
        curves,
        value_J,
        left_J,
        np.where(rng.random(num_jobs) < 0.5, 0.0, rng.uniform(0.0, 200.0, num_jobs)),
    )


def crowd_on(
    curves: Curves, left_J: FloatArray, arrives_J: FloatArray, gpus_T: FloatArray
) -> FluidJobs:
    """Return jobs that nobody follows."""
    return FluidJobs(curves, left_J, arrives_J, np.full(len(left_J), -1), gpus_T)


def whose(curves: Curves) -> IntArray:
    """Return the job of each corner."""
    return np.repeat(np.arange(len(curves.first_J) - 1), np.diff(curves.first_J))


def by_programs(
    curves: Curves, value_J: FloatArray, left_J: FloatArray, arrives_J: FloatArray
) -> FloatArray:
    """Return when each job ends if a linear program shares out all GPUs anew at each
    event.
    """
    num_jobs = len(value_J)
    left = left_J.copy()
    now = 0.0
    of_V = whose(curves)
    able_J = np.bincount(of_V, curves.goodput_V, num_jobs) > 0.0
    end = np.full(num_jobs, np.inf)
    while (np.isinf(end) & able_J).any():
        here_J = np.isinf(end) & (arrives_J <= now + 1e-12)
        rows = [(of_V == j) * 1.0 for j in range(num_jobs)]
        rows += [(curves.type_V == t) * curves.gpus_V for t in range(len(GPUS))]
        most = np.concatenate([here_J * 1.0, GPUS])
        earns_V = value_J[of_V] * curves.goodput_V
        part_V = linprog(-earns_V, A_ub=np.array(rows), b_ub=most, bounds=(0.0, 1.0)).x
        rate = np.bincount(of_V, part_V * curves.goodput_V, num_jobs)
        runs = here_J & (rate > 1e-9)
        then = min(
            [*(now + left[runs] / rate[runs]), *arrives_J[arrives_J > now + 1e-12]]
        )
        left[runs] -= rate[runs] * (then - now)
        now = then
        end[here_J & (left < 1e-9)] = now
    return end


@pytest.mark.parametrize("seed", range(8))
def test_a_play_is_that_of_a_linear_program_at_each_instant_the_nearer_the_less_soft(
    seed: int,
) -> None:
    curves, value_J, left_J, arrives_J = draw_types(seed)
    exact_J = by_programs(curves, value_J, left_J, arrives_J)
    ends = np.isfinite(exact_J)
    for soft, mean, last in ((SOFT, 0.08, 0.12), (0.01, 0.015, 0.06)):
        found_J = play_types(
            crowd_on(curves, left_J, arrives_J, GPUS), value_J, soft
        ).end_s
        assert (np.isfinite(found_J) == ends).all()
        assert found_J[ends].mean() == pytest.approx(exact_J[ends].mean(), rel=mean)
        assert found_J[ends].max() == pytest.approx(exact_J[ends].max(), rel=last)
        assert np.corrcoef(found_J[ends], exact_J[ends])[0, 1] > 0.97


@pytest.mark.parametrize("seed", range(8))
def test_on_gpus_alike_it_is_nearly_the_play_of_one_type(seed: int) -> None:
    goodput_JK, value_J, left_J, arrives_J = draw(seed)
    exact = play(crowd_of(envelopes(goodput_JK, SIZES), left_J, arrives_J), value_J)
    twice_JC, type_C = (
        np.hstack((goodput_JK, goodput_JK)),
        np.repeat([0, 1], len(SIZES)),
    )
    curves = type_envelopes(
        twice_JC, np.tile(SIZES, 2).astype(np.int64), type_C, (0, 1)
    )
    found = play_types(
        crowd_on(curves, left_J, arrives_J, np.array([8.0, 8.0])), value_J
    )
    assert found.end_s.mean() == pytest.approx(exact.end_s.mean(), rel=0.08)
    assert found.end_s.max() == pytest.approx(exact.end_s.max(), rel=0.12)


def test_hundreds_on_one_type_end_nearly_as_by_its_exact_play() -> None:
    rng = np.random.default_rng(0)
    num_jobs = 500
    curves = envelopes(SIZES ** rng.uniform(0.3, 0.95, (num_jobs, 1)), SIZES)
    value_J, left_J = (
        rng.uniform(0.3, 3.0, num_jobs),
        rng.uniform(50.0, 1000.0, num_jobs),
    )
    crowd = crowd_on(curves, left_J, rng.uniform(0.0, 3e3, num_jobs), np.array([64.0]))
    exact, found = play(crowd, value_J), play_types(crowd, value_J)
    assert found.end_s.mean() == pytest.approx(exact.end_s.mean(), rel=0.08)
    assert found.end_s.max() == pytest.approx(exact.end_s.max(), rel=0.05)


def lines(*goodput_JT: list[float]) -> Curves:
    """Return jobs that have one or two GPUs of two types, and twice as much of two."""
    both_JC = np.repeat(np.array(goodput_JT), 2, axis=1) * np.array(
        [1.0, 2.0, 1.0, 2.0]
    )
    return type_envelopes(
        both_JC, np.array([1, 2, 1, 2]), np.array([0, 0, 1, 1]), (0, 1)
    )


@pytest.mark.parametrize("seed", range(20))
def test_no_more_is_done_than_all_gpus_can_do(seed: int) -> None:
    rng = np.random.default_rng(seed)
    num_jobs = int(rng.integers(3, 30))
    curves = lines(*[[1.0, 2.0]] * num_jobs)
    left_J = rng.uniform(10.0, 100.0, num_jobs)
    value_J = rng.uniform(0.2, 2.0, num_jobs)
    course = play_types(
        crowd_on(curves, left_J, np.zeros(num_jobs), np.array([4.0, 2.0])), value_J
    )
    assert course.end_s.max() >= left_J.sum() / 8.0 * (1.0 - 1e-9)


def test_who_comes_while_no_market_is_held_starts_at_once() -> None:
    """Demand strays by a hundredth or two by it: all others have a little less of what
    they want.
    """
    curves = lines(*[[1.0, 2.0]] * 80)
    left_J = np.full(80, 1e3)
    arrives_J = np.zeros(80)
    value_J = np.ones(80)
    arrives_J[-1] = 7.0
    value_J[-1] = 2.0
    crowd = crowd_on(curves, left_J, arrives_J, np.array([70.0, 70.0]))
    course, alone = (
        play_types(crowd._replace(arrives_P=arrives_J * late), value_J)
        for late in (1.0, 1e6)
    )
    assert course.start_s[-1] == 7.0
    assert course.end_s[:-1].min() > 1.005 * alone.end_s[:-1].min()


def test_ends_are_as_they_are_where_many_fall_into_one_instant() -> None:
    left_J = np.concatenate(
        (np.linspace(1000.0, 1003.0, 50), np.linspace(2000.0, 2006.0, 50))
    )
    crowd = crowd_on(
        lines(*[[1.0, 0.0]] * 100), left_J, np.zeros(100), np.full(2, 400.0)
    )
    assert play_types(crowd, np.ones(100)).end_s == pytest.approx(
        left_J / 2.0, rel=0.02
    )
    rate_J = left_J / play_types(crowd, np.ones(100)).end_s
    assert rate_J == pytest.approx(rate_J[0], rel=1e-9)


def test_ends_within_two_seconds_leave_their_gpus_together() -> None:
    """Each of 10,000 short jobs would be an instant of its own."""
    curves = lines(*[[1.0, 0.0]] * 3)
    left_J = np.array([0.5, 1.5, 100.0])
    crowd = crowd_on(curves, left_J, np.zeros(3), np.array([2.0, 1.0]))
    course = play_types(crowd, np.array([9.0, 9.0, 1.0]))
    assert course.end_s[:2] == pytest.approx([0.5, 1.5], rel=0.02)
    assert course.start_s[2] == 2.0


@pytest.mark.parametrize("at", [0.0, 5.0])
def test_who_has_nothing_left_ends_as_it_comes_if_it_may_be_anywhere(at: float) -> None:
    curves = lines([1.0, 1.0], [1.0, 1.0], [0.0, 0.0])
    left_J = np.array([0.0, 6.0, 0.0])
    crowd = crowd_on(curves, left_J, np.full(3, at), np.full(2, 2.0))
    assert play_types(crowd, np.ones(3)).end_s == pytest.approx(
        [at, at + 3.0, np.inf], rel=0.02
    )


@pytest.mark.parametrize("num_gpus", [100.0, 400.0])
def test_a_stretch_begins_while_no_market_is_held(num_gpus: float) -> None:
    """There is room for all. The second stretch of one of eighty does three times as
    much on one type.
    """
    curves = lines(*[[1.0, 1.0]] * 80, [1.0, 3.0])
    left_J = np.full(81, 1e3)
    after_J = np.full(81, -1)
    arrives_J = np.zeros(81)
    left_J[79] = 10.0
    after_J[79] = 80
    arrives_J[80] = np.inf
    course = play_types(
        FluidJobs(curves, left_J, arrives_J, after_J, np.full(2, num_gpus)), np.ones(81)
    )
    begun_s = course.end_s[79]
    assert begun_s == pytest.approx(5.0, rel=0.01)
    assert course.start_s[80] == begun_s
    assert course.end_s[80] - begun_s == pytest.approx(1e3 / 6.0, rel=0.1)


def test_a_job_that_can_be_on_no_type_has_a_corner_all_the_same_and_never_ends() -> (
    None
):
    curves = lines([0.0, 0.0], [1.0, 1.0])
    assert curves.first_J.tolist() == [0, 1, 3]
    course = play_types(
        crowd_on(curves, np.full(2, 10.0), np.zeros(2), np.full(2, 2.0)), np.ones(2)
    )
    assert course.end_s == pytest.approx([np.inf, 5.0], rel=0.02)


def test_who_may_be_on_one_type_only_waits_for_it_whatever_else_is_free() -> None:
    """In one pool, in which each type counts as so many of the first, all three would
    run at once.
    """
    crowd = crowd_on(
        lines([0.0, 1.0], [0.0, 1.0], [1.0, 0.0]),
        np.full(3, 1000.0),
        np.zeros(3),
        np.full(2, 2.0),
    )
    course = play_types(crowd, np.array([1.0, 9.0, 1.0]))
    assert course.end_s == pytest.approx([1000.0, 500.0, 500.0], rel=0.03)
    assert course.start_s == pytest.approx([500.0, 0.0, 0.0], rel=0.03)


def test_a_lost_type_has_no_part_in_it() -> None:
    curves, value_J, left_J, arrives_J = draw_types(3)
    none = np.array([16.0, 8.0, 0.0])
    lost = play_types(crowd_on(curves, left_J, arrives_J, none), value_J)
    kept = np.flatnonzero(curves.type_V < 2)
    first_J = np.searchsorted(whose(curves)[kept], np.arange(len(value_J) + 1))
    some = np.diff(first_J) > 0  # here all have something on one of the first two
    assert some.all()
    without = Curves(
        first_J, curves.gpus_V[kept], curves.goodput_V[kept], curves.type_V[kept]
    )
    never = play_types(crowd_on(without, left_J, arrives_J, none[:2]), value_J)
    assert lost.end_s == pytest.approx(never.end_s)
    assert settle_types(
        crowd_on(curves, left_J, arrives_J, none), value_J, goal_of(24), 5
    )[2] == pytest.approx(
        settle_types(
            crowd_on(without, left_J, arrives_J, none[:2]), value_J, goal_of(24), 5
        )[2]
    )


def test_a_gpu_that_does_three_times_as_much_has_three_times_the_price() -> None:
    curves = lines(*[[1.0, 3.0]] * 8)
    crowd = crowd_on(curves, np.linspace(100.0, 400.0, 8), np.zeros(8), np.full(2, 2.0))
    course = play_types(crowd, np.linspace(2.0, 1.0, 8))
    slow, fast = course.price[:4].T
    assert fast / slow == pytest.approx(3.0, rel=0.1)
    assert course.price[course.end_s.argmax(), 0] == 0.0  # the last leaves those free


def test_a_stretch_begins_when_the_one_before_it_ends() -> None:
    # Alone on two GPUs of the second type: 10 of progress at 2 a second, then 30 at 6.
    curves = lines([0.5, 1.0], [0.5, 3.0])
    after, arrives = np.array([1, -1]), np.array([0.0, np.inf])
    crowd = FluidJobs(curves, np.array([10.0, 30.0]), arrives, after, np.full(2, 2.0))
    assert play_types(crowd, np.ones(2)).end_s == pytest.approx([5.0, 10.0], rel=0.02)
    value_J, course, cost = settle_types(crowd, np.ones(2), goal_of(1), 10)
    assert course.end_s == pytest.approx([10.0], rel=0.02)
    assert cost == pytest.approx(course.end_s.sum())
    assert len(value_J) == 2


@pytest.mark.parametrize("value", [-2.0, -0.0, np.nan])
def test_a_value_that_is_none_harms_nobody(value: float) -> None:
    crowd = crowd_on(
        lines(*[[1.0, 1.0]] * 3), np.full(3, 100.0), np.zeros(3), np.array([1.0, 1.0])
    )
    course = play_types(crowd, np.array([value, 1.0, 1.0]))
    assert course.end_s == pytest.approx([np.inf, 100.0, 100.0], rel=0.03)


@pytest.mark.parametrize("seed", range(6))
def test_settled_values_cost_no_more_than_those_begun_with(seed: int) -> None:
    curves, value_J, left_J, arrives_J = draw_types(seed)
    crowd = crowd_on(curves, left_J, arrives_J, GPUS)
    goal = goal_of(len(value_J), makespan_jobs=1.0, tail=0.5, usual_s=20.0)
    settled_J, course, cost = settle_types(crowd, value_J, goal, 10)
    assert cost == pytest.approx(cost_of(course, goal))
    assert cost <= cost_of(play_types(crowd, value_J), goal)
    assert play_types(crowd, settled_J).end_s == pytest.approx(course.end_s)


def test_values_for_several_types_end_jobs_sooner_than_those_for_one_pool() -> None:
    """Half of the jobs gain nothing by the fast type, half do four times as much on
    it.
    """
    ends_s = []
    for seed in range(6):
        rng = np.random.default_rng(seed)
        size_C = np.tile(SIZES, 2)
        type_C = np.repeat([0, 1], len(SIZES))
        gain_JT = np.ones((16, 2))
        gain_JT[::2, 1] = 4.0
        goodput_JC = size_C ** rng.uniform(0.5, 0.9, (16, 1)) * gain_JT[:, type_C]
        curves = type_envelopes(goodput_JC, size_C.astype(np.int64), type_C, (0, 1))
        left_J = rng.uniform(50.0, 1000.0, 16) * gain_JT[:, 1]
        crowd = crowd_on(curves, left_J, np.zeros(16), np.full(2, 16.0))
        order_C = np.argsort(size_C * np.where(type_C == 1, 2.0, 1.0), kind="stable")
        pool = envelopes(
            np.ascontiguousarray(goodput_JC[:, order_C]),
            (size_C * np.where(type_C == 1, 2.0, 1.0))[order_C],
        )
        pooled_J, _, _ = settle(
            crowd_of(pool, left_J, np.zeros(16), 48.0), np.ones(16), goal_of(16), 10
        )
        _, course, _ = settle_types(crowd, np.ones(16), goal_of(16), 10)
        ends_s.append((course.end_s.mean(), play_types(crowd, pooled_J).end_s.mean()))
    settled, pooled = np.array(ends_s).mean(axis=0)
    assert settled < 0.98 * pooled
