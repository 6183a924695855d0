"""Real jobs of one application under a real scheduler tell each other how long their
steps take.
"""

import json
import sys
from pathlib import Path

import pytest

from coadapt.model import ApplicationTimes
from coadapt.model.wire import from_json
from tests.cli.live_cluster import LiveCluster, until
from tests.train.toy import Toy

pytestmark = [pytest.mark.train, pytest.mark.processes]


def test_jobs_are_told_what_others_of_their_application_timed(tmp_path: Path) -> None:
    """Both train on one GPU. Both are told the same steps, to the last digit, so not
    each its own.
    """
    cluster = LiveCluster(tmp_path, policy="castor")
    cluster.up(slots=2)
    try:
        jobs = {name: _submit(cluster, tmp_path / name) for name in ("first", "second")}
        until(lambda: bool(_told_both(tmp_path, jobs)), "both are told the same")
        for name in jobs:
            (tmp_path / name / "fast").touch()
        for job in jobs.values():
            cluster.wait_for(job, "succeeded")
    finally:
        cluster.close()
    for line in _told_both(tmp_path, jobs):
        times = from_json(ApplicationTimes, json.loads(line), "application_times")
        assert times.placement.num_replicas == 1
        assert {step.atomic for step in times.steps} <= _batches(tmp_path, jobs)


def _submit(cluster: LiveCluster, folder: Path) -> str:
    folder.mkdir()
    toy = Toy(
        folder=str(folder),
        num_epochs=100,
        batch_size=16,
        max_batch_size=128,
        contract="adaptive",
        pace_s=0.05,
    )
    script = (
        f"from tests.cli.application_times_listener import listen; listen('{folder / 'times'}'); "
        f"from tests.train.toy import Toy, run_toy; run_toy({toy!r})"
    )
    job = {
        "name": folder.name,
        "application": "toy",
        "run": f'{sys.executable} -c "{script}"',
        "workdir": str(Path.cwd()),
        "contract": "adaptive",
        "batch": {"initial": 16, "max": 128},
        "envs": {"COADAPT_REPORT_EVERY_S": "1"},
        "resources": {"gpus": "1"},
    }
    return str(cluster.client.post("/v1/jobs", job)["id"])


def _told_both(folder: Path, jobs: dict[str, str]) -> set[str]:
    """Return the answers that each of the jobs got."""
    paths = [folder / name / "times" for name in jobs]
    return set.intersection(
        *(
            set(path.read_text().splitlines()) if path.exists() else set()
            for path in paths
        )
    )


def _batches(folder: Path, jobs: dict[str, str]) -> set[int]:
    """Return how many samples each pass of theirs had, of one replica."""
    counts = set()
    for name in jobs:
        for path in (folder / name).glob("ids-*.jsonl"):
            counts |= {
                len(json.loads(line)[3]) for line in path.read_text().splitlines()
            }
    return counts
