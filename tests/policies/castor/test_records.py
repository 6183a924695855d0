"""Remaining work by hints, and prediction intervals, against their definitions."""

import math
from statistics import median

import numpy as np
import pytest

from coadapt.policies.predictors.prediction_intervals import (
    ALIKE,
    ERRORS_MAX,
    ERRORS_MIN,
    FIRST_FACTOR,
    LONG_FACTOR,
    SEEN_EVERY_S,
    Predictions,
)
from coadapt.policies.predictors.remaining_work import (
    NEARLY_DONE,
    OVERRUN,
    TRUST,
    RemainingWork,
)
from tests.policies.castor.stage import left, observed, timed

seeds = pytest.mark.parametrize("seed", range(5))


@seeds
def test_by_its_hint_a_job_has_the_median_residual_of_its_tenants_hints(
    seed: int,
) -> None:
    rng = np.random.default_rng(seed)
    lengths = RemainingWork()
    ratios: dict[str, list[float]] = {"a": [], "b": [], "c": []}
    for number in range(60):
        tenant = str(rng.choice(["a", "b"]))
        ratio = float(rng.choice([0.5, 1.0, 1.3, 2.0, 5.0]))
        lengths = observed(
            lengths,
            timed(f"gone{number}", progress=ratio * 1e6, target=1e6, tenant=tenant),
        )
        lengths = observed(lengths)
        ratios[tenant].append(ratio)
        done = float(rng.choice([0.0, 0.5, 1.0, 3.0, 9.0])) * 1e4
        asked = str(rng.choice(sorted(ratios)))
        known = sorted(ratios[asked][-50:] + [1.0] * TRUST)
        longer = [each for each in known if each * 1e4 > done]
        rest = (
            max(median(longer) * 1e4 - done, NEARLY_DONE * done)
            if longer
            else OVERRUN * done
        )
        one = timed("one", progress=done, target=1e4, tenant=asked)
        assert left(lengths, one) == pytest.approx(rest)


def plain(says: Predictions, left_s: float) -> tuple[float, float]:
    """Return the least and the most that a job is predicted to take, by percentiles of
    the errors of similar predictions.
    """
    around_s = left_s + SEEN_EVERY_S
    said_s = 2.0 ** round(math.log2(around_s))
    said_E, error_E = np.array(says.errors or [(0.0, 0.0)]).T
    said_E, error_E = said_E[: len(says.errors)], error_E[: len(says.errors)]
    alike_E = (said_E >= said_s / ALIKE - SEEN_EVERY_S) & (
        said_E <= said_s * ALIKE - SEEN_EVERY_S
    )
    factor = 1.0
    if alike_E.sum() < ERRORS_MIN:
        alike_E = np.full(len(error_E), len(error_E) >= ERRORS_MIN)
        factor = LONG_FACTOR if alike_E.any() else FIRST_FACTOR
    ordered = sorted([*error_E[alike_E].tolist()]) or [0.0]
    low = ordered[math.floor(0.05 * (len(ordered) - 1))]
    high = ordered[math.ceil(says.high * (len(ordered) - 1))]
    least = math.exp(min(low, -math.log(factor)))
    most = math.exp(max(high, math.log(factor)))
    return max(around_s * least - 2 * SEEN_EVERY_S, 0.0), around_s * most


@seeds
@pytest.mark.parametrize("num_errors", [0, ERRORS_MIN - 1, 60, ERRORS_MAX])
def test_intervals_are_percentiles_of_errors_of_those_alike(
    seed: int, num_errors: int
) -> None:
    rng = np.random.default_rng(seed)
    said_E = 10.0 ** rng.uniform(0.0, 4.0, num_errors)
    error_E = rng.normal(0.3, 0.7, num_errors)
    errors = tuple(zip(said_E.tolist(), error_E.tolist(), strict=True))
    left_s_J = np.array([0.0, 30.0, 700.0, 4e3, 9e4, 1e15, np.inf])
    says = Predictions(high=0.99, errors=errors).predicted(500.0, "abcdefg", left_s_J)
    for name, left_s, found in zip(
        "abcdefg", left_s_J, says.ranges("abcdefg"), strict=True
    ):
        least_s, most_s = plain(says, left_s) if left_s < np.inf else (np.inf, np.inf)
        assert found == pytest.approx((left_s, least_s, most_s)), name


def test_a_prediction_is_recorded_again_after_half_of_its_time() -> None:
    says = Predictions()
    for at in (0.0, 40.0, 50.0, 60.0, 75.0):
        says = says.predicted(at, "abc", np.array([100.0 - at, np.inf, 10.0]))
    assert says.made["a"] == ((0.0, 100.0), (50.0, 100.0), (75.0, 100.0))
    instants = (0.0, 40.0, 50.0, 60.0, 75.0)
    assert says.made["c"] == tuple((at, at + 10.0) for at in instants)
    assert "b" not in says.made
