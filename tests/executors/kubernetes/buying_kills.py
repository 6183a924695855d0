"""Nodes that are bought on Kubernetes while the scheduler is killed at random moments:
no node is ordered twice, none is forgotten, and no job restarts.

    python -m tests.executors.kubernetes.buying_kills --kills 20

Each round submits an elastic job of two replicas, kills the scheduler, gives one of
its two nodes a notice, kills the scheduler again while another node is ordered, and
ends the job. Told are the times of growing, draining and shrinking, and those of two
first rounds without kills.
"""

import argparse
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import cast

from benchmarks.stored import store_results
from coadapt.model.wire import Json
from tests.cli.live_cluster import until
from tests.executors.kubernetes.autoscaler import TO_BE_DELETED
from tests.executors.kubernetes.buying_market import BuyingCluster
from tests.executors.kubernetes.control_plane import ControlPlane, why_missing
from tests.executors.kubernetes.site import make_ready

TRAINER = f"exec {sys.executable} {Path(__file__).parents[1] / 'fake_trainer.py'}"
NODES = 2
CALM_ROUNDS = 2
PAUSE_MAX_S = 4.0
LIMIT_S = 240.0

Times = dict[str, list[float]]


class Rounds:
    """Rounds of one cluster. times: s, by what was measured. kills: whether the
    scheduler is killed.
    """

    def __init__(self, cluster: BuyingCluster, seed: int) -> None:
        self.times: Times = {}
        self.kills = False
        self._cluster = cluster
        self._draw = random.Random(seed)
        self._num = 0

    def play(self) -> None:
        """Play one round, with two kills if there are any."""
        cluster = self._cluster
        folder = cluster.folder / f"round-{self._num}"
        folder.mkdir()
        added = len(cluster.autoscaler.added)
        began = time.monotonic()
        job = self._submit(folder)
        self._kill()
        self._take("two nodes and both replicas", began, lambda: self._trains(job, 2))
        goes = self._leave_one(job)
        self._kill()
        self._take("another node and replica", goes, lambda: self._trains(job, 2))
        began = time.monotonic()
        (folder / "finish").touch()
        cluster.wait_for(job, "succeeded", within_s=LIMIT_S)
        self._take("no node is left", began, self._is_empty)
        assert len(cluster.autoscaler.added) == added + NODES + 1
        lives = (folder / "lives").read_text().splitlines()
        # A restart would begin a second life of the first replica.
        assert sum(line.startswith("+1-") for line in lives) <= NODES, lives
        assert cluster.job(job)["num_failures"] == 0
        self._num += 1

    def _submit(self, folder: Path) -> str:
        job = {
            "name": f"round-{self._num}",
            "run": TRAINER,
            "workdir": str(folder),
            "batch": {"initial": 8},
            "resources": {"gpus": "1..2", "requested": 2},
        }
        return str(self._cluster.client.post("/v1/jobs", cast(Json, job))["id"])

    def _leave_one(self, job: str) -> float:
        """Give the job's second node a notice; return when its autoscaler removed
        it.
        """
        cluster = self._cluster
        _, goes = cluster.on(job)
        began = time.monotonic()
        cluster.autoscaler.taint(goes, TO_BE_DELETED)
        self._take(
            "a node with a notice is empty", began, lambda: goes not in cluster.on(job)
        )
        self._take(
            "a node with a notice is removed",
            began,
            lambda: goes in cluster.autoscaler.removed,
        )
        return cluster.autoscaler.removed[goes]

    def _kill(self) -> None:
        if not self.kills:
            return
        time.sleep(self._draw.uniform(0.0, PAUSE_MAX_S))
        began = time.monotonic()
        self._cluster.kill()
        self._cluster.up(slots=1)
        self._note("the scheduler answers again", began)

    def _trains(self, job: str, replicas: int) -> bool:
        picture = self._cluster.job(job)
        return picture["state"] == "running" and len(self._cluster.on(job)) == replicas

    def _is_empty(self) -> bool:
        there = self._cluster.autoscaler.added.keys()
        return there == self._cluster.autoscaler.removed.keys()

    def _take(self, what: str, began: float, condition: Callable[[], bool]) -> None:
        until(condition, what, within_s=LIMIT_S)
        self._note(what, began)

    def _note(self, what: str, began: float) -> None:
        what = f"{what}, {'with' if self.kills else 'without'} kills"
        self.times.setdefault(what, []).append(time.monotonic() - began)
        print(f"round {self._num}: {what}: {self.times[what][-1]:.1f} s", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, help="a JSON file for the result")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        plane = ControlPlane(folder / "plane")
        try:
            make_ready(plane)
            times = _measure(folder, plane, given.kills, given.seed)
        finally:
            plane.close()
    print(f"{given.kills} kills: nothing ordered twice, no node left, no job restarted")
    if given.out is not None:
        result = {
            "kills": given.kills,
            "seed": given.seed,
            "load": os.getloadavg()[0],
            "seconds": {what: _told(each) for what, each in times.items()},
        }
        store_results(given.out, result)


def _measure(folder: Path, plane: ControlPlane, kills: int, seed: int) -> Times:
    cluster = BuyingCluster(
        folder, plane, policy="max-min", sizer="demand(idle_s=1)", most=NODES
    )
    try:
        cluster.up(slots=1)
        rounds = Rounds(cluster, seed)
        for _ in range(CALM_ROUNDS):
            rounds.play()
        rounds.kills = True
        for _ in range(kills // 2):
            rounds.play()
        assert cluster.holders == []
        return rounds.times
    finally:
        cluster.leave()


def _told(times: list[float]) -> dict[str, float]:
    return {
        "times": len(times),
        "median": round(statistics.median(times), 1),
        "worst": round(max(times), 1),
    }


if __name__ == "__main__":
    if (why := why_missing()) is not None:
        sys.exit(why)
    main()
