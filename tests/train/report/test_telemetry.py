"""How old a process is, on machines that tell and on others."""

import time
from pathlib import Path

import pytest

from coadapt.train.report.telemetry import process_age_s

pytestmark = pytest.mark.train


def test_the_age_of_a_process_is_known_everywhere() -> None:
    for stat in (Path("/proc/self/stat"), Path("/no/such/file")):
        before = process_age_s(stat)
        time.sleep(0.02)
        assert 0.01 <= process_age_s(stat) - before < 10.0
