"""From the noise of normalisation layers to that of the whole: laws, and what is
covered how often.
"""

import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coadapt.train.noise.layer_ratio import DECAY_COMPARED, NUM_GROUPS, LayerNoise
from coadapt.train.noise.noise_scale import GradNorms, NoiseScale

pytestmark = pytest.mark.train

Pair = tuple[float, float]
ESTIMATES = st.lists(
    st.tuples(st.floats(0.5, 2.0), st.floats(0.5, 2.0)), min_size=2, max_size=60
)


def fed(
    steps: list[tuple[Pair, Pair | None]], noise: LayerNoise | None = None
) -> LayerNoise:
    """Return `noise` after steps of one initial batch each: the layers' estimate, and
    the whole's if any.
    """
    noise = noise or LayerNoise()
    for layers, whole in steps:
        noise.add(layers, 1.0, noise.at + 1.0)
        if whole is not None:
            noise.compare(whole, 1.0, differenced=False)
    return noise


@given(
    seen=ESTIMATES,
    sqr=st.floats(0.1, 10.0),
    trace=st.floats(0.1, 10.0),
    unit=st.floats(1e-6, 1e6),
)
def test_a_steady_ratio_is_found_exactly(
    seen: list[Pair], sqr: float, trace: float, unit: float
) -> None:
    """Whatever the estimates are; and the unit of gradients does not matter."""
    steps = [
        ((s * unit, t * unit), (s * sqr * unit, t * trace * unit)) for s, t in seen
    ]
    noise = fed(steps)
    assert (noise.ratio is None) == (len(seen) < NUM_GROUPS)
    if noise.ratio is None:
        assert (noise.estimate(), noise.interval(), noise.stderr()) == (
            None,
            None,
            None,
        )
        return
    found = noise.estimate()
    interval = noise.interval()
    assert found is not None
    assert interval is not None
    assert noise.ratio == pytest.approx(trace / sqr)
    assert interval[0] <= found[1] / found[0] * (1 + 1e-9)
    assert found[1] / found[0] <= interval[1] * (1 + 1e-9)
    plain = fed([((s, t), (s, t)) for s, t in seen])
    alone = plain.estimate()
    own = plain.interval()
    assert alone is not None
    assert own is not None
    assert found == (
        pytest.approx(alone[0] * sqr * unit),
        pytest.approx(alone[1] * trace * unit),
    )
    assert interval == (
        pytest.approx(own[0] * noise.ratio),
        pytest.approx(own[1] * noise.ratio),
    )


def test_early_large_gradients_do_not_outweigh_later_ones() -> None:
    """The ratio doubles halfway, while squared gradients shrink to a fiftieth: it ends
    up in between.
    """
    sizes = [math.exp(-step / 1000) for step in range(4000)]
    steps = [
        ((size, size), (size, (2.0 if size > sizes[2000] else 4.0) * size))
        for size in sizes
    ]
    assert fed(steps).ratio == pytest.approx(3.0, rel=0.1)


def test_layers_follow_what_the_ratio_forgets_later() -> None:
    """The noise scale rises tenfold, and nothing is compared any more."""
    noise = fed([((1.0, 1.0), (1.0, 3.0))] * 100)
    noise = fed([((1.0, 10.0), None)] * 5000, noise)
    found = noise.estimate()
    assert found is not None
    assert found[1] / found[0] == pytest.approx(30.0, rel=0.1)


def test_two_successive_steps_are_compared_with_both_of_their_layers() -> None:
    noise = LayerNoise()
    for step in range(2 * NUM_GROUPS):
        noise.add((1.0 + 2.0 * (step % 2), 1.0), 1.0, step + 1.0)
        if step % 2:
            noise.compare((4.0, 1.0), 2.0, differenced=True)
    assert noise.num_compared == NUM_GROUPS
    assert noise.ratio == pytest.approx(0.5)  # 4 over the mean of 1 and 3


def test_biased_comparisons_count_while_nothing_better_is_remembered() -> None:
    noise = LayerNoise()
    at = 0.0

    def compare(ratio: float, *, differenced: bool, times: int = NUM_GROUPS) -> None:
        nonlocal at
        for _ in range(times):
            at += 1.0
            noise.add((1.0, 1.0), 1.0, at)
            noise.compare((1.0, ratio), 1.0, differenced=differenced)

    compare(2.0, differenced=True)
    assert noise.ratio == pytest.approx(2.0)
    compare(3.0, differenced=False, times=NUM_GROUPS - 1)
    assert noise.ratio is None  # begun anew
    compare(3.0, differenced=False, times=1)
    assert noise.ratio == pytest.approx(3.0)
    compare(2.0, differenced=True)
    assert noise.ratio == pytest.approx(3.0)
    at += 1.0 / (1.0 - DECAY_COMPARED)
    compare(2.0, differenced=True)
    assert noise.ratio == pytest.approx(2.0)


