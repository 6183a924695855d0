"""Kill -9 at random moments on a real API server, of replicas, schedulers and the server; and nodes drained.

    python -m tests.executors.kubernetes.kills --kills 20

Each job counts in its checkpoint, holds a lock while it lives, and notes its starts: so a second life shows.
What is told is the time from the kill until the job has counted three further steps, of 0.05 s each.
"""

import argparse
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from coadapt.executors.kubernetes.api import ApiError
from coadapt.executors.processes.job_processes import kill_marked
from tests.contracts.executor_contract import NODES
from tests.executors.kubernetes.control_plane import ControlPlane
from tests.executors.kubernetes.live import LiveOnKubernetes
from tests.executors.kubernetes.site import PODS, KubernetesSite, make_ready

AGAIN_S = 120.0
JOBS = 2
# The others leave pods alone: their jobs train on meanwhile, and the time is until all is there again.
RESTARTING = ("replica", "node drained")


class Kills:
    def __init__(self, site: KubernetesSite, seed: int) -> None:
        self.site = site
        self.live = LiveOnKubernetes(site)
        self.draw = random.Random(seed)
        self.kinds: dict[str, Callable[[str], None]] = {
            "replica": site.kubelet.kill,
            "proxies and launcher": self._kill_beside,
            "scheduler, launchers, proxies": self._kill_all,
            "node drained": self._drain,
            "API server": self._kill_apiserver,
        }
        self.again_s: dict[str, list[float]] = {kind: [] for kind in self.kinds}
        self.restarts = dict.fromkeys(self.kinds, 0)

    def run(self, count: int) -> None:
        self.live.up()
        jobs = [
            self.live.submit(f"job-{i}", TARGET=0, GATE=str(self.site.folder / "gate")) for i in range(JOBS)
        ]
        for job in jobs:
            self._until(lambda job=job: self._count(job) > 0, f"{job} counts")
        for number in range(count):
            time.sleep(self.draw.uniform(0.0, 3.0))
            job = self.draw.choice(jobs)
            kind = list(self.kinds)[number % len(self.kinds)]
            began, starts = time.monotonic(), len(self._starts(job))
            self.kinds[kind](job)
            if kind in RESTARTING:
                self._until(lambda job=job, n=starts: len(self._starts(job)) > n, f"{job} starts again")
            before = self._count(job)
            self._until(lambda job=job, before=before: self._count(job) > before + 2, f"{job} counts again")
            self.again_s[kind].append(time.monotonic() - began)
            self.restarts[kind] += len(self._starts(job)) - starts
            print(f"{number + 1:3} {kind:30} {self.again_s[kind][-1]:6.1f} s", flush=True)
        (self.site.folder / "gate").touch()
        for job in jobs:
            self._until(lambda job=job: self.live.job(job)["state"] == "succeeded", f"{job} ends")
        self._until(lambda: self.site.pods() == [], "no pod is left")
        self._tell(jobs)

    def _tell(self, jobs: list[str]) -> None:
        traces = {job: self.live.trace(job) for job in jobs}
        doubled = sum("two lives" in line for trace in traces.values() for line in trace)
        failed = sum(str(self.live.job(job)["state"]) != "succeeded" for job in jobs)
        print(f"jobs {len(jobs)}, not succeeded {failed}, lives doubled {doubled}, pods left 0")
        for kind, each in self.again_s.items():
            if each:
                median, worst = statistics.median(each), max(each)
                print(f"{kind:30} {len(each):3}  again: median {median:.1f} s, worst {worst:.1f} s,", end=" ")
                print(f"jobs started anew: {self.restarts[kind]}")

    def _starts(self, job: str) -> list[str]:
        return [line for line in self.live.trace(job) if " starts at " in line]

    def _count(self, job: str) -> int:
        with suppress(OSError, ValueError):
            return int((self.live.checkpoints(job) / "count").read_text())
        return 0

    def _until(self, condition: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + AGAIN_S
        while not condition():
            assert time.monotonic() < deadline, f"not within {AGAIN_S:g} s: {what}"
            time.sleep(0.02)

    def _kill_beside(self, job: str) -> None:
        kill_marked(self.live.checkpoints(job))

    def _kill_all(self, _job: str) -> None:
        self.live.kill()
        for path in (self.live.state / "jobs").iterdir():
            kill_marked(path / "checkpoints")
        self.live.up()

    def _drain(self, job: str) -> None:
        found = [pod for pod in self.site.pods() if pod["metadata"]["labels"]["coadapt.dev/job"] == job]
        node = found[0]["spec"].get("nodeName", NODES[0]) if found else NODES[0]
        for other in NODES:
            self.site.kubelet.cordon(other, unschedulable=other == node)
        for name in (
            pod["metadata"]["name"] for pod in self.site.pods() if pod["spec"].get("nodeName") == node
        ):
            eviction = {"apiVersion": "policy/v1beta1", "kind": "Eviction", "metadata": {"name": name}}
            with suppress(ApiError):  # the scheduler was quicker
                self.site.api.ask("POST", f"{PODS}/{name}/eviction", eviction)

    def _kill_apiserver(self, _job: str) -> None:
        self.site.control_plane.kill_apiserver()
        self.site.control_plane.start_apiserver()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        plane = ControlPlane(Path(folder) / "plane")
        try:
            make_ready(plane)
            place = Path(folder) / "site"
            place.mkdir()
            site = KubernetesSite(place, plane)
            kills = Kills(site, given.seed)
            try:
                kills.run(given.kills)
            finally:
                kills.live.close()
                site.close()
        finally:
            plane.close()


if __name__ == "__main__":
    main()
