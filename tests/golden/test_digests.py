"""Runs whose every decision is on file: whatever is moved or renamed, they stay as they
are.
"""

import pytest

from tests.golden.digests import FAULT_SEEDS, cases, digest, on_file

LATER_FAULTS = tuple(f"faults {first}" for first in range(10, FAULT_SEEDS, 10))


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(
            case,
            marks=[pytest.mark.slow] * case.startswith("pollux-genetic")
            + [pytest.mark.long] * case.startswith(LATER_FAULTS),
        )
        for case in cases()
    ],
)
def test_a_run_decides_as_it_did(case: str) -> None:
    assert digest(case) == on_file()[case], "meant? renew it, and say why in the commit"
