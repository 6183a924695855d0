"""The noise scale's estimates: Pollux's formulas where shards are even, and unbiased
where they are not.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coadapt.train.noise.layer_ratio import DECAY
from coadapt.train.noise.noise_scale import GradNorms, NoiseScale, estimate

pytestmark = pytest.mark.train


def norms_of(shards: list[np.ndarray], *, differenced: bool = False) -> GradNorms:
    """Return the norms of per-sample gradients (num_samples, dim) that were averaged
    shard by shard.
    """
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
def test_even_shards_give_polluxs_formulas(
    small: list[float], big: float, size: int
) -> None:
    n = len(small)
    total = len(small) * size
    initial = 32
    norms = GradNorms(
        small_sqr=sum(small), inverse=n / size, count=n, big_sqr=big, samples=total
    )
    found = estimate(norms)
    assert found is not None
    a = sum(small) / n
    scale = total / initial
    assert found[0] == pytest.approx((n * big - a) / (n - 1), rel=1e-9, abs=1e-9)
    assert found[1] / initial == pytest.approx(
        (a - big) * scale / (n - 1), rel=1e-9, abs=1e-9
    )


@pytest.mark.parametrize("sizes", [[16, 16], [7, 6, 6], [30, 1, 1, 8]])
def test_estimates_are_unbiased_on_a_known_covariance(sizes: list[int]) -> None:
    rng = np.random.default_rng(0)
    dim = 20
    mean = np.full(20, 0.3)
    deviations = np.linspace(0.2, 1.5, dim)
    found = []
    for _ in range(3000):
        shards = [
            mean + deviations * rng.standard_normal((size, dim)) for size in sizes
        ]
        found.append(estimate(norms_of(shards)))
    sqr, trace = np.mean(found, axis=0)
    assert sqr == pytest.approx(mean @ mean, rel=0.1)
    assert trace == pytest.approx((deviations**2).sum(), rel=0.1)


def test_averages_converge_to_the_noise_scale_within_ten_percent() -> None:
    rng = np.random.default_rng(1)
    dim = 20
    initial = 32
    mean = np.full(dim, 0.3)
    deviations = np.linspace(0.2, 1.5, dim)
    noise = NoiseScale(initial)
    for step in range(2000):
        shards = [mean + deviations * rng.standard_normal((16, dim)) for _ in range(4)]
        noise.add(norms_of(shards), 64.0 * (step + 1))
    stats = noise.stats()
    assert stats is not None
    truth = (deviations**2).sum() / (mean @ mean)
    assert stats.noise_scale(initial) == pytest.approx(truth, rel=0.1)


def test_the_first_average_is_the_first_estimate_and_old_ones_fade_with_samples() -> (
    None
):
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
    weights = decay * (1 - DECAY**2), 1 - DECAY**2
    wanted = np.average([trace, (estimate(second) or (0, 0))[1]], weights=weights) / 10
    stats = noise.stats()
    assert stats is not None
    assert stats.var == pytest.approx(wanted)


def test_differenced_estimates_are_thrown_away_by_the_first_unbiased_one() -> None:
    noise = NoiseScale(10)
    noise.add(
        GradNorms(
            small_sqr=60.0,
            inverse=0.2,
            count=2,
            big_sqr=2.0,
            samples=20,
            differenced=True,
        ),
        20,
    )
    unbiased = GradNorms(small_sqr=6.0, inverse=0.2, count=2, big_sqr=2.0, samples=20)
    noise.add(unbiased, 40)
    stats = noise.stats()
    assert stats is not None
    assert stats.sqr == pytest.approx((estimate(unbiased) or (0, 0))[0])


def test_successive_steps_are_not_mixed_into_unbiased_estimates_but_replace_them_when_they_are_old() -> (
    None
):
    """A job that shrinks to one replica: what several measured stands for the average's
    memory, then not.
    """
    unbiased = GradNorms(small_sqr=6.0, inverse=0.2, count=2, big_sqr=2.0, samples=20)
    biased = GradNorms(
        small_sqr=60.0, inverse=0.2, count=2, big_sqr=2.0, samples=20, differenced=True
    )
    noise = NoiseScale(10)
    memory = 10 / (1 - DECAY)
    for step in range(1, 9):
        noise.add(unbiased, 20 * step)
    before = noise.stats()
    assert before is not None
    noise.add(biased, 159 + memory)
    assert noise.stats() == before
    assert noise.cautious() is not None
    noise.add(unbiased, 159 + memory)
    after = noise.stats()
    assert after is not None
    assert (after.sqr, after.var) == (
        pytest.approx(before.sqr),
        pytest.approx(before.var),
    )
    assert (
        noise.interval() is not None
    )  # what was known before the biased ones still counts
    noise.add(biased, 160 + 2 * memory)
    after = noise.stats()
    assert after is not None
    assert after.var == pytest.approx((estimate(biased) or (0, 0))[1] / 10)
    assert noise.cautious() is None


def test_few_unbiased_estimates_do_not_hold_off_successive_steps() -> None:
    noise = NoiseScale(10)
    noise.add(
        GradNorms(small_sqr=6.0, inverse=0.2, count=2, big_sqr=2.0, samples=20), 20
    )
    biased = GradNorms(
        small_sqr=60.0, inverse=0.2, count=2, big_sqr=2.0, samples=20, differenced=True
    )
    noise.add(biased, 40)
    stats = noise.stats()
    assert stats is not None
    assert stats.var == pytest.approx((estimate(biased) or (0, 0))[1] / 10)


def test_nothing_is_learnt_from_infinite_or_single_norms() -> None:
    noise = NoiseScale(10)
    noise.add(
        GradNorms(
            small_sqr=float("inf"), inverse=0.2, count=2, big_sqr=2.0, samples=20
        ),
        20,
    )
    noise.add(
        GradNorms(small_sqr=1.0, inverse=0.1, count=1, big_sqr=1.0, samples=10), 30
    )
    assert noise.stats() is None


def test_negative_estimates_are_floored() -> None:
    noise = NoiseScale(10)
    noise.add(
        GradNorms(small_sqr=2.0, inverse=0.2, count=2, big_sqr=3.0, samples=20), 20
    )
    stats = noise.stats()
    assert stats is not None
    assert stats.var == pytest.approx(1e-6 * stats.sqr)
    noise = NoiseScale(10)
    noise.add(
        GradNorms(small_sqr=20.0, inverse=0.2, count=2, big_sqr=0.1, samples=20), 20
    )
    stats = noise.stats()
    assert stats is not None
    assert stats.sqr == 0.0
    assert stats.var > 0.0


@dataclass(frozen=True)
class Trials:
    """Many runs on Gaussian gradients with mean `mean` in each of 20 coordinates, of
    known covariance.
    """

    num_shards: int
    steps: int
    mean: float
    differenced: bool = False

    def run(self, num_trials: int, seed: int) -> Iterator[NoiseScale]:
        rng = np.random.default_rng(seed)
        for _ in range(num_trials):
            noise = NoiseScale(32)
            for step in range(self.steps):
                means = self.mean + DEVIATIONS / 4.0 * rng.standard_normal(
                    (self.num_shards, 20)
                )
                whole = means.mean(axis=0)
                norms = GradNorms(
                    small_sqr=float((means**2).sum()),
                    inverse=self.num_shards / 16,
                    count=self.num_shards,
                    big_sqr=float(whole @ whole),
                    samples=16 * self.num_shards,
                    differenced=self.differenced,
                )
                noise.add(norms, 16.0 * self.num_shards * (step + 1))
            yield noise

    @property
    def truth(self) -> float:
        return float((DEVIATIONS**2).sum() / (20 * self.mean**2))


DEVIATIONS = np.linspace(0.2, 1.5, 20)


@pytest.mark.parametrize(
    "trials",
    [
        Trials(2, 100, 0.3),
        Trials(2, 100, 0.3, differenced=True),
        Trials(4, 200, 0.1),
        Trials(2, 60, 0.1),
    ],
)
def test_the_stated_interval_covers_the_truth(trials: Trials) -> None:
    """benchmarks/trainer/noise_scale.py does the same with real gradients, and more of
    them.
    """
    found = []
    covered = 0
    within_stderr = 0
    for noise in trials.run(200, seed=4):
        stats = noise.stats()
        interval = noise.interval()
        assert stats is not None
        assert stats.noise_scale_stderr is not None
        assert interval is not None
        found.append(stats.noise_scale(32))
        covered += interval[0] <= trials.truth <= interval[1]
        within_stderr += (
            abs(found[-1] - trials.truth) <= 1.645 * stats.noise_scale_stderr
        )
    assert np.mean(found) == pytest.approx(trials.truth, rel=0.1)
    assert 0.85 <= covered / 200 <= 0.97
    assert within_stderr / 200 >= 0.8


def test_a_gradient_that_cannot_be_told_from_zero_has_no_upper_end() -> None:
    rng = np.random.default_rng(2)
    noise = NoiseScale(10)
    for step in range(200):
        shards = [rng.standard_normal((10, 5)) for _ in range(2)]
        noise.add(norms_of(shards), 20.0 * (step + 1))
    interval = noise.interval()
    cautious = noise.cautious()
    assert interval is not None
    assert 0.0 < interval[0] < interval[1] == math.inf
    assert cautious is not None
    assert cautious.noise_scale(10) == pytest.approx(interval[0])


def test_few_estimates_have_no_interval_and_steady_ones_a_narrow_one() -> None:
    noise = NoiseScale(10)
    seen = GradNorms(small_sqr=6.0, inverse=0.2, count=2, big_sqr=2.0, samples=20)
    for step in range(6):
        stats = noise.stats()
        assert (noise.interval() is None) == (noise.cautious() is None) == (step <= 4)
        assert (stats is None or stats.noise_scale_stderr is None) == (step <= 4)
        noise.add(seen, 20.0 * (step + 1))
    stats = noise.stats()
    interval = noise.interval()
    assert stats is not None
    assert interval is not None
    assert stats.noise_scale_stderr == pytest.approx(0.0, abs=1e-5)
    assert interval == pytest.approx((stats.noise_scale(10),) * 2, rel=1e-5)


def test_steps_count_by_their_samples_not_by_the_gap_before_them() -> None:
    often = NoiseScale(10)
    gaps = NoiseScale(10)
    for step in range(40):
        seen = GradNorms(
            small_sqr=6.0 + step % 2, inverse=0.2, count=2, big_sqr=2.0, samples=20
        )
        often.add(seen, 20.0 * step)
        gaps.add(seen, 20.0 * (step // 2 * 8 + step % 2))
    assert gaps.weight_sqr / gaps.weight**2 == pytest.approx(
        often.weight_sqr / often.weight**2, rel=0.1
    )
