"""Norms of a step: what a meter takes in, and what it leaves out."""

import pytest
import torch

from coadapt.train.noise.noise_scale import GradNorms
from coadapt.train.noise.norms import NormMeter

pytestmark = pytest.mark.train


def alone(
    meter: NormMeter, value: float, *, measure: bool = True, size: int = 4
) -> GradNorms | None:
    meter.begin_step(measure=measure)
    meter.add_alone([], [torch.tensor([value, 0.0])], size)
    return meter.take(1, size)


def test_two_successive_steps_make_one_estimate() -> None:
    meter = NormMeter(None, sums=False)
    found = [alone(meter, value) for value in (1.0, 3.0, 5.0, 5.0)]
    pair = GradNorms(
        small_sqr=10.0, inverse=0.5, count=2, big_sqr=4.0, samples=8, differenced=True
    )
    assert found[:3] == [None, pair, None]
    assert found[3] is not None
    assert found[3].big_sqr == 25.0


def test_steps_that_are_apart_or_unequal_do_not() -> None:
    meter = NormMeter(None, sums=False)
    assert alone(meter, 1.0) is None
    assert alone(meter, 1.0, measure=False) is None
    assert alone(meter, 1.0) is None
    assert alone(meter, 1.0, size=3) is None
    assert alone(meter, 1.0, size=3) is not None


def test_summed_gradients_count_per_sample() -> None:
    """Two passes of four samples with mean gradients 1 and 3, given as means and as
    sums.
    """
    wanted = GradNorms(small_sqr=10.0, inverse=0.5, count=2, big_sqr=2.0, samples=8)
    for sums, passes, whole in ((False, (1.0, 3.0), 2.0), (True, (4.0, 12.0), 16.0)):
        meter = NormMeter(None, sums=sums)
        meter.begin_step(measure=True)
        for value in passes:
            meter.add_part([], [torch.tensor([value])], 4)
            meter.end_pass(4)
        meter.set_whole([], [torch.tensor([whole])], 8)
        assert meter.take(2, 8) == wanted


def test_a_stand_in_adds_nothing() -> None:
    meter = NormMeter(None, sums=False)
    meter.begin_step(measure=True)
    meter.add_part([], [torch.ones(1)], 0)
    meter.end_pass(0)
    meter.set_whole([], [torch.ones(1)], 2)
    assert meter.take(2, 2) == GradNorms(
        small_sqr=0.0, inverse=0.0, count=0, big_sqr=0.5, samples=2
    )
