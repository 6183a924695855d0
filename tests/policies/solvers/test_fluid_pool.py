"""The play against a slow one that anybody can check, the majorant against its
definition.
"""

from itertools import product

import numpy as np
import pytest

from coadapt.policies.solvers.arrays import FloatArray
from coadapt.policies.solvers.concave_envelope import Curves, envelopes
from coadapt.policies.solvers.fluid_pool import Pool
from coadapt.policies.solvers.fluid_relaxation import (
    FAIR_WEIGHT,
    FixedPoint,
    FluidJobs,
    Objective,
    Timeline,
    cost_of,
    fixed_point,
    weigh,
)

SIZES = np.array([1.0, 2.0, 3.0, 4.0, 8.0, 12.0, 16.0])


def draw(seed: int) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
    """Return goodputs (not concave), values, lengths and arrivals of up to a dozen
    jobs.
    """
    rng = np.random.default_rng(seed)
    num_jobs = int(rng.integers(1, 12))
    goodput_JK = SIZES ** rng.uniform(0.3, 0.95, (num_jobs, 1)) * rng.uniform(
        0.5, 1.0, (num_jobs, len(SIZES))
    )
    goodput_JK[rng.random(goodput_JK.shape) < 0.2] = 0.0
    goodput_JK[:, 0] = np.maximum(goodput_JK[:, 0], 0.1)
    value_J = rng.uniform(0.1, 3.0, num_jobs)
    left_J = rng.uniform(10.0, 1000.0, num_jobs)
    return (
        goodput_JK,
        value_J,
        left_J,
        np.where(rng.random(num_jobs) < 0.5, 0.0, rng.uniform(0.0, 200.0, num_jobs)),
    )


def crowd_of(
    curves: Curves, left_J: FloatArray, arrives_J: FloatArray, num_gpus: float = 16.0
) -> FluidJobs:
    """Return jobs that nobody follows."""
    return FluidJobs(
        curves, left_J, arrives_J, np.full(len(left_J), -1), np.array([num_gpus])
    )


def play(jobs: FluidJobs, value_P: FloatArray) -> Timeline:
    """Return the timeline of phases on GPUs of one type."""
    return Pool(jobs).play(value_P)


def settle(
    jobs: FluidJobs, value_P: FloatArray, objective: Objective, plays: int
) -> FixedPoint:
    return fixed_point(Pool(jobs), value_P, objective, plays)


@pytest.mark.parametrize("seed", range(20))
def test_an_envelope_is_the_least_concave_curve_above_all_points(seed: int) -> None:
    goodput_JK, *_ = draw(seed)
    curves = envelopes(goodput_JK, SIZES)
    for j, row in enumerate(goodput_JK):
        corners = slice(curves.first_J[j], curves.first_J[j + 1])
        x = np.r_[0.0, curves.gpus_V[corners]]
        y = np.r_[0.0, curves.goodput_V[corners]]
        slopes = np.diff(y) / np.diff(x)
        assert (np.diff(slopes) < 1e-12).all()
        assert (slopes > 0.0).all()
        assert (np.interp(SIZES, x, y) >= row - 1e-12).all()
        # Least: each corner is a point, and so no lower concave curve is above all of
        # them.
        assert set(y[1:]) <= set(row)


def test_where_no_size_can_be_had_each_has_a_corner_all_the_same() -> None:
    """It was written past the end of an array: all nodes that fit were lost, and
    others' jobs expected.
    """
    curves = envelopes(np.empty((3, 0)), np.empty(0))
    assert [part.tolist() for part in curves] == [
        [0, 1, 2, 3],
        [1.0] * 3,
        [0.0] * 3,
        [0] * 3,
    ]


def test_a_job_that_can_do_nothing_never_ends() -> None:
    curves = envelopes(np.array([[0.0, 0.0], [1.0, 2.0]]), np.array([1.0, 2.0]))
    course = play(crowd_of(curves, np.full(2, 10.0), np.zeros(2), 2.0), np.ones(2))
    assert course.end_s.tolist() == [np.inf, 5.0]


