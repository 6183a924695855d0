"""Changing the replicas of living processes that hold parts of a model: whatever
happens, the same run.
"""

from pathlib import Path

import pytest

from tests.train.schedules import few_and_many, killed_at_random, random_changes
from tests.train.toy import Toy

pytestmark = [pytest.mark.train, pytest.mark.processes]


def test_a_sharded_run_that_changes_in_place_is_the_undisturbed_one(
    tmp_path: Path,
) -> None:
    toy = Toy(
        folder=str(tmp_path),
        num_epochs=25,
        pace_s=0.03,
        strategy="fsdp",
        optimizer="groups",
        clip=0.3,
    )
    few_and_many(toy)


def test_any_schedule_of_changes_is_the_undisturbed_run(tmp_path: Path) -> None:
    random_changes(tmp_path, seed=1, strategy="fsdp")


def test_a_replica_killed_around_a_change_costs_steps_only(tmp_path: Path) -> None:
    killed_at_random(tmp_path, seed=1, strategy="fsdp")
