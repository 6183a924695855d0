"""Each policy on a real cluster of four slots: real training, jobs that wait, kill -9
of the scheduler.

python -m tests.cli.every_policy [POLICY ...]
"""

import argparse
import sys
import tempfile
import time
from pathlib import Path
from typing import cast

from coadapt.model.wire import Json
from coadapt.policies import policy_names
from tests.cli.live_cluster import LiveCluster, until

EXAMPLES = Path(__file__).parents[2] / "examples" / "train"
SECONDS = 120.0
# What the scheduler writes where a policy failed: it has the word for it, and nothing
# else here.
COMPLAINTS = (
    "has no plan",
    "policy fails",
    "kept the old allocations",
    "set aside",
    "Traceback",
)


def live_round(folder: Path, policy: str, *, trained: bool = True) -> list[str]:
    """Return each job with its number of starts. Raises AssertionError where one is
    lost or doubled.

    Four counters and a job of two GPUs ask for more than there is; with `trained`, a
    script that reports is there too, and the scheduler is killed once more while it
    trains.
    """
    gate = folder / "gate"
    cluster = LiveCluster(folder, policy=policy)
    try:
        cluster.up()
        training = [_submit_training(cluster)] if trained else []
        counters = [
            cluster.submit(f"counter-{index}", TARGET=1, GATE=str(gate))
            for index in range(4)
        ]
        rigid = cluster.submit(
            "rigid", f"until [ -e {gate} ]; do sleep 0.1; done", gpus="2"
        )
        until(lambda: any(cluster.trace(job) for job in counters), "a counter runs")
        cluster.kill()
        gate.touch()
        cluster.up()
        if trained:
            until(
                lambda: _reports(cluster, training[0]),
                "the training reports",
                within_s=SECONDS,
            )
            cluster.kill()
            cluster.up()
        jobs = [*training, *counters, rigid]
        for job in jobs:
            ended = cluster.wait_for(job, "succeeded", "failed", within_s=SECONDS)
            assert (ended["state"], ended["num_failures"]) == ("succeeded", 0), ended[
                "decisions"
            ]
        for job in counters:
            assert not [line for line in cluster.trace(job) if "two lives" in line]
        log = (folder / "up.log").read_text()
        assert not [
            line
            for line in log.splitlines()
            if any(each in line for each in COMPLAINTS)
        ], log
        return [
            f"{each['name']} {each['num_starts']}" for each in map(cluster.job, jobs)
        ]
    finally:
        cluster.close()


def _reports(cluster: LiveCluster, job: str) -> bool:
    return cast(float, cluster.job(job)["progress"] or 0.0) > 0.0


def _submit_training(cluster: LiveCluster) -> str:
    job = {
        "name": "classify",
        "run": f"{sys.executable} classify.py --epochs 6 --samples 4000",
        "workdir": str(EXAMPLES),
        "batch": {"initial": 32, "max": 128},
        "contract": "adaptive",
        "resources": {"gpus": "1..2"},
        "length": {"epochs": 6},
        "envs": {"COADAPT_REPORT_EVERY_S": "0.5"},
    }
    return str(cluster.client.post("/v1/jobs", cast(Json, job))["id"])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("policies", nargs="*")
    broken = []
    for policy in parser.parse_args().policies or policy_names():
        began = time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            try:
                outcome = "; ".join(live_round(Path(folder), policy))
            except AssertionError as error:
                broken.append(policy)
                outcome = f"FAILED: {error}"
        print(f"{policy:16} {time.monotonic() - began:5.1f} s  {outcome}", flush=True)
    return int(bool(broken))


if __name__ == "__main__":
    raise SystemExit(main())
