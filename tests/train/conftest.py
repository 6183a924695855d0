"""Shared by the trainer's tests: what is measured does not depend on the speed of the machine."""

import pytest


@pytest.fixture(autouse=True)
def every_pair(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measure every pair of steps: of short ones fewer are, and how many is left to the clock."""
    monkeypatch.setattr("coadapt.train.samples.pace.PAIR_EVERY_CPU_S", 0.0)
