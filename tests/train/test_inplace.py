"""Changing the replicas of living processes, with real ones: whatever happens, the same run."""

import random
from dataclasses import replace
from pathlib import Path

import pytest

from tests.train.replicas import Elastic
from tests.train.test_elastic import assert_same_run
from tests.train.toy import Toy, run_toy

pytestmark = [pytest.mark.train, pytest.mark.processes]


def test_a_run_that_changes_in_place_is_the_undisturbed_one(tmp_path: Path) -> None:
    toy = Toy(folder=str(tmp_path), num_epochs=60, pace_s=0.005)
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
    print(run.outputs())
    assert_same_run(toy)