def test_a_whole_that_cannot_be_told_from_zero_calibrates_nothing() -> None:
    noise = fed([((1.0, 1.0), (-1.0, 1.0))] * 20)
    assert noise.num_compared == 20
    assert (noise.ratio, noise.estimate(), noise.interval()) == (None, None, None)


# -- against gradients of known covariance
# -------------------------------------------------------------

DIM = 24
IN_LAYERS = 8
SAMPLES = 16
DEVIATIONS = np.linspace(1.5, 0.2, DIM)
MEAN = np.concatenate([np.full(IN_LAYERS, 0.3), np.full(DIM - IN_LAYERS, 0.4)])


def trials(count: int, steps: int, *, differenced: bool) -> Iterator[NoiseScale]:
    """Yield what is learnt from `steps` steps, of which the first 8 coordinates are the
    layers'.
    """
    rng = np.random.default_rng(5)
    for _ in range(count):
        noise = NoiseScale(SAMPLES)
        before = np.zeros((0, DIM))
        for step in range(steps):
            each = MEAN + DEVIATIONS * rng.standard_normal((SAMPLES, DIM))
            layers = norms_of(each[:, :IN_LAYERS], 1)
            if not differenced:
                whole = norms_of(each, SAMPLES // 2)
            elif step % 2:
                whole = norms_of(
                    np.concatenate([before, each]), SAMPLES, differenced=True
                )
            else:
                whole = GradNorms(
                    small_sqr=0, inverse=0, count=0, big_sqr=0, samples=SAMPLES
                )
            before = each
            noise.add(replace(whole, layers=layers), SAMPLES * (step + 1.0))
        yield noise


def norms_of(each: np.ndarray, size: int, *, differenced: bool = False) -> GradNorms:
    """Return the norms of means of `size` samples' gradients (num_samples, dim) each,
    and of all.
    """
    means = each.reshape(-1, size, each.shape[1]).mean(axis=1)
    whole = each.mean(axis=0)
    return GradNorms(
        small_sqr=float((means**2).sum()),
        inverse=len(means) / size,
        count=len(means),
        big_sqr=float(whole @ whole),
        samples=len(each),
        differenced=differenced,
    )


@pytest.mark.parametrize(
    ("steps", "differenced"), [(60, False), (60, True), (200, True)]
)
def test_the_stated_interval_covers_the_truth_of_the_whole(
    steps: int, *, differenced: bool
) -> None:
    truth = float((DEVIATIONS**2).sum() / (MEAN @ MEAN))
    of_layers = float(
        (DEVIATIONS[:IN_LAYERS] ** 2).sum() / (MEAN[:IN_LAYERS] @ MEAN[:IN_LAYERS])
    )
    assert abs(of_layers / truth - 1.0) > 0.2
    found = []
    covered = []
    within_stderr = []
    for noise in trials(150, steps, differenced=differenced):
        stats = noise.stats()
        interval = noise.interval()
        cautious = noise.cautious()
        assert stats is not None
        assert stats.noise_scale_stderr is not None
        assert interval is not None
        assert noise.calibration is not None
        assert (cautious is None) is differenced
        found.append(stats.noise_scale(SAMPLES))
        assert interval[0] <= found[-1] <= interval[1]
        assert cautious is None or cautious.noise_scale(SAMPLES) == pytest.approx(
            interval[0]
        )
        covered.append(interval[0] <= truth <= interval[1])
        within_stderr.append(abs(found[-1] - truth) <= 1.645 * stats.noise_scale_stderr)
    assert np.mean(found) == pytest.approx(truth, rel=0.1)
    assert 0.85 <= np.mean(covered) <= 0.97
    assert np.mean(within_stderr) >= 0.8


def test_a_gradient_that_cannot_be_told_from_zero_supports_no_upper_end() -> None:
    rng = np.random.default_rng(2)
    noise = LayerNoise()
    for step in range(400):
        sqr = float(rng.normal(0.05, 1.0))
        noise.add((sqr, 1.0), 1.0, step + 1.0)
        noise.compare((float(rng.normal(0.1, 1.0)), 2.0), 1.0, differenced=False)
    interval = noise.interval()
    assert interval is None or interval[1] == math.inf
