"""Changing the replicas of living processes that hold parts of a model: whatever happens, the same run."""

from pathlib import Path

import pytest

from tests.train.replicas import Elastic
from tests.train.rescale.test_elastic import assert_same_run
from tests.train.schedules import killed_at_random, random_changes
from tests.train.toy import Toy, run_toy

pytestmark = [pytest.mark.train, pytest.mark.processes]


def test_a_sharded_run_that_changes_in_place_is_the_undisturbed_one(tmp_path: Path) -> None:
    toy = Toy(
        folder=str(tmp_path), num_epochs=60, pace_s=0.005, strategy="fsdp", optimizer="groups", clip=0.3
    )
    run = Elastic(run_toy, toy, tmp_path)
    try:
        run.start(1)
        for num_replicas in (3, 2, 4, 1):
            leaving = run.order(num_replicas)
            run.await_done()
            assert run.done(), run.outputs()
            assert run.join(leaving) == [0] * len(leaving), run.outputs()
        assert run.join(run.members) == [0], run.outputs()
    finally:
        run.kill()
    assert_same_run(toy)


@pytest.mark.parametrize("seed", [1, 2])
def test_any_schedule_of_changes_is_the_undisturbed_run(tmp_path: Path, seed: int) -> None:
    random_changes(tmp_path, seed, strategy="fsdp")


def test_a_replica_killed_around_a_change_costs_steps_only(tmp_path: Path) -> None:
    killed_at_random(tmp_path, seed=1, strategy="fsdp")
