"""Shared by the trainer's tests: what is measured does not depend on the speed of the
machine.
"""

import pytest
import torch

from coadapt.train.check.replicas import ScriptRun
from tests.train.forked_script import ForkedScript


@pytest.fixture(autouse=True)
def every_pair(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measure every pair of steps: of short ones fewer are, and how many is left to the
    clock.
    """
    monkeypatch.setattr("coadapt.train.samples.pace.PAIR_EVERY_CPU_S", 0.0)


@pytest.fixture(autouse=True)
def no_gpu(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Train on the CPU where there are GPUs, too: what is expected was worked out
    there.
    """
    if request.node.get_closest_marker("gpu") is None:
        monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)


@pytest.fixture
def forked_replicas(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a check in this process start its replicas as forks, which have torch
    loaded.
    """
    monkeypatch.setattr(ScriptRun, "launch", staticmethod(ForkedScript))
