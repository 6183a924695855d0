"""Policies on real processes: two jobs under each, and a scheduler that is killed and started again.

One in the suite; all: `python -m tests.cli.test_policies_live`.
"""

import sys
import tempfile
from pathlib import Path

import pytest

from coadapt.policies import POLICIES
from tests.cli.live_cluster import LiveCluster, until

pytestmark = [pytest.mark.processes, pytest.mark.slow]


def live(policy: str, folder: Path) -> None:
    cluster, gate = LiveCluster(folder, policy), folder / "gate"
    try:
        cluster.up()
        jobs = [
            cluster.submit(name, gpus=gpus, TARGET=10, GATE=str(gate))
            for name, gpus in (("a", "1"), ("b", "1"))
        ]
        until(lambda: any(cluster.count(job) for job in jobs), "a job counts")
        cluster.kill()
        cluster.up()
        gate.touch()
        for job in jobs:
            cluster.wait_for(job, "succeeded")
            assert cluster.count(job) >= 10
            assert not [line for line in cluster.trace(job) if "two lives" in line]
    finally:
        cluster.close()


@pytest.mark.parametrize("policy", ["lwf"])
def test_jobs_end_under_a_scheduler_that_is_killed(policy: str, tmp_path: Path) -> None:
    live(policy, tmp_path)


if __name__ == "__main__":
    for name in sys.argv[1:] or POLICIES:
        with tempfile.TemporaryDirectory() as place:
            live(name, Path(place))
        print(f"{name}: both jobs ended", flush=True)
