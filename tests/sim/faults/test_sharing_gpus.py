"""Policies that put jobs on one GPU, or keep curves, between rounds: whatever breaks,
their jobs all end.

A few seeds here; all of 100, of both families: `python -m
tests.sim.faults.test_sharing_gpus`.
"""

from collections.abc import Callable
from dataclasses import replace

import pytest

from coadapt.core.scheduler import Scheduler
from coadapt.model import PlanError
from coadapt.sim.faults.fault_run import FaultRun
from coadapt.sim.faults.mixed import draw_mixed
from coadapt.sim.faults.scenario import Scenario, draw_scenario

POLICIES = ("gandiva", "antman", "optimus-online", "slaq")
FAMILIES: tuple[Callable[[int], Scenario], ...] = (draw_scenario, draw_mixed)


def survive(policy: str, draw: Callable[[int], Scenario], seed: int) -> None:
    try:
        FaultRun(replace(draw(seed), policy=policy), Scheduler, None).run()
    except (AssertionError, PlanError) as error:
        raise AssertionError(
            f"{policy}, seed {seed} of {draw.__name__}: {error}"
        ) from error


@pytest.mark.parametrize("draw", FAMILIES)
@pytest.mark.parametrize("policy", POLICIES)
def test_their_jobs_end_whatever_breaks(
    policy: str, draw: Callable[[int], Scenario]
) -> None:
    survive(policy, draw, seed=11)


if __name__ == "__main__":
    for name in POLICIES:
        for family in FAMILIES:
            for number in range(100):
                survive(name, family, number)
            print(f"{name}: 100 of 100 seeds of {family.__name__} survived", flush=True)
