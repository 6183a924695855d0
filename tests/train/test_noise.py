"""The noise scale's estimates: Pollux's formulas where shards are even, and unbiased where they are not."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coadapt.train.noise import DECAY, GradNorms, NoiseScale, estimate

pytestmark = pytest.mark.train


def norms_of(shards: list[np.ndarray], *, differenced: bool = False) -> GradNorms:
    """Return the norms of per-sample gradients (num_samples, dim) that were averaged shard by shard."""
    means = [shard.mean(axis=0) for shard in shards]
    sizes = [len(shard) for shard in shards]
    whole = np.concatenate(shards).mean(axis=0)
    return GradNorms(
        small_sqr=float(sum(mean @ mean for mean in means)),
        inverse=sum(1 / size for size in sizes),
        count=len(shards),
        big_sqr=float(whole @ whole),
        samples=sum(sizes),
        differenced=differenced,
    )


@given(
    small=st.lists(st.floats(0.01, 100), min_size=2, max_size=8),
    big=st.floats(0.001, 100),
    size=st.integers(1, 64),
)
def test_even_shards_give_polluxs_formulas(small: list[float], big: float, size: int) -> None:
    n, total, initial = len(small), len(small) * size, 32
    norms = GradNorms(small_sqr=sum(small), inverse=n / size, count=n, big_sqr=big, samples=total)
    found = estimate(norms)
    assert found is not None
    a, scale = sum(small) / n, total / initial
    assert found[0] == pytest.approx((n * big - a) / (n - 1), rel=1e-9, abs=1e-9)
    assert found[1] / initial == pytest.approx((a - big) * scale / (n - 1), rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("sizes", [[16, 16], [7, 6, 6], [30, 1, 1, 8]])
def test_estimates_are_unbiased_on_a_known_covariance(sizes: list[int]) -> None:
    rng = np.random.default_rng(0)
    dim, mean = 20, np.full(20, 0.3)
    deviations = np.linspace(0.2, 1.5, dim)
    found = []
    for _ in range(3000):
        shards = [mean + deviations * rng.standard_normal((size, dim)) for size in sizes]
        found.append(estimate(norms_of(shards)))
    sqr, trace = np.mean(found, axis=0)
    assert sqr == pytest.approx(mean @ mean, rel=0.1)
    assert trace == pytest.approx((deviations**2).sum(), rel=0.1)


def test_averages_converge_to_the_noise_scale_within_ten_percent() -> None:
    rng = np.random.default_rng(1)
    dim, initial = 20, 32
    mean, deviations = np.full(dim, 0.3), np.linspace(0.2, 1.5, dim)
    noise = NoiseScale(initial)
    for step in range(2000):
        shards = [mean + deviations * rng.standard_normal((16, dim)) for _ in range(4)]
        noise.add(norms_of(shards), 64.0 * (step + 1))
    stats = noise.stats()
    assert stats is not None
    truth = (deviations**2).sum() / (mean @ mean)
    assert stats.noise_scale(initial) == pytest.approx(truth, rel=0.1)


def test_the_first_average_is_the_first_estimate_and_old_ones_fade_with_samples() -> None:
    noise = NoiseScale(10)
    first = GradNorms(small_sqr=6.0, inverse=0.2, count=2, big_sqr=2.0, samples=20)
    noise.add(first, 20)
    sqr, trace = estimate(first) or (0, 0)
    stats = noise.stats()
    assert stats is not None
    assert (stats.sqr, stats.var) == (pytest.approx(sqr), pytest.approx(trace / 10))
    second = GradNorms(small_sqr=10.0, inverse=0.2, count=2, big_sqr=2.0, samples=20)
    noise.add(second, 120)
    decay = DECAY ** (100 / 10)
    weights = decay * (1 - DECAY**2), 1 - decay
    wanted = np.average([trace, (estimate(second) or (0, 0))[1]], weights=weights) / 10
    stats = noise.stats()
    assert stats is not None
    assert stats.var == pytest.approx(wanted)


def test_differenced_estimates_are_thrown_away_by_the_first_unbiased_one() -> None:
    noise = NoiseScale(10)
    noise.add(GradNorms(small_sqr=60.0, inverse=0.2, count=2, big_sqr=2.0, samples=20, differenced=True), 20)
    unbiased = GradNorms(small_sqr=6.0, inverse=0.2, count=2, big_sqr=2.0, samples=20)
    noise.add(unbiased, 40)
    stats = noise.stats()
    assert stats is not None
    assert stats.sqr == pytest.approx((estimate(unbiased) or (0, 0))[0])


def test_nothing_is_learnt_from_infinite_or_single_norms() -> None:
    noise = NoiseScale(10)
    noise.add(GradNorms(small_sqr=float("inf"), inverse=0.2, count=2, big_sqr=2.0, samples=20), 20)
    noise.add(GradNorms(small_sqr=1.0, inverse=0.1, count=1, big_sqr=1.0, samples=10), 30)
    assert noise.stats() is None


def test_negative_estimates_are_floored() -> None:
    noise = NoiseScale(10)
    noise.add(GradNorms(small_sqr=2.0, inverse=0.2, count=2, big_sqr=3.0, samples=20), 20)
    stats = noise.stats()
    assert stats is not None
    assert stats.var == pytest.approx(1e-6 * stats.sqr)
    noise = NoiseScale(10)
    noise.add(GradNorms(small_sqr=20.0, inverse=0.2, count=2, big_sqr=0.1, samples=20), 20)
    stats = noise.stats()
    assert stats is not None
    assert stats.sqr == 0.0
    assert stats.var > 0.0
