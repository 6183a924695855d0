"""Who is expected: the curves of jobs that have gone stay theirs, however they are kept."""

import numpy as np
import pytest

from coadapt.model import JobView
from coadapt.policies.castor.arrivals import AHEAD_S, EXPECTED_MAX, MEMORY_S, Arrivals
from coadapt.policies.castor.fluid.crowd import Curves, majorants
from tests.policies.castor.stage import timed

SIZES = np.array([1.0, 2.0, 4.0])


def curve(curves: Curves, row: int) -> list[list[float]]:
    """Return the corners of one job."""
    here = slice(*curves.first_J[row : row + 2].tolist())
    return [each[here].tolist() for each in (curves.gpus_V, curves.goodput_V, curves.type_V)]


@pytest.mark.parametrize("seed", range(3))
def test_who_is_expected_has_the_curve_that_it_had_last(seed: int) -> None:
    """Jobs come and go over hours, with other curves and lengths in each round; of some none is known."""
    rng, known, jobs, found = np.random.default_rng(seed), Arrivals(), list[JobView](), 0
    last, came = dict[str, list[list[float]]](), dict[str, float]()
    for number in range(120):
        at = 120.0 * number
        jobs = [job for job in jobs if rng.random() < 0.9]
        jobs += [timed(f"j{number:03d}{each}", at=at) for each in range(rng.integers(0, 3))]
        goodput_JK = rng.uniform(1.0, 2.0, (len(jobs), 3)) * SIZES ** rng.uniform(0.1, 1.0, (len(jobs), 1))
        curves, whole_J = majorants(goodput_JK, SIZES), rng.uniform(-0.2, 1.0, len(jobs))
        known.observe(at, jobs, curves, whole_J)
        for row, (job, whole) in enumerate(zip(jobs, whole_J.tolist(), strict=True)):
            if whole > 0.0:
                last[job.id] = curve(curves, row)
                came.setdefault(job.id, whole)
        expected = known.expected(at)
        if expected is not None:
            name_of = {whole: name for name, whole in came.items()}
            for row, whole in enumerate(expected.left_J.tolist()):
                assert curve(expected.curves, row) == last[name_of[whole]]
                found += 1
        assert known.gone.keys() | known.rows.keys() == known.came.keys()
    assert found > 1_000


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
