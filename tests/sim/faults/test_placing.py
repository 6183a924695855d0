"""Policies that keep accounts of places, waits and speeds from round to round: whatever
breaks, all jobs end.

A seed here; all of 100: `python -m tests.sim.faults.test_placing`.
"""

import sys

import pytest

from tests.sim.faults.test_dividing_time import survive

POLICIES = (
    "lwf(residents=3)",
    "dally(quantum_s=60)",
    "rubick(guaranteed_from=1)",
    "rubick",
    "deeppool(least_idle=0.0)",
)


@pytest.mark.parametrize("policy", POLICIES)
def test_their_jobs_end_whatever_breaks(policy: str) -> None:
    survive(policy, seed=11)


if __name__ == "__main__":
    for name in sys.argv[1:] or POLICIES:
        for number in range(100):
            survive(name, number)
        print(f"{name}: 100 of 100 seeds survived", flush=True)
