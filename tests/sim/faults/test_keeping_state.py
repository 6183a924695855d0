"""Policies that remember, learn or search from round to round: whatever breaks, their
jobs all end.

A seed of each family here; all of 100: `python -m tests.sim.faults.test_keeping_state
[POLICY ...]`.
"""

import sys
from collections.abc import Callable

import pytest

from coadapt.sim.faults.scenario import Scenario
from tests.sim.faults.test_sharing_gpus import FAMILIES, survive

POLICIES = ("sia", "ones", "shockwave", "pollux", "castor")
SLOW = ("sia", "ones")  # integer programmes, and kernels to compile


@pytest.mark.parametrize("draw", FAMILIES)
@pytest.mark.parametrize(
    "policy",
    [
        pytest.param(each, marks=[pytest.mark.slow] if each in SLOW else [])
        for each in POLICIES
    ],
)
def test_their_jobs_end_whatever_breaks(
    policy: str, draw: Callable[[int], Scenario]
) -> None:
    survive(policy, draw, seed=11)


def main(policies: list[str]) -> int:
    """Say of how many seeds each policy's jobs all ended, and why not of the others;
    return 1 if of any.
    """
    num_failed = 0
    for policy in policies or POLICIES:
        for draw in FAMILIES:
            failed = []
            for seed in range(100):
                try:
                    survive(policy, draw, seed)
                except Exception as error:  # noqa: BLE001  # a policy may raise anything
                    failed.append(f"{type(error).__name__}: {error}")
            num_failed += len(failed)
            said = (
                f"{policy}: {100 - len(failed)} of 100 seeds of {draw.__name__} "
                f"survived"
            )
            print(said, *failed, sep="\n  ", flush=True)
    return int(num_failed > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
