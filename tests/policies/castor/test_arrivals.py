"""Who is expected: the curves of jobs that have gone stay theirs, however they are kept."""

import numpy as np
import pytest

from coadapt.model import JobView
from coadapt.policies.castor import arrivals
from coadapt.policies.castor.arrivals import Arrivals, Expected
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
