"""What is measured of a pass: compute without the wait for peers, late where a device
is behind Python.
"""

import pytest

from coadapt.model import Placement
from coadapt.train.wrappers.timing import (
    PASS_MIN_S,
    WARMUP_STEPS,
    PassTimer,
    StepSample,
)

pytestmark = pytest.mark.train

ALONE = Placement((1,))
PAIR = Placement((2,))


class Device:
    """A stopwatch whose device reaches an instant only when told to."""

    def __init__(self) -> None:
        self.at = 0.0
        self.reached = float("inf")

    def mark(self) -> float:
        return self.at

    def seconds(self, start: float, end: float) -> float | None:
        return end - start if end <= self.reached else None


def one_pass(
    timer: PassTimer[float], device: Device, *, wait_s: float = 0.0, count: bool = True
) -> None:
    timer.start()
    device.at += 1.0
    if wait_s:
        timer.mark("computed")
        device.at += wait_s
        timer.mark("averaged")
    timer.end(PAIR if wait_s else ALONE, 8, count=count)


def warm(samples: list[StepSample]) -> tuple[PassTimer[float], Device]:
    device = Device()
    timer = PassTimer(device, samples.append)
    for _ in range(WARMUP_STEPS):
        one_pass(timer, device)
    return timer, device


def test_waiting_for_peers_is_no_compute() -> None:
    samples: list[StepSample] = []
    timer, device = warm(samples)
    one_pass(timer, device)
    one_pass(timer, device, wait_s=0.5)
    assert samples == [StepSample(ALONE, 8, 1.0, 1.0), StepSample(PAIR, 8, 1.0, 1.5)]


def test_warming_up_and_partial_batches_do_not_count() -> None:
    samples: list[StepSample] = []
    timer, device = warm(samples)
    one_pass(timer, device, count=False)
    assert samples == []
    one_pass(timer, device)
    timer.warm_up()
    one_pass(timer, device)
    assert len(samples) == 1


def test_a_device_that_is_behind_delivers_later_and_in_order() -> None:
    samples: list[StepSample] = []
    timer, device = warm(samples)
    device.reached = 0.0
    one_pass(timer, device)
    one_pass(timer, device, wait_s=0.25)
    assert samples == []
    device.reached = device.at - 1.25
    one_pass(timer, device)
    assert samples == [StepSample(ALONE, 8, 1.0, 1.0)]
    device.reached = float("inf")
    one_pass(timer, device)
    assert [sample.step_s for sample in samples] == [1.0, 1.25, 1.0, 1.0]


def test_times_are_never_zero() -> None:
    samples: list[StepSample] = []
    timer, _ = warm(samples)
    timer.start()
    timer.end(ALONE, 1, count=True)
    assert samples == [StepSample(ALONE, 1, PASS_MIN_S, PASS_MIN_S)]