def slow_play(
    curves: Curves,
    value_J: FloatArray,
    left_J: FloatArray,
    arrives_J: FloatArray,
    num_gpus: float,
) -> Timeline:
    """Return the same as `play`, by handing out all GPUs anew at each event."""
    num_jobs = len(value_J)
    left = left_J.copy()
    now = 0.0
    start = np.full(num_jobs, np.inf)
    end = np.full(num_jobs, np.inf)
    price = np.zeros(num_jobs)
    while np.isinf(end).any():
        here = [
            j
            for j in range(num_jobs)
            if np.isinf(end[j]) and arrives_J[j] <= now + 1e-12
        ]
        pieces = []
        for j in here:
            x0 = y0 = 0.0
            for p in range(curves.first_J[j], curves.first_J[j + 1]):
                x = curves.gpus_V[p]
                y = curves.goodput_V[p]
                pieces.append(
                    (-value_J[j] * (y - y0) / (x - x0), j, x - x0, (y - y0) / (x - x0))
                )
                x0 = x
                y0 = y
        free = num_gpus
        rate = np.zeros(num_jobs)
        cut = 0.0
        for minus_worth, j, width, slope in sorted(pieces):
            taken = min(width, free)
            rate[j] += taken * slope
            free -= taken
            if taken < width:
                cut = -minus_worth
                break
        start[rate > 0.0] = np.minimum(start[rate > 0.0], now)
        later = [float(each) for each in arrives_J if each > now + 1e-12]
        then = min([now + left[j] / rate[j] for j in here if rate[j] > 0.0] + later)
        left[here] -= rate[here] * (then - now)
        now = then
        for j in here:
            if left[j] < 1e-9:
                end[j], price[j] = now, cut
    return Timeline(start, end, price[:, None])


@pytest.mark.parametrize("seed", range(40))
def test_the_play_is_that_of_handing_out_all_anew(seed: int) -> None:
    goodput_JK, value_J, left_J, arrives_J = draw(seed)
    curves = envelopes(goodput_JK, SIZES)
    fast = play(crowd_of(curves, left_J, arrives_J), value_J)
    slow = slow_play(curves, value_J, left_J, arrives_J, 16.0)
    assert fast.end_s == pytest.approx(slow.end_s)
    assert fast.start_s == pytest.approx(slow.start_s)
    assert fast.price == pytest.approx(slow.price)


@pytest.mark.parametrize("apart", [1e-15, 1e-9, 1e-3, 1e280])
def test_pieces_go_by_worth_however_near_or_far_they_are(apart: float) -> None:
    """Each job has its turn on the one GPU: the highest value first, of equal ones the
    first.
    """
    rng = np.random.default_rng(0)
    values = np.concatenate(
        [1.0 + apart * rng.random(60), np.ones(10), np.full(10, 1e-300)]
    )
    curves = envelopes(np.ones((80, 1)), np.ones(1))
    course = play(crowd_of(curves, np.ones(80), np.zeros(80), 1.0), values)
    assert course.end_s[np.argsort(-values, kind="stable")].tolist() == list(
        range(1, 81)
    )


@pytest.mark.parametrize("value", [-2.0, -0.0, np.nan])
def test_a_value_that_is_none_harms_nobody(value: float) -> None:
    curves = envelopes(np.ones((3, 1)), np.ones(1))
    course = play(
        crowd_of(curves, np.ones(3), np.zeros(3), 1.0), np.array([value, 1.0, 2.0])
    )
    assert course.end_s.tolist() == [np.inf, 2.0, 1.0]


def goal_of(count: int, **changes: object) -> Objective:
    """Return the goal of `count` jobs alike that have just come."""
    usual_J5 = np.full((5, count), [[np.inf], [0.0], [np.inf], [np.inf], [1.0]])
    plain = Objective(np.ones(count), *usual_J5, 0.0, 0.0, 0.0)
    return plain._replace(**changes)


