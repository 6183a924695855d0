"""Jobs that come later, drawn from those that came before."""

from dataclasses import replace

import numpy as np

from coadapt.model import BatchLimits, JobSpec, Measured
from coadapt.sim.ahead.arrivals import (
    DAY_S,
    JOBS_MIN,
    PAST_MIN_S,
    Arrivals,
    Submission,
)

SPEC = JobSpec(name="j", batch=BatchLimits(initial=8, max_total=8))
WEEK_S = 7 * DAY_S
HOUR_S = 3_600.0


def past(*instants: float) -> Arrivals:
    found = [Submission(at=at, spec=SPEC) for at in sorted(instants)]
    return Arrivals(since=0.0, submissions=found)


def drawn(arrivals: Arrivals, at: float, until: float, seed: int = 0) -> list[float]:
    random = np.random.default_rng(seed)
    return [when for when, _ in arrivals.drawn(at, until, random)]


def test_a_night_stays_quiet() -> None:
    """In the past ten jobs came from eight to nine each day."""
    mornings = [
        day * DAY_S + 8 * HOUR_S + part * 360.0
        for day in range(4)
        for part in range(10)
    ]
    at = 4 * DAY_S
    coming = drawn(past(*mornings), at, at + 2 * DAY_S)
    hours = [(when % DAY_S) / HOUR_S for when in coming]
    assert len(coming) == 20
    assert all(8.0 <= hour < 9.0 for hour in hours)
    assert coming == sorted(coming)


def test_a_weekend_is_one_once_three_are_known() -> None:
    """In the past jobs came on the first day of each week only."""
    for weeks in (2, 3):
        mondays = [
            week * WEEK_S + hour * HOUR_S for week in range(weeks) for hour in range(24)
        ]
        at = weeks * WEEK_S
        days = {
            int(when // DAY_S) % 7 for when in drawn(past(*mondays), at, at + WEEK_S)
        }
        assert (days == {0}) is (weeks == 3)


def test_a_past_of_hours_repeats_any_of_them() -> None:
    every_minute = past(*(60.0 * number for number in range(300)))
    at = 5 * HOUR_S
    coming = drawn(every_minute, at, at + 10 * HOUR_S)
    assert 590 <= len(coming) <= 600
    assert all(at <= when <= at + 10 * HOUR_S for when in coming)


def test_another_seed_draws_others() -> None:
    random = np.random.default_rng(3)
    arrivals = past(*random.uniform(0.0, 3 * DAY_S, 100).tolist())
    at = 3 * DAY_S
    assert drawn(arrivals, at, at + DAY_S, 1) == drawn(arrivals, at, at + DAY_S, 1)
    assert drawn(arrivals, at, at + DAY_S, 1) != drawn(arrivals, at, at + DAY_S, 2)


def test_a_short_past_and_few_jobs_say_nothing() -> None:
    few = past(*(600.0 * number for number in range(JOBS_MIN - 1)))
    assert drawn(few, DAY_S, 2 * DAY_S) == []
    short = past(*(10.0 * number for number in range(50)))
    assert drawn(short, PAST_MIN_S - 1.0, DAY_S) == []


def test_a_job_comes_again_as_a_new_one() -> None:
    spec = replace(SPEC, deadline_at=500.0)
    measured = Measured(progress=70.0, progress_target=100.0)
    again = Submission(at=100.0, spec=spec, measured=measured).again("x", 1_100.0)
    assert again.spec.deadline_at == 1_500.0
    assert again.measured == Measured(progress=0.0, progress_target=100.0)
    assert (again.id, again.submitted_at) == ("x", 1_100.0)
