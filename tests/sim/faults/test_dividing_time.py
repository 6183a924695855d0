"""Policies that divide time keep accounts from round to round: whatever breaks, their
jobs all end.

A few seeds here; all of 100: `python -m tests.sim.faults.test_dividing_time`.
"""

from dataclasses import replace

import pytest

from coadapt.core.scheduler import Scheduler
from coadapt.sim.faults.fault_run import FaultRun
from coadapt.sim.faults.scenario import draw_scenario

POLICIES = (
    "gavel",
    "gavel(objective=ftf, resolve_s=300.0)",
    "themis(central=true)",
    "ossp",
    "mst",
    "allox(alpha=0.2)",
    "gandiva-fair",
)


def survive(policy: str, seed: int) -> None:
    scenario = replace(draw_scenario(seed), policy=policy)
    try:
        FaultRun(scenario, Scheduler, None).run()
    except AssertionError as error:
        raise AssertionError(f"{policy}, seed {seed}: {error}") from error


@pytest.mark.parametrize("policy", POLICIES)
def test_their_jobs_end_whatever_breaks(policy: str) -> None:
    survive(policy, seed=11)


if __name__ == "__main__":
    for name in POLICIES:
        for number in range(100):
            survive(name, number)
        print(f"{name}: 100 of 100 seeds survived", flush=True)