@pytest.mark.parametrize("seed", range(10))
def test_settled_values_cost_no_more_than_those_begun_with(seed: int) -> None:
    goodput_JK, value_J, left_J, arrives_J = draw(seed)
    crowd = crowd_of(envelopes(goodput_JK, SIZES), left_J, arrives_J)
    goal = goal_of(len(value_J), makespan_jobs=1.0, tail=0.5, usual_s=20.0)
    _, course, cost = settle(crowd, value_J, goal, 13)
    begun = play(crowd, value_J)
    assert cost == pytest.approx(cost_of(course, goal))
    assert cost <= cost_of(begun, goal)


def test_alike_jobs_of_two_lengths_end_shortest_first() -> None:
    # Linear curves: any work-conserving plan keeps all GPUs busy, and shortest first is
    # optimal.
    curves = envelopes(np.array([[1.0, 2.0]] * 2), np.array([1.0, 2.0]))
    crowd = crowd_of(curves, np.array([100.0, 10.0]), np.zeros(2), 2.0)
    goal = goal_of(2)
    _, course, cost = settle(crowd, np.array([0.5, 1.0]), goal, 13)
    assert course.end_s == pytest.approx([55.0, 5.0])
    assert cost == pytest.approx(60.0)


def test_a_deadline_turns_the_order() -> None:
    curves = envelopes(np.array([[1.0, 2.0]] * 2), np.array([1.0, 2.0]))
    crowd = crowd_of(curves, np.array([100.0, 60.0]), np.zeros(2), 2.0)
    _, course, _ = settle(
        crowd, np.ones(2), goal_of(2, due_J=np.array([51.0, np.inf])), 30
    )
    assert course.end_s[0] == pytest.approx(50.0)


@pytest.mark.parametrize(
    ("past", "weight"), [("tolerance_J", 1.0), ("fair_limit_J", FAIR_WEIGHT)]
)
def test_a_job_that_would_starve_or_be_late_turns_the_order(
    past: str, weight: float
) -> None:
    curves = envelopes(np.array([[1.0, 2.0]] * 2), np.array([1.0, 2.0]))
    crowd = crowd_of(curves, np.array([100.0, 60.0]), np.zeros(2), 2.0)
    goal = goal_of(2, **{past: np.array([20.0, np.inf])})
    shorter_first = np.array([0.9, 1.0])
    _, course, cost = settle(crowd, shorter_first, goal, 30)
    assert course.end_s == pytest.approx([50.0, 80.0])
    # The integral of what each second past 20 s counts more.
    assert cost == pytest.approx(130.0 + weight * 30.0**2 / 40.0)
    _, course, _ = settle(crowd, shorter_first, goal_of(2), 30)
    assert course.end_s == pytest.approx([80.0, 30.0])


def test_a_tail_takes_gpus_to_a_job_that_would_take_long() -> None:
    goodput_JK = np.tile(SIZES**0.7, (6, 1))
    crowd = crowd_of(
        envelopes(goodput_JK, SIZES), np.array([50.0] * 5 + [400.0]), np.zeros(6)
    )
    ends = [
        settle(crowd, np.ones(6), goal_of(6, tail=tail), 30)[1].end_s[-1]
        for tail in (0.0, 2.0)
    ]
    assert ends[1] < 0.97 * ends[0]


def test_a_stretch_begins_when_the_one_before_it_ends() -> None:
    # Two GPUs, one job alone: 10 of progress at 2 a second, then 30 at 6; its last part
    # is its end.
    curves = envelopes(np.array([[1.0, 2.0], [3.0, 6.0]]), np.array([1.0, 2.0]))
    crowd = FluidJobs(
        curves,
        np.array([10.0, 30.0]),
        np.array([0.0, np.inf]),
        np.array([1, -1]),
        np.array([2.0]),
    )
    assert play(crowd, np.ones(2)).end_s == pytest.approx([5.0, 10.0])
    value_J, course, cost = settle(crowd, np.ones(2), goal_of(1), 13)
    assert course.end_s == pytest.approx([10.0])
    assert cost == pytest.approx(10.0)
    assert len(value_J) == 2


def two_stretches() -> tuple[FluidJobs, Objective]:
    """Return five jobs of which the first scales badly for a while, then as well as the
    others.
    """
    flat, steep = 2.0 * SIZES**0.1, SIZES**0.9
    curves = envelopes(np.array([flat, *[steep] * 5]), SIZES)
    left_J = np.array([100.0, *np.linspace(250.0, 350.0, 4), 200.0])
    after = np.array([5, -1, -1, -1, -1, -1])
    return FluidJobs(
        curves, left_J, np.array([0.0] * 5 + [np.inf]), after, np.array([16.0])
    ), goal_of(5)


