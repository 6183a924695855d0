"""The second family of scenarios: types, racks, shared GPUs, scripts that set their
batch, all at once.
"""

import hashlib
import json
import random
from dataclasses import replace

import pytest

from coadapt.core.scheduler import Scheduler
from coadapt.model import PlanError, check_plan
from coadapt.sim.faults.__main__ import main
from coadapt.sim.faults.fault_run import FaultRun, run_seed
from coadapt.sim.faults.invariants import InvariantError
from coadapt.sim.faults.mixed import MixedChaosPolicy, draw_mixed, spoiled_mixed
from coadapt.sim.faults.scenario import Family, draw_scenario
from tests.sim.faults.test_chaos import views

NUM_SEEDS = 20
# Of the scenarios of seeds 0 to 499 as they were drawn before there was a second
# family.
FIRST_FAMILY = "8d7c04a31b7b9e6d"


def test_the_seeds_of_the_first_family_are_what_they_were() -> None:
    digests = [_told(seed) for seed in range(500)]
    assert hashlib.sha256(json.dumps(digests).encode()).hexdigest()[:16] == FIRST_FAMILY


def _told(seed: int) -> list[object]:
    s = draw_scenario(seed, hangs=False)
    jobs = [
        [
            *(
                job.id,
                job.at,
                job.spec.replicas.min,
                job.spec.replicas.max,
                job.spec.replicas.requested,
            ),
            *(job.spec.batch.requested, job.spec.contract.value, job.spec.max_failures),
        ]
        for job in s.jobs
    ]
    rates = [
        s.rates.lose,
        s.rates.double,
        s.rates.delay,
        s.rates.delay_max_s,
        s.rates.solver,
    ]
    return [
        [[node.id, node.num_gpus, node.gpu_type, node.rack] for node in s.nodes],
        jobs,
        s.policy,
        [s.scheduler.reaction_s, s.scheduler.retry_s, s.scheduler.rescale_in_place],
        [
            s.world.rescale_s,
            s.world.prepare_s,
            s.world.checkpoint_s,
            s.world.interference,
        ],
        [*rates, s.rates.power_cut],
        [
            [fault.at, fault.kind.value, fault.target, fault.lasts_s]
            for fault in s.faults
        ],
    ]


@pytest.mark.long
def test_mixed_seeds_survive_and_meet_what_they_are_for() -> None:
    met = [run_seed(seed, family=Family.MIXED).seen for seed in range(NUM_SEEDS)]
    assert sum(seen.num_pairs > 0 for seen in met) > 0.9 * NUM_SEEDS
    assert (
        sum(len(seen.gpu_types) == 2 == len(seen.racks) for seen in met)
        > 0.9 * NUM_SEEDS
    )
    assert sum(len(seen.own_batches) > 1 for seen in met) > 0.8 * NUM_SEEDS


@pytest.mark.parametrize("seed", range(3))
def test_a_policy_by_name_is_asked_and_not_chaos(seed: int) -> None:
    """It was not: what `gandiva` and others were said to survive in this family, only
    chaos did.
    """
    named = FaultRun(replace(draw_mixed(seed), policy="fifo"), Scheduler, None).run()
    assert (
        named.seen.num_pairs,
        run_seed(seed, family=Family.MIXED).seen.num_pairs > 0,
    ) == (
        0,
        True,
    )


@pytest.mark.parametrize("seed", range(5))
def test_every_scenario_has_all_of_it(seed: int) -> None:
    scenario = draw_mixed(seed)
    assert {node.gpu_type for node in scenario.nodes} == {"a", "b"}
    assert {node.rack for node in scenario.nodes} == {"r1", "r2"}
    assert [job.spec.replicas.min for job in scenario.jobs[:3]] == [1, 1, 1]
    assert "self" in {job.spec.contract.value for job in scenario.jobs}
    assert draw_mixed(seed) == scenario != draw_mixed(seed + 1)


def test_its_policy_is_lawful_and_what_is_spoiled_is_not() -> None:
    rng = random.Random(3)
    for view in views(1):
        plan = MixedChaosPolicy(5, 1e12).allocate(view)
        check_plan(view, plan)
        for _ in range(5):
            with pytest.raises(PlanError):
                check_plan(view, spoiled_mixed(plan, view, rng))


def test_a_failure_tells_how_to_rerun_it() -> None:
    def none(*_: object) -> None:
        raise AssertionError("no scheduler")

    with pytest.raises(InvariantError, match=r"coadapt\.sim\.faults --mixed --seed 3"):
        run_seed(3, none, family=Family.MIXED)  # type: ignore[arg-type]


def test_the_command_counts_what_was_met(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--mixed", "--count", "2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == ["2 of 2 seeds survived", "    2 met two jobs on one GPU"]
