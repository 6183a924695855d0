"""Who is expected: the curves of jobs that have gone stay theirs, however they are kept."""

import numpy as np
import pytest

from coadapt.model import JobView
from coadapt.policies.castor import arrivals
from coadapt.policies.castor.arrivals import AHEAD_S, EXPECTED_MAX, MEMORY_S, Arrivals, Expected
from coadapt.policies.castor.fluid.crowd import majorants
from tests.policies.castor.stage import timed

SIZES = np.array([1.0, 2.0, 4.0])


def expected_in_each_round() -> list[Expected]:
    """Play jobs that come and go over hours, with other curves and lengths in each round."""
    rng, known, found, jobs = np.random.default_rng(0), Arrivals(), [], list[JobView]()
    for number in range(120):
        at = 120.0 * number
        jobs = [job for job in jobs if rng.random() < 0.9]
        jobs += [timed(f"j{number:03d}{each}", at=at) for each in range(rng.integers(0, 3))]
        curves = majorants(rng.uniform(1.0, 2.0, (len(jobs), 3)) * SIZES**0.5, SIZES)
        known.observe(at, jobs, curves, rng.uniform(-0.2, 1.0, len(jobs)))
        expected = known.expected(at)
        if expected is not None:
            found.append(expected)
    return found


def test_curves_of_the_gone_are_the_same_however_many_rounds_they_went_in(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    together = expected_in_each_round()
    monkeypatch.setattr(arrivals, "APART_MAX", 1_000)
    apart = expected_in_each_round()
    assert len(together) == len(apart) > 100
    for one, other in zip(together, apart, strict=True):
        assert one.left_J.tolist() == other.left_J.tolist()
        for mine, theirs in zip(one.curves, other.curves, strict=True):
            assert mine.tolist() == theirs.tolist()


@pytest.mark.parametrize("hourly", [30, 60, 300])
def test_who_is_expected_comes_as_often_as_jobs_came_and_of_many_the_first(hourly: int) -> None:
    count = hourly * 2
    instants = (np.arange(count) + 0.5) * MEMORY_S / count
    jobs = [timed(f"j{number:03d}", at=at) for number, at in enumerate(instants.tolist())]
    known, whole_J = Arrivals(), np.arange(1.0, count + 1.0)
    known.observe(MEMORY_S, jobs, majorants(np.ones((count, 3)) * SIZES**0.5, SIZES), whole_J)
    expected = known.expected(MEMORY_S)
    assert expected is not None
    assert len(expected.left_J) == min(hourly, EXPECTED_MAX)
    assert np.diff(expected.arrives_J) == pytest.approx(AHEAD_S / hourly)
    # They are of all that came, not of the first or the last alone.
    assert np.median(expected.left_J) == pytest.approx(np.median(whole_J), rel=0.05)