def test_no_other_values_of_its_stretches_cost_much_less() -> None:
    crowd, goal = two_stretches()
    value_J, _, cost = settle(crowd, np.full(6, 0.3), goal, 30)
    for now in (0.5, 0.8, 1.25, 2.0):
        for later in (0.5, 0.8, 1.25, 2.0):
            other_J = value_J * np.array([now, 1.0, 1.0, 1.0, 1.0, later])
            ends = play(crowd, other_J).end_s
            assert (
                ends[1:].sum() > 0.99 * cost
            )  # the last stretch's end is that of the first job


def test_a_job_is_worth_less_while_it_scales_badly() -> None:
    crowd, goal = two_stretches()
    value_J, _, _ = settle(crowd, np.full(6, 0.3), goal, 30)
    flat = crowd.curves.goodput_V[:2]
    steep = crowd.curves.goodput_V[-2:]
    # What a second GPU of it earns, in its first stretch and in its last.
    assert value_J[0] * (flat[1] - flat[0]) < 0.5 * value_J[5] * (steep[1] - steep[0])


def test_who_is_expected_to_end_last_has_the_weight_of_the_makespan() -> None:
    goodput_JK = np.tile(SIZES**0.7, (6, 1))
    crowd = crowd_of(
        envelopes(goodput_JK, SIZES), np.array([50.0] * 5 + [400.0]), np.zeros(6)
    )
    ends = [
        settle(crowd, np.ones(6), goal_of(6, makespan_jobs=jobs), 30)[1].end_s[-1]
        for jobs in (0.0, 9.0)
    ]
    assert ends[1] < 0.97 * ends[0]


@pytest.mark.parametrize("seed", range(5))
def test_the_last_end_is_a_mean_over_who_comes(seed: int) -> None:
    """As all combinations of jobs that come or do not would have it; one of them comes
    for sure.
    """
    rng = np.random.default_rng(seed)
    end_J = rng.uniform(10.0, 20.0, 5)
    chance_J = rng.uniform(0.2, 0.9, 5)
    end_J[2] = end_J[3]  # at once
    chance_J[end_J.argmin()] = 1.0
    mean_s = 0.0
    for comes in product((False, True), repeat=5):
        comes_J = np.array(comes)
        likely = float(np.where(comes_J, chance_J, 1.0 - chance_J).prod())
        mean_s += likely * float(end_J[comes_J].max(initial=0.0))
    course = Timeline(np.zeros(5), end_J, np.zeros((5, 1)))
    goals = [
        goal_of(5, makespan_jobs=each, usual_s=100.0, chance_J=chance_J)
        for each in (0.0, 3.0)
    ]
    plain, more = [cost_of(course, goal) for goal in goals]
    assert more - plain == pytest.approx(3.0 * mean_s, rel=1e-3)


def test_who_may_come_takes_its_part_of_what_the_last_end_weighs() -> None:
    course = Timeline(np.zeros(3), np.array([100.0, 1.0, 1_000.0]), np.zeros((3, 1)))
    goal = goal_of(
        3, makespan_jobs=8.0, usual_s=2_000.0, chance_J=np.array([1.0, 1.0, 0.25])
    )
    weight_J, scratch_J = np.empty((2, 3))
    weigh(course, goal, weight_J, scratch_J)
    # Far apart, so that no end stands for another one.
    assert weight_J == pytest.approx([7.0, 1.0, 3.0], abs=0.01)


def test_a_job_that_never_ends_takes_nothing_of_the_last_end() -> None:
    course = Timeline(np.zeros(2), np.array([np.inf, 10.0]), np.zeros((2, 1)))
    weight_J, scratch_J = np.empty((2, 2))
    weigh(course, goal_of(2, makespan_jobs=8.0, usual_s=100.0), weight_J, scratch_J)
    assert weight_J.tolist() == [1.0, 9.0]
