"""Batches chosen by what other jobs of the application timed: the best of all, where
they timed enough; what was not tried is tried.
"""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coadapt.goodput.batch import candidates
from coadapt.goodput.goodput import best_batch
from coadapt.goodput.step_time_kriging import (
    HOPE,
    MEASURED,
    SHARED,
    optimistic_step_times,
)
from coadapt.goodput.throughput import step_time
from coadapt.model import (
    ApplicationTimes,
    BatchLimits,
    GradStats,
    Placement,
    ThroughputParams,
    TimedStep,
)

PLACEMENT = Placement((4,))
PARAMS = ThroughputParams(alpha_c=0.1, beta_c=0.002, alpha_r=0.03, gamma=2.0)
LIMITS = BatchLimits(initial=64, max_total=4096, max_atomic=256)
GRAD = GradStats(sqr=1.0, var=16.0)


def truth(atomic: int, accumulation: int) -> float:
    """A step that the model misjudges by up to 12 %, smoothly."""
    error = 0.12 * math.sin(3.0 * math.log(atomic))
    return float(step_time(PARAMS, PLACEMENT, atomic, accumulation)) * math.exp(error)


def shared_times(
    batches: set[tuple[int, int]], factor: float = 1.0
) -> ApplicationTimes:
    steps = tuple(
        TimedStep(atomic=m, accumulation=s, seconds=factor * truth(m, s))
        for m, s in sorted(batches)
    )
    return ApplicationTimes(
        gpu_type="a", placement=PLACEMENT, params=PARAMS, steps=steps
    )


def chosen(shared: ApplicationTimes) -> tuple[int, int]:
    found = best_batch(
        LIMITS, PARAMS, GRAD, PLACEMENT, model=optimistic_step_times(shared)
    ).config
    return found.atomic, found.accumulation


def true_goodput(batch: tuple[int, int]) -> float:
    total = 4 * batch[0] * (batch[1] + 1)
    noise = GRAD.noise_scale(LIMITS.initial)
    return total / truth(*batch) * (noise + LIMITS.initial) / (noise + total)


def test_whoever_tries_what_looks_best_finds_the_best_batch_within_a_dozen_trials() -> (
    None
):
    by_model = best_batch(LIMITS, PARAMS, GRAD, PLACEMENT).config
    known = {(by_model.atomic, by_model.accumulation)}
    for _ in range(12):
        known.add(chosen(shared_times(known)))
    every = [
        (m, s)
        for m in range(16, 257)
        for s in range(4)
        if 4 * m * (s + 1) <= LIMITS.max_total
    ]
    best = max(map(true_goodput, every))
    assert true_goodput(chosen(shared_times(known))) > 0.99 * best
    assert true_goodput((by_model.atomic, by_model.accumulation)) < 0.97 * best


@given(st.integers(16, 256), st.integers(0, 3), st.floats(0.7, 1.4))
def test_what_was_timed_is_believed(
    atomic: int, accumulation: int, factor: float
) -> None:
    times = optimistic_step_times(shared_times({(atomic, accumulation)}, factor))
    true_s = float(times(PARAMS, PLACEMENT, atomic, accumulation))
    measured = factor * truth(atomic, accumulation)
    # Less by the hope for what a measurement may be off by, and by its part in the
    # error against the model.
    assert abs(math.log(true_s / measured)) < HOPE * MEASURED + 0.1 * abs(
        math.log(measured / float(step_time(PARAMS, PLACEMENT, atomic, accumulation)))
    )


def test_what_it_remembers_is_of_the_batches_that_it_is_asked_for() -> None:
    """Candidates are the same arrays each time, and cannot change; what can is worked
    out each time.
    """
    times = optimistic_step_times(shared_times({(64, 0)}))
    one = candidates(LIMITS, 4)
    other = candidates(LIMITS, 2)
    asked = [
        times(PARAMS, PLACEMENT, each.atomic, each.accumulation)
        for each in (one, one, other, one)
    ]
    fresh = [
        optimistic_step_times(shared_times({(64, 0)}))(
            PARAMS, PLACEMENT, each.atomic.copy(), each.accumulation.copy()
        )
        for each in (one, one, other, one)
    ]
    assert all(np.array_equal(was, is_) for was, is_ in zip(asked, fresh, strict=True))
    assert asked[0] is asked[1]
    atomic_B = np.array([64.0, 96.0])
    passes_B = np.zeros(2)
    before_B = np.array(times(PARAMS, PLACEMENT, atomic_B, passes_B))
    passes_B[:] = 1.0
    assert (np.asarray(times(PARAMS, PLACEMENT, atomic_B, passes_B)) > before_B).all()


def test_the_further_from_all_that_was_timed_the_more_is_hoped() -> None:
    times = optimistic_step_times(shared_times({(64, 0)}))
    atomic_B = np.array([64.0, 72.0, 96.0, 160.0, 256.0])
    hoped_B = np.log(times(PARAMS, PLACEMENT, atomic_B, np.zeros(5)))
    shared = math.log(truth(64, 0) / float(step_time(PARAMS, PLACEMENT, 64, 0)))
    gain_B = (
        np.log(step_time(PARAMS, PLACEMENT, atomic_B, np.zeros(5))) + shared - hoped_B
    )
    assert np.all(np.diff(gain_B) > 0.0)
    assert gain_B[-1] < HOPE * 2.0 * SHARED + abs(shared)


def test_two_per_cent_on_all_steps_change_no_choice() -> None:
    known = {(24, 0), (64, 0), (128, 0), (200, 1)}
    assert chosen(shared_times(known, 1.02)) == chosen(shared_times(known, 0.98))


@pytest.mark.parametrize(
    ("gpu_type", "placement", "same"),
    [
        ("a", Placement((2, 4)), True),
        ("b", Placement((3, 3)), False),
        ("a", Placement((6,)), False),
        ("a", Placement((3, 2)), False),
        ("a", Placement((3, 3), num_racks=2), False),
    ],
)
def test_times_are_of_a_shape(gpu_type: str, placement: Placement, same: bool) -> None:
    shared = ApplicationTimes(
        gpu_type="a",
        placement=Placement((3, 3)),
        params=PARAMS,
        steps=(TimedStep(atomic=1, accumulation=0, seconds=1.0),),
    )
    assert shared.are_of(gpu_type, placement) == same


@pytest.mark.parametrize(
    ("step", "field"),
    [
        ((0, 0, 1.0), "atomic"),
        ((1, -1, 1.0), "accumulation"),
        ((1, 0, 0.0), "seconds"),
        ((1, 0, math.inf), "seconds"),
    ],
)
def test_a_step_that_cannot_be_names_its_field(
    step: tuple[int, int, float], field: str
) -> None:
    with pytest.raises(ValueError, match=field):
        TimedStep(atomic=step[0], accumulation=step[1], seconds=step[2])
