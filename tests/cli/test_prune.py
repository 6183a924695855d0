"""`coadapt prune` as an operator meets it: beside a scheduler that runs, and without
one.
"""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.live_cluster import LiveCluster, call_cli

pytestmark = pytest.mark.processes


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LiveCluster]:
    cluster = LiveCluster(tmp_path)
    yield cluster
    cluster.close()


def test_prune_forgets_ended_jobs_and_leaves_living_ones_and_checkpoints(
    cluster: LiveCluster,
) -> None:
    cluster.up()
    ended = [
        cluster.submit(f"short-{number}", "echo hello", TARGET=1) for number in range(2)
    ]
    kept = cluster.submit("counts", TARGET=1)
    living = cluster.submit("long", TARGET=100_000)
    for job in (*ended, kept):
        cluster.wait_for(job, "succeeded")
    cluster.wait_for(living, "running")
    pruned = call_cli("prune", "--keep-days", "0", "--dry-run", state=cluster.state)
    assert pruned.returncode == 0, pruned
    assert pruned.stdout.startswith("would be deleted: 3 ended jobs, logs of 0 more, ")
    assert len(cluster.client.jobs()) == 4
    done = call_cli("prune", "--keep-days", "0", "--json", state=cluster.state)
    assert sorted(json.loads(done.stdout)["jobs"]) == sorted([*ended, kept])
    assert [job["id"] for job in cluster.client.jobs()] == [living]
    assert cluster.job(living)["state"] == "running"
    cluster.kill()
    again = call_cli("prune", "--keep-days", "0", state=cluster.state)
    assert again.stdout.startswith(
        "deleted: 0 ended jobs, logs of 0 more, 0.0 MiB of files, 0 events"
    )
    left = {
        path.name: sorted(entry.name for entry in path.iterdir())
        for path in (cluster.state / "jobs").iterdir()
    }
    assert left.keys() == {kept, living}
    assert left[kept] == ["checkpoints"]
    cluster.up()
    assert cluster.job(living)["state"] in ("starting", "running")
    refused = call_cli("prune", "--keep-days", "-1", state=cluster.state)
    assert (refused.returncode, refused.stderr.count("\n")) == (2, 1)
    assert "--keep-days: got -1" in refused.stderr
