"""Changing the replicas of living processes, with real ones: whatever happens, the same run."""

from pathlib import Path

import pytest

from coadapt.model.contract_env import ENV_JOB, ENV_URL
from coadapt.train.meeting import WAIT_S
from tests.train.replicas import Elastic
from tests.train.schedules import killed_at_random, random_changes
from tests.train.test_elastic import assert_same_run
from tests.train.test_reporter import serving
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
    assert_same_run(toy)


def test_the_first_replica_of_the_moment_reports_the_pause(tmp_path: Path) -> None:
    toy = Toy(folder=str(tmp_path), num_epochs=60, pace_s=0.005)
    with serving() as scheduler:
        run = Elastic(run_toy, toy, tmp_path, **{ENV_URL: scheduler.url, ENV_JOB: "job-1"})
        try:
            run.start(2)
            for num_replicas, keep in ((2, [1]), (1, [])):
                leaving = run.order(num_replicas, keep=keep)
                run.await_done()
                assert run.join(leaving) == [0] * len(leaving), run.outputs()
            bodies = scheduler.wait("/v1/jobs/job-1/rescaled", 3)
            assert run.join(run.members) == [0], run.outputs()
        finally:
            run.kill()
    assert [body["generation"] for body in bodies] == [1, 2, 3]
    assert all(0.0 < float(str(body["rescale_s"])) < WAIT_S for body in bodies[1:])
    assert "pause" not in bodies[0]
    for body in bodies[1:]:
        parts = body["pause"]
        assert isinstance(parts, dict)
        assert list(parts) == ["agree", "destroy", "form", "transfer", "wrap", "first step"]
        assert sum(parts.values()) == pytest.approx(body["rescale_s"])
    assert_same_run(toy)


def test_processes_that_fetch_data_follow_the_change(tmp_path: Path) -> None:
    toy = Toy(folder=str(tmp_path), num_epochs=20, fetchers=1, pace_s=0.02)
    run = Elastic(run_toy, toy, tmp_path)
    try:
        run.start(1)
        run.order(2)
        run.await_done()
        assert run.done(), run.outputs()
        assert run.join(run.members) == [0, 0], run.outputs()
    finally:
        run.kill()
    assert_same_run(toy)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_any_schedule_of_changes_is_the_undisturbed_run(tmp_path: Path, seed: int) -> None:
    random_changes(tmp_path, seed)


@pytest.mark.parametrize("seed", [1, 2, 3, 4])
def test_a_replica_killed_around_a_change_costs_steps_only(tmp_path: Path, seed: int) -> None:
    killed_at_random(tmp_path, seed)
