"""Expected arrivals: curves, number and instants, and the chance of none."""

import numpy as np
import pytest

from coadapt.model import JobView
from coadapt.policies.predictors.expected_arrivals import (
    AHEAD_S,
    END_CHANCE,
    EXPECTED_MAX,
    MEMORY_S,
    Arrivals,
    Silence,
)
from coadapt.policies.solvers.concave_envelope import Curves, envelopes
from tests.policies.castor.stage import timed

SIZES = np.array([1.0, 2.0, 4.0])
GPU = ("gpu",)


def curve(curves: Curves, row: int) -> list[list[float]]:
    """Return the corners of one job."""
    corners = slice(*curves.first_J[row : row + 2].tolist())
    return [
        each[corners].tolist()
        for each in (curves.gpus_V, curves.goodput_V, curves.type_V)
    ]


@pytest.mark.parametrize("seed", range(3))
def test_an_expected_job_has_its_last_curve(seed: int) -> None:
    """Jobs come and go over hours, with other curves and lengths in each round; of some
    none is known.
    """
    rng = np.random.default_rng(seed)
    known = Arrivals()
    jobs = list[JobView]()
    found = 0
    last = dict[str, list[list[float]]]()
    came = dict[str, float]()
    for number in range(120):
        at = 120.0 * number
        jobs = [job for job in jobs if rng.random() < 0.9]
        jobs += [
            timed(f"j{number:03d}{each}", at=at) for each in range(rng.integers(0, 3))
        ]
        goodput_JK = rng.uniform(1.0, 2.0, (len(jobs), 3)) * SIZES ** rng.uniform(
            0.1, 1.0, (len(jobs), 1)
        )
        curves, whole_J = (
            envelopes(goodput_JK, SIZES),
            rng.uniform(-0.2, 1.0, len(jobs)),
        )
        known = known.observed(at, jobs, whole_J, curves, GPU)
        for row, (job, whole) in enumerate(zip(jobs, whole_J.tolist(), strict=True)):
            if whole > 0.0:
                last[job.id] = curve(curves, row)
                came.setdefault(job.id, whole)
        expected = known.expected(at, in_part=False, over=0.0)
        if len(expected.left_J):
            name_of = {whole: name for name, whole in came.items()}
            for row, whole in enumerate(expected.left_J.tolist()):
                assert curve(expected.curves, row) == last[name_of[whole]]
                found += 1
    assert found > 1_000


@pytest.mark.parametrize("hourly", [30, 60, 300])
def test_jobs_are_expected_at_the_rate_of_recent_arrivals(hourly: int) -> None:
    count = hourly * 2
    instants = (np.arange(count) + 0.5) * MEMORY_S / count
    jobs = [
        timed(f"j{number:03d}", at=at) for number, at in enumerate(instants.tolist())
    ]
    known = Arrivals()
    whole_J = np.arange(1.0, count + 1.0)
    known = known.observed(
        MEMORY_S,
        jobs,
        whole_J,
        envelopes(np.ones((count, 3)) * SIZES**0.5, SIZES),
        GPU,
    )
    expected = known.expected(MEMORY_S, in_part=False, over=0.0)
    count = min(hourly, EXPECTED_MAX)
    assert len(expected.left_J) == count
    # Beyond EXPECTED_MAX each copy stands for several jobs, and the hour stays full.
    assert expected.part == pytest.approx(hourly / count)
    assert np.diff(expected.arrives_J) == pytest.approx(AHEAD_S / count)
    # The copies are of all recent jobs, not of the first or the last alone.
    lengths = expected.left_J / expected.part
    assert np.median(lengths) == pytest.approx(np.median(whole_J), rel=0.05)


@pytest.mark.parametrize(
    ("hourly", "count", "part"),
    [(30, 60, 0.5), (45, 90, 0.5), (80, 100, 0.8), (300, 100, 3.0)],
)
def test_in_part_all_of_two_hours_are_expected_as_much_in_sum(
    hourly: int, count: int, part: float
) -> None:
    came = hourly * 2
    instants = (np.arange(came) + 0.5) * MEMORY_S / came
    jobs = [
        timed(f"j{number:03d}", at=at) for number, at in enumerate(instants.tolist())
    ]
    curves = envelopes(np.ones((came, 3)) * SIZES**0.5, SIZES)
    known = Arrivals().observed(MEMORY_S, jobs, np.full(came, 8.0), curves, GPU)
    expected = known.expected(MEMORY_S, in_part=True, over=0.0)
    assert (len(expected.left_J), expected.part) == (
        count,
        pytest.approx(part, rel=0.02),
    )
    assert expected.left_J == pytest.approx(8.0 * expected.part)
    # It takes as long as it would whole, on as much less of the GPUs.
    gpus_V, goodput_V, _ = curve(expected.curves, 0)
    assert gpus_V == pytest.approx(expected.part * curves.gpus_V[:3])
    assert goodput_V == pytest.approx(expected.part * curves.goodput_V[:3])
    assert np.diff(expected.arrives_J) == pytest.approx(AHEAD_S / count, rel=0.02)


def test_no_job_is_expected_after_the_likely_last_one() -> None:
    known = Arrivals()
    jobs = [timed(f"j{number}", at=60.0 * number) for number in range(60)]
    known = known.observed(
        3_600.0, jobs, np.ones(60), envelopes(np.ones((60, 3)) * SIZES, SIZES), GPU
    )
    whole, half, none = [
        known.expected(3_600.0, in_part=True, over=over) for over in (0.0, 0.5, 0.999)
    ]
    assert not len(none.left_J)
    assert half.part == pytest.approx(0.5 * whole.part)


def test_a_longer_silence_makes_a_further_arrival_less_likely() -> None:
    """Jobs that come at random over eight hours hardly ever seem the last; after them
    it is soon sure.
    """
    rng = np.random.default_rng(0)
    silence = Silence()
    said = []
    came = np.sort(rng.uniform(0.0, 28_800.0, 160))
    jobs = [timed(f"j{number:03d}", at=at) for number, at in enumerate(came.tolist())]
    for at in np.arange(600.0, came[-1], 60.0):
        here = [job for job in jobs if at - 1_200.0 < job.submitted_at <= at]
        over, silence = silence.over(at, here or jobs[:1])
        said.append(over)
    assert np.mean(np.array(said) > 0.5) < 0.01
    after = [
        silence.over(came[-1] + later_s, jobs[-1:])[0]
        for later_s in (0.0, 600.0, 1_200.0, 3_600.0, 9e9)
    ]
    assert after == sorted(after)
    assert after[0] == pytest.approx(END_CHANCE)
    assert (after[1] < 0.1, after[3] > 0.99, after[4]) == (True, True, 1.0)


def test_silence_counts_against_the_rate_before_it_not_within_it() -> None:
    """Two hours of silence do not change the rate before it; an arrival ends it."""
    jobs = [timed(f"j{number}", at=600.0 * number) for number in range(12)]
    over, silence = Silence().over(6_600.0, jobs)
    assert over == pytest.approx(END_CHANCE)
    over, silence = silence.over(20_000.0, jobs[:1])
    assert over > 0.999
    over, _ = silence.over(20_000.0, [*jobs[:1], timed("new", at=19_990.0)])
    assert over < 2.0 * END_CHANCE
