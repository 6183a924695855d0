"""Runs whose every decision is on file: whatever is moved or renamed, they stay as they
are.
"""

import pytest

from tests.golden.digests import cases, digest, on_file


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(
            case, marks=[pytest.mark.slow] if case.startswith("pollux-genetic") else []
        )
        for case in cases()
    ],
)
def test_a_run_decides_as_it_did(case: str) -> None:
    assert digest(case) in on_file()[case], "meant? renew it, and say why in the commit"
