import math
import random

import pytest

from coadapt.policies.predictors.gittins import GittinsIndex


@pytest.mark.parametrize("seed", range(20))
def test_the_index_is_its_definition(seed: int) -> None:
    rng = random.Random(seed)
    samples = [
        rng.choice((1.0, 5.0, 5.0, rng.uniform(0.1, 50.0)))
        for _ in range(rng.randint(1, 12))
    ]
    index = GittinsIndex(samples[:5])
    for each in samples[5:]:
        index.add(each)
    attained = rng.choice((0.0, 5.0, rng.uniform(0.0, 60.0)))
    quantum = rng.choice((1.0, 10.0, math.inf))
    longer = [each - attained for each in samples if each > attained]
    expected = 0.0
    if longer:
        used = sum(min(each, quantum) for each in longer)
        expected = sum(each <= quantum for each in longer) / used
    assert index(attained, quantum) == pytest.approx(expected)


def test_lengths_without_memory_have_one_index() -> None:
    """Of an exponential distribution it is 1 / mean, whatever was attained."""
    rng = random.Random(0)
    index = GittinsIndex(rng.expovariate(1 / 100.0) for _ in range(20_000))
    assert [index(a, 200.0) for a in (0.0, 50.0, 150.0)] == pytest.approx(
        [0.01] * 3, rel=0.05
    )


def test_samples_are_service() -> None:
    with pytest.raises(ValueError, match="history_gpu_s must be finite and > 0"):
        GittinsIndex((1.0, -2.0))
